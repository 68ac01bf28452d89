"""The verdict on the record of a simulation: how fast every app had answers again, and which promises were kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pocketserve.messages import plural
from pocketserve_simulate.phone.processes import ProcessExit
from pocketserve_simulate.scenarios.record import (
    LOST,
    REFUSED,
    RIGHT,
    SILENT,
    WRONG,
    PastEvent,
    Record,
    Sample,
)
from pocketserve_simulate.scenarios.scenario import LOADS

SILENCING = (
    "freeze",
    "kill",
    "squatter",
)  # nobody is answered meanwhile: no recovery can begin within them
KILL_S = 1.0  # how long after the end of memory pressure a process may still be seen to have ended because of it
MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Recovery:
    """The time since a second until the slowest app had a right answer again; None if it never had."""

    event: PastEvent
    since: float
    seconds: float | None
    slowest: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise, whether it was kept, and what shows it."""

    text: str
    holds: bool
    detail: str


def headline(record: Record) -> str:
    """Return one line that says what was run."""
    return (
        f"{record.scenario} on a {record.device} phone: {record.seconds:g} s, "
        f"{plural(len(record.streams), 'app')}, {plural(len(record.samples), 'request')}, "
        f"{plural(len(record.events), 'event')}"
    )


def recoveries(record: Record) -> list[Recovery]:
    """Return how long each event's aftermath lasted, in the order of the events."""
    result = []
    for event in record.events:
        since = _aftermath(event, record.events)
        waits = dict.fromkeys(record.streams, math.inf)
        for sample in record.samples:
            if sample.outcome == RIGHT and sample.ended >= since:
                waits[sample.stream] = min(waits[sample.stream], sample.ended - since)
        slowest = max(waits, key=waits.__getitem__)
        seconds = waits[slowest] if math.isfinite(waits[slowest]) else None
        result.append(Recovery(event, since, seconds, slowest))
    return result


def _aftermath(event: PastEvent, events: Sequence[PastEvent]) -> float:
    """Return when the event is over, and no other one that keeps everybody from being answered goes on."""
    since = event.ended
    for other in sorted(events, key=lambda item: item.begun):
        if other.kind in SILENCING and other.begun <= since < other.ended:
            since = other.ended
    return since


def promises(record: Record) -> list[Promise]:
    """Return all promises, kept or not."""
    return [
        *request_promises(record),
        *_loads_hold(record),
        _counters_agree(record),
    ]


def request_promises(record: Record) -> list[Promise]:
    """Return the promises about requests and processes, which need neither loads nor counters."""
    return [*_about_requests(record), _recovered(record), _no_crash(record)]


def _judge(text: str, violations: Sequence[Sample], detail: str) -> Promise:
    """Return a promise that these samples break; the detail is that of one that was kept."""
    if violations:
        examples = (
            f"{s.stream} at {s.sent:.1f} s: {' '.join(filter(None, (s.code, s.detail)))}"
            for s in violations[:MAX_EXAMPLES]
        )
        detail = f"{len(violations):,}: {'; '.join(examples)}"
    return Promise(text, not violations, detail)


def _about_requests(record: Record) -> list[Promise]:
    samples = record.samples
    right = sum(s.outcome == RIGHT for s in samples)
    wrong = [s for s in samples if s.outcome == WRONG and not _asks_loads(record, s)]
    answers = _judge(
        "every answer is right and belongs to its own request",
        wrong,
        f"{right:,} answers",
    )
    silent = [s for s in samples if s.outcome == SILENT]
    failed = [s for s in samples if s.outcome in (REFUSED, LOST)]
    detail = f"{len(failed):,} of {len(samples):,} were told that they have none"
    ends = [
        (event, _aftermath(event, record.events) - event.ended + record.recovery)
        for event in record.events
    ]
    unexplained = [
        s
        for s in failed
        if not record.is_allowed(s)
        and not any(event.meets(s, aftermath) for event, aftermath in ends)
    ]
    return [
        answers if right else dataclasses.replace(answers, holds=False),
        _judge("every request ended in an answer or an error, in time", silent, detail),
        _judge(
            "requests fail only during events and their aftermath",
            unexplained,
            "no other failed",
        ),
    ]


def _recovered(record: Record) -> Promise:
    all_recoveries = recoveries(record)
    late = [
        item
        for item in all_recoveries
        if item.seconds is None or item.seconds > record.recovery
    ]
    worst = max((item.seconds or 0.0 for item in all_recoveries), default=0.0)
    detail = f"{worst:.2f} s at most, {len(all_recoveries)} events"
    if late:
        detail = "; ".join(
            f"{item.event.kind} at {item.event.begun:.1f} s: "
            + (
                f"{item.seconds:.2f} s ({item.slowest})"
                if item.seconds is not None
                else f"never ({item.slowest})"
            )
            for item in late[:MAX_EXAMPLES]
        )
    return Promise(
        f"every app has right answers again within {record.recovery:g} s",
        not late,
        detail,
    )


def _no_crash(record: Record) -> Promise:
    crashes = [item for item in record.exits if not _is_explained(item, record.events)]
    detail = f"{plural(len(record.lives), 'process', 'processes')}, each ended as the scenario says"
    if crashes:
        detail = "; ".join(
            f"exit code {item.code} at {item.at:.1f} s"
            for item in crashes[:MAX_EXAMPLES]
        )
    return Promise("no process of the server ended by itself", not crashes, detail)


def _is_explained(ended: ProcessExit, events: Sequence[PastEvent]) -> bool:
    """Return whether an event explains the end of a process, and not that it outgrew the phone by itself."""
    if ended.cause != "memory":
        return bool(ended.cause)
    return any(
        e.kind == "memory_pressure" and e.begun <= ended.at <= e.ended + KILL_S
        for e in events
    )


def _loads_hold(record: Record) -> list[Promise]:
    loads = [s for s in record.samples if _asks_loads(record, s)]
    violations = [s for s in loads if s.outcome == WRONG]
    detail = f"{len(loads):,} loads, unloads and looks"
    return (
        [_judge("acknowledged loads and unloads hold", violations, detail)]
        if loads
        else []
    )


def _counters_agree(record: Record) -> Promise:
    """The last server counts at least the answers that came from it, and no more than what was asked of it."""
    text = "the server's counters agree with the apps"
    if record.successes is None or not record.lives:
        return Promise(text, False, "the server could not be asked")
    since = record.lives[-1].since
    details, agree = [], True
    models = {str(stream["model"]) for stream in record.streams.values()}
    for model in sorted(
        models - {str(s["model"]) for s in record.streams.values() if s["ask"] == LOADS}
    ):
        samples = [
            s
            for s in record.samples
            if s.ended >= since and record.streams[s.stream]["model"] == model
        ]
        right = sum(s.outcome == RIGHT for s in samples)
        # What was under way during an event may have been run twice, or run for nobody.
        unsure = sum(
            s.outcome in (LOST, SILENT) or any(e.meets(s) for e in record.events)
            for s in samples
        )
        count = record.successes.get(model, 0)
        agree = agree and right <= count <= right + unsure + record.strangers
        details.append(f"{model}: {right:,} received, {count:,} counted")
    return Promise(text, agree, "; ".join(details))


def _asks_loads(record: Record, sample: Sample) -> bool:
    return bool(record.streams[sample.stream]["ask"] == LOADS)
