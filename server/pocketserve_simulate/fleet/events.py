"""Events on single phones of a fleet, while a client of each phone goes on asking."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pocketserve.compare.judge import sameness
from pocketserve.compare.scores import measure_for
from pocketserve_client import Client
from pocketserve_simulate.fleet.asking import Answer, Failure, PhoneAnswers
from pocketserve_simulate.fleet.fleet import FleetPhone
from pocketserve_simulate.fleet.tables import Table
from pocketserve_simulate.phone.events import MAX_EVENTS, EventError, PhoneEvent, parse_events
from pocketserve_simulate.scenarios.record import RIGHT, Life, PastEvent, Record
from pocketserve_simulate.scenarios.scenario import Stream
from pocketserve_simulate.scenarios.traffic import App, ServerAddresses
from pocketserve_simulate.scenarios.verdict import recoveries, request_promises

RECOVERY_S: Final = 10.0  # a slow phone starts Python and loads the model, while its neighbours use the same cores
USUAL_RATE: Final = 5.0
CALL_TIMEOUT_S: Final = 5.0
Timeline = Mapping[int, Sequence[PhoneEvent]]


@dataclass(frozen=True)
class PastAnswer:
    """An input with the answer that the same phone gave before anything happened to it."""

    data: bytes
    expected: Answer

    def ask(self, client: Client, stream: Stream) -> str:
        """Ask it again; returns what is wrong with the answer, empty if nothing is."""
        answer = client.predict(stream.model, self.data, wait=stream.deadline)
        measure = measure_for(str(self.expected.get("task", "")))
        is_same = sameness(measure, [answer], [self.expected]) == [1.0]
        return "" if is_same else "the answer is not the one that this phone gave before"


def parse_timeline(text: str, phones: int) -> dict[int, list[PhoneEvent]]:
    """Parse events of a fleet, such as ``2:kill@1+1,3:freeze@2+3``; returns them by the number of the phone.

    Raises:
        EventError: one of them names no phone of the fleet, or is no event.
    """
    timeline: dict[int, list[PhoneEvent]] = {}
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MAX_EVENTS:
        raise EventError(f"there are {len(words)} events, of {MAX_EVENTS} at most")
    for word in words:
        number, _, event = word.partition(":")
        if not number.isascii() or not number.isdigit() or not 1 <= int(number[:9]) <= phones:
            raise EventError(f"an event of a fleet names a phone from 1 to {phones}, as in 2:kill@3, not {word!r}")
        timeline.setdefault(int(number[:9]), []).extend(parse_events(event))
    return timeline


def play(
    results: Sequence[PhoneAnswers], timeline: Timeline, model: str, rate: float | None, say: Callable[[str], None]
) -> list[Record]:
    """Ask all phones at a steady rate while the events happen; returns what each one's client saw.

    Args:
        results: the answers of each phone before; those are expected again.
        rate: requests a second of each client; 5 by default.
    """
    begin = time.monotonic()
    end = max(event.at + event.seconds for events in timeline.values() for event in events) + RECOVERY_S
    apps = {result.phone.number: _app(result, model, rate or USUAL_RATE, begin) for result in results}
    phones = {result.phone.number: result.phone for result in results}
    for phone in phones.values():
        phone.phone.hurry(False)
    try:
        for app in apps.values():
            app.start()
        past = _pass_time(phones, timeline, begin, end, say)
    finally:
        for app in apps.values():
            app.stop()
        for phone in phones.values():
            phone.phone.hurry(True)
    return [_record(phones[number], app, past[number], begin, end) for number, app in apps.items()]


def _app(result: PhoneAnswers, model: str, rate: float, begin: float) -> App:
    phone = result.phone
    questions = [
        PastAnswer(data, answer)
        for data, answer in zip(result.inputs, result.answers, strict=True)
        if not isinstance(answer, Failure)
    ]
    stream = Stream(
        f"phone {phone.number}",
        model,
        rate,
        parallel=2,
        deadline=CALL_TIMEOUT_S,
        timeout=CALL_TIMEOUT_S,
        reconnect=RECOVERY_S,
    )
    return App(stream, ServerAddresses(phone.url("http"), phone.url(), phone.token_file), questions, begin)


def _pass_time(
    phones: Mapping[int, FleetPhone], timeline: Timeline, begin: float, end: float, say: Callable[[str], None]
) -> dict[int, list[PastEvent]]:
    """Begin and end every event when it is due; returns by phone when it really happened."""
    past: dict[int, list[PastEvent]] = {number: [] for number in phones}
    beginnings: dict[PhoneEvent, float] = {}
    moments = [(at, is_end, number, event) for number, event in _events(timeline) for at, is_end in _times(event)]
    for at, is_end, number, event in sorted(moments, key=lambda moment: moment[:3]):
        _wait_until(begin + at)
        now = time.monotonic() - begin
        say(f"{now:5.1f} s  phone {number}: {event.kind} {'is over' if is_end else 'begins'}")
        if is_end:
            phones[number].phone.end(event)
            past[number].append(PastEvent(event.kind, beginnings[event], time.monotonic() - begin, event.options))
        else:
            phones[number].phone.begin(event)
            beginnings[event] = now
    _wait_until(begin + end)
    return past


def _events(timeline: Timeline) -> list[tuple[int, PhoneEvent]]:
    return [(number, event) for number, events in timeline.items() for event in events]


def _times(event: PhoneEvent) -> tuple[tuple[float, bool], tuple[float, bool]]:
    return (event.at, False), (event.at + event.seconds, True)


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _record(phone: FleetPhone, app: App, past: Sequence[PastEvent], begin: float, end: float) -> Record:
    processes = phone.phone.processes
    exits = [dataclasses.replace(item, at=item.at - begin) for item in processes.exits if item.at >= begin]
    return Record(
        scenario="fleet",
        description=f"phone {phone.number}",
        device=phone.profile,
        seconds=end,
        recovery=RECOVERY_S,
        streams={app.stream.name: dataclasses.asdict(app.stream)},
        events=list(past),
        samples=sorted(app.samples, key=lambda sample: sample.sent),
        memory=[],
        lives=[Life(pid, max(0.0, at - begin)) for at, pid in processes.starts],
        exits=exits,
        skipped={app.stream.name: app.skipped},
        successes=None,
        strangers=0,
        machine={},
    )


def is_kept(record: Record) -> bool:
    """Return whether a phone's client saw right answers, told failures, and right answers again in time."""
    return all(promise.holds for promise in request_promises(record))


