"""What a simulation has shown: how fast every app had answers again, and which promises were kept.

Nothing here measures or waits: it reads a :class:`~pocketserve_simulate.scenarios.record.Record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketserve.messages import plural
from pocketserve_simulate.scenarios.record import Exit, Happened, Record
from pocketserve_simulate.scenarios.scenario import LOADS
from pocketserve_simulate.scenarios.traffic import LOST, REFUSED, RIGHT, SILENT, WRONG, Sample

SILENCING = ("freeze", "kill", "squatter")
"""Events during which nobody can be answered: the recovery from another one cannot begin within them."""

PORT_S = 1.0
"""How long after a port hijacker's end a start may still end because of it."""

KILL_S = 1.0
"""How long after the end of memory pressure a process may still be seen to have ended because of it."""

MANY = 3
"""Examples that a promise's detail names at most."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """From an event's end to the first right answer of the app that waited for it longest.

    Attributes:
        since: the second from which it counts.
        seconds: None if an app had no right answer any more.
        slowest: that app.
    """

    event: Happened
    since: float
    seconds: float | None
    slowest: str


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise, whether it was kept, and what shows it."""

    text: str
    kept: bool
    detail: str


def headline(record: Record) -> str:
    """One line that says what was run."""
    return (
        f"{record.scenario} on a {record.device} phone: {record.seconds:g} s, "
        f"{plural(len(record.streams), 'app')}, {plural(len(record.samples), 'request')}, "
        f"{plural(len(record.events), 'event')}"
    )


def recoveries(record: Record) -> list[Recovery]:
    """Return how long each event's aftermath lasted, in the order of the events."""
    return [_recovery(record, event) for event in record.events]


def _recovery(record: Record, event: Happened) -> Recovery:
    since = _aftermath(event, record.events)
    waits: dict[str, float | None] = {}
    for name in record.streams:
        answers = (s.ended for s in record.samples if s.stream == name and s.outcome == RIGHT and s.ended >= since)
        first = min(answers, default=None)
        waits[name] = None if first is None else first - since
    slowest = max(waits, key=lambda name: float("inf") if waits[name] is None else waits[name] or 0.0)
    return Recovery(event, since, waits[slowest], slowest)


def _aftermath(event: Happened, events: Sequence[Happened]) -> float:
    """Return when the event is over, and no other one that keeps everybody from being answered goes on."""
    since = event.ended
    for other in sorted(events, key=lambda item: item.begun):
        if other.kind in SILENCING and other.begun <= since < other.ended:
            since = other.ended
    return since


def promises(record: Record) -> list[Promise]:
    """All promises, kept or not."""
    return [
        _answers_right(record),
        _nobody_left_waiting(record),
        _refusals_explained(record),
        _recovered(record),
        _no_crash(record),
        *_loads_hold(record),
        *_counters_agree(record),
    ]


def _answers_right(record: Record) -> Promise:
    wrong = [s for s in record.samples if s.outcome == WRONG and not _asks_loads(record, s)]
    right = sum(s.outcome == RIGHT for s in record.samples)
    detail = f"{right:,} answers" if not wrong else _examples(wrong)
    return Promise("every answer is right and belongs to its own request", right > 0 and not wrong, detail)


def _nobody_left_waiting(record: Record) -> Promise:
    silent = [s for s in record.samples if s.outcome == SILENT]
    told = sum(s.outcome in (REFUSED, LOST) for s in record.samples)
    detail = f"{told:,} of {len(record.samples):,} were told that they have none" if not silent else _examples(silent)
    return Promise("every request ended in an answer or an error, in time", not silent, detail)


def _refusals_explained(record: Record) -> Promise:
    """Errors belong to an event, or the scenario allows them at any time."""
    spans = [(event.begun, _aftermath(event, record.events) + record.recovery) for event in record.events]
    unexplained = [
        s
        for s in record.samples
        if s.outcome in (REFUSED, LOST)
        and s.code not in record.streams[s.stream]["allow"]
        and not any(begun <= s.ended and s.sent <= ended for begun, ended in spans)
    ]
    return Promise(
        "requests fail only during events and their aftermath",
        not unexplained,
        "no other failed" if not unexplained else _examples(unexplained),
    )