def record_json(record: Record) -> dict[str, Any]:
    """Return what a phone's client saw, without its single requests."""
    right = sum(sample.outcome == RIGHT for sample in record.samples)
    return {
        "phone": int(record.description.removeprefix("phone ")),
        "profile": record.device,
        "sent": len(record.samples),
        "right": right,
        "events": [{"kind": event.kind, "from": event.begun, "to": event.ended} for event in record.events],
        "recovery_seconds": _slowest(record),
        "kept": is_kept(record),
        "broken": [f"{promise.text}: {promise.detail}" for promise in request_promises(record) if not promise.holds],
    }


def _slowest(record: Record) -> float | None:
    """Return the seconds of the longest recovery: 0 without events, None where there was none."""
    seconds = [math.inf if item.seconds is None else item.seconds for item in recoveries(record)]
    slowest = max(seconds, default=0.0)
    return slowest if math.isfinite(slowest) else None


def events_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return header and rows of what the clients saw, from its JSON; 45 columns wide for one event a phone."""
    rows = []
    for facts in records:
        kinds = ",".join(event["kind"] for event in facts["events"]) or "-"
        back = "never" if facts["recovery_seconds"] is None else f"{facts['recovery_seconds']:.1f}"
        failed = facts["sent"] - facts["right"]
        numbers = [str(facts["sent"]), str(facts["right"]), str(failed), back if facts["events"] else "-"]
        rows.append([str(facts["phone"]), kinds, *numbers, "yes" if facts["kept"] else "no"])
    return ["N", "EVENT", "SENT", "RIGHT", "FAIL", "BACK s", "KEPT"], rows