def _recovered(record: Record) -> Promise:
    found = recoveries(record)
    late = [item for item in found if item.seconds is None or item.seconds > record.recovery]
    worst = max((item.seconds or 0.0 for item in found), default=0.0)
    detail = f"{worst:.2f} s at most, {len(found)} events"
    if late:
        detail = "; ".join(
            f"{item.event.kind} at {item.event.begun:.1f} s: "
            + (f"{item.seconds:.2f} s ({item.slowest})" if item.seconds is not None else f"never ({item.slowest})")
            for item in late[:MANY]
        )
    return Promise(f"every app has right answers again within {record.recovery:g} s", not late, detail)


def _no_crash(record: Record) -> Promise:
    crashes = [item for item in record.exits if not _is_asked_for(item, record.events)]
    detail = f"{plural(len(record.lives), 'process', 'processes')}, each ended as the scenario says"
    if crashes:
        detail = "; ".join(f"exit code {item.code} at {item.at:.1f} s" for item in crashes[:MANY])
    return Promise("no process of the server ended by itself", not crashes, detail)


def _is_asked_for(ended: Exit, events: Sequence[Happened]) -> bool:
    """Return whether the scenario explains it. A server that outgrows the phone without pressure from others is to
    blame.
    """
    if ended.cause == "memory":
        return any(e.kind == "memory_pressure" and e.begun <= ended.at <= e.ended + KILL_S for e in events)
    return bool(ended.cause) or _port_taken(ended, events)


def _port_taken(ended: Exit, events: Sequence[Happened]) -> bool:
    """Return whether it is a start that found its port taken, which it must report and not pass over."""
    taken = any(event.kind == "squatter" and event.begun <= ended.at <= event.ended + PORT_S for event in events)
    return taken and ended.code == 1


def _loads_hold(record: Record) -> list[Promise]:
    asked = [s for s in record.samples if _asks_loads(record, s)]
    broken = [s for s in asked if s.outcome == WRONG]
    if not asked:
        return []
    detail = f"{len(asked):,} loads, unloads and looks" if not broken else _examples(broken)
    return [Promise("acknowledged loads and unloads hold", not broken, detail)]


def _counters_agree(record: Record) -> list[Promise]:
    """The last server counts at least the answers that came from it, and no more than what was asked of it."""
    if record.successes is None or not record.lives:
        return [Promise("the server's counters agree with the apps", False, "the server could not be asked")]
    since = record.lives[-1].since
    told, kept = [], True
    busy = {str(stream["model"]) for stream in record.streams.values() if stream["ask"] == LOADS}
    for model in sorted({str(stream["model"]) for stream in record.streams.values()} - busy):
        asked = [s for s in record.samples if s.ended >= since and record.streams[s.stream]["model"] == model]
        right = sum(s.outcome == RIGHT for s in asked)
        # What was under way during an event may have been run twice, or run for nobody.
        unsure = sum(s.outcome in (LOST, SILENT) or _touched(s, record.events) for s in asked) + record.strangers
        counted = record.successes.get(model, 0)
        kept = kept and right <= counted <= right + unsure
        told.append(f"{model}: {right:,} received, {counted:,} counted")
    return [Promise("the server's counters agree with the apps", kept, "; ".join(told))]


def _touched(sample: Sample, events: Sequence[Happened]) -> bool:
    return any(event.begun <= sample.ended and sample.sent <= event.ended for event in events)


def _asks_loads(record: Record, sample: Sample) -> bool:
    return bool(record.streams[sample.stream]["ask"] == LOADS)


def _examples(samples: Sequence[Sample]) -> str:
    shown = "; ".join(
        f"{s.stream} at {s.sent:.1f} s: {' '.join(filter(None, (s.code, s.detail)))}" for s in samples[:MANY]
    )
    return f"{len(samples):,}: {shown}"
