"""The verdict on a simulation: recovery times, and promises kept or broken."""

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

SILENCING = ("freeze", "kill", "squatter")
"""Events during which no request is answered, so no recovery can start."""

KILL_S = 1.0
"""Delay after memory pressure until the end of a process is noticed."""
MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Recovery:
    """The time until the slowest app had a right answer again.

    None if it never had.

    Attributes:
        since: the second from which it counts.
    """

    event: PastEvent
    since: float
    seconds: float | None
    slowest: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise, whether it was kept, and the evidence."""

    text: str
    holds: bool
    detail: str


def headline(record: Record) -> str:
    """Return one line on the scenario and its size."""
    apps = plural(len(record.streams), "app")
    requests = plural(len(record.samples), "request")
    events = plural(len(record.events), "event")
    return (
        f"{record.scenario} on a {record.device} phone: {record.seconds:g} s, "
        f"{apps}, {requests}, {events}"
    )


def recoveries(record: Record) -> list[Recovery]:
    """Return the recovery from each event, in the order of the events."""
    result = []
    for event in record.events:
        since = _aftermath(event, record.events)
        waits = _waits(record, since)
        slowest = max(waits, key=waits.__getitem__)
        seconds: float | None = waits[slowest]
        if seconds == math.inf:
            seconds = None
        result.append(Recovery(event, since, seconds, slowest))
    return result


def _waits(record: Record, since: float) -> dict[str, float]:
    """Return each app's time until its next right answer, or infinity."""
    waits = dict.fromkeys(record.streams, math.inf)
    for sample in record.samples:
        if sample.outcome == RIGHT and sample.ended >= since:
            wait = sample.ended - since
            waits[sample.stream] = min(waits[sample.stream], wait)
    return waits


def _aftermath(event: PastEvent, events: Sequence[PastEvent]) -> float:
    """Return the end of an event, and of others that silence the server meanwhile."""
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
    """Return the promises about requests and processes, without loads and counters."""
    return [*_about_requests(record), _recovered(record), _no_crash(record)]


def _judge(text: str, violations: Sequence[Sample], detail: str) -> Promise:
    """Return a promise that these samples break.

    Args:
        detail: of a kept promise.
    """
    if not violations:
        return Promise(text, True, detail)
    examples = []
    for sample in violations[:MAX_EXAMPLES]:
        words = [
            f"{sample.stream} at {sample.sent:.1f} s:",
            sample.code,
            sample.detail,
        ]
        examples.append(" ".join(filter(None, words)))
    listed = "; ".join(examples)
    return Promise(text, False, f"{len(violations):,}: {listed}")


def _about_requests(record: Record) -> list[Promise]:
    right = 0
    wrong = []
    silent = []
    failed = []
    for sample in record.samples:
        if sample.outcome == RIGHT:
            right += 1
        elif sample.outcome == SILENT:
            silent.append(sample)
        elif sample.outcome in (REFUSED, LOST):
            failed.append(sample)
        elif not _asks_loads(record, sample):
            wrong.append(sample)
    answers = _judge(
        "every answer is right and belongs to its own request",
        wrong,
        f"{right:,} answers",
    )
    if not right:
        answers = dataclasses.replace(answers, holds=False)
    number = len(record.samples)
    in_time = _judge(
        "every request ended in an answer or an error, in time",
        silent,
        f"{len(failed):,} of {number:,} ended in an error",
    )
    explained = _judge(
        "requests fail only during events and their aftermath",
        _unexplained(record, failed),
        "no other failed",
    )
    return [answers, in_time, explained]


def _unexplained(record: Record, failed: Sequence[Sample]) -> list[Sample]:
    """Return the failures that neither an event nor the scenario explains."""
    unexplained = []
    for sample in failed:
        if record.is_allowed(sample):
            continue
        if not any(_explains(record, event, sample) for event in record.events):
            unexplained.append(sample)
    return unexplained


def _explains(record: Record, event: PastEvent, sample: Sample) -> bool:
    """Return whether a request was in flight in an event or its aftermath."""
    silence = _aftermath(event, record.events) - event.ended
    return event.meets(sample, silence + record.recovery)


def _recovered(record: Record) -> Promise:
    """Judge whether every app recovered from every event in time."""
    late = []
    worst = 0.0
    all_recoveries = recoveries(record)
    for item in all_recoveries:
        worst = max(worst, item.seconds or 0.0)
        if item.seconds is None or item.seconds > record.recovery:
            late.append(_late_text(item))
    detail = f"{worst:.2f} s at most, {len(all_recoveries)} events"
    if late:
        detail = "; ".join(late[:MAX_EXAMPLES])
    return Promise(
        f"every app has right answers again within {record.recovery:g} s",
        not late,
        detail,
    )


def _late_text(recovery: Recovery) -> str:
    """Describe a recovery that took too long."""
    took = "never"
    if recovery.seconds is not None:
        took = f"{recovery.seconds:.2f} s"
    event = recovery.event
    return f"{event.kind} at {event.begun:.1f} s: {took} ({recovery.slowest})"


def _no_crash(record: Record) -> Promise:
    crashes = []
    for item in record.exits:
        if not _is_explained(item, record.events):
            crashes.append(f"exit code {item.code} at {item.at:.1f} s")
    processes = plural(len(record.lives), "process", "processes")
    detail = f"{processes}, each ended as the scenario states"
    if crashes:
        detail = "; ".join(crashes[:MAX_EXAMPLES])
    return Promise("no process of the server ended by itself", not crashes, detail)


def _is_explained(ended: ProcessExit, events: Sequence[PastEvent]) -> bool:
    """Return whether an event explains the end of a process.

    Without memory pressure, a process that exceeds the phone's memory is at fault.
    """
    if ended.cause != "memory":
        return bool(ended.cause)
    for event in events:
        if event.kind != "memory_pressure":
            continue
        if event.begun <= ended.at <= event.ended + KILL_S:
            return True
    return False


def _loads_hold(record: Record) -> list[Promise]:
    loads = [sample for sample in record.samples if _asks_loads(record, sample)]
    if not loads:
        return []
    violations = [sample for sample in loads if sample.outcome == WRONG]
    detail = f"{len(loads):,} loads, unloads and checks"
    return [_judge("acknowledged loads and unloads take effect", violations, detail)]


def _counters_agree(record: Record) -> Promise:
    """Check the counters of the last server process.

    They count at least its right answers, and at most the requests that it may have
    received.
    """
    text = "the server's counters agree with the apps"
    if record.successes is None or not record.lives:
        return Promise(text, False, "the server could not be queried")
    details = []
    agree = True
    for model in _counted_models(record):
        right, unsure = _count_answers(record, model)
        count = record.successes.get(model, 0)
        if not right <= count <= right + unsure + record.strangers:
            agree = False
        details.append(f"{model}: {right:,} received, {count:,} counted")
    return Promise(text, agree, "; ".join(details))


def _counted_models(record: Record) -> list[str]:
    """Return the models that no stream loads and unloads."""
    models = set()
    changing = set()
    for stream in record.streams.values():
        models.add(str(stream["model"]))
        if stream["ask"] == LOADS:
            changing.add(str(stream["model"]))
    return sorted(models - changing)


def _count_answers(record: Record, model: str) -> tuple[int, int]:
    """Return the right answers of the last process, and the requests in doubt.

    A request in flight during an event may have been run twice, or for nobody.
    """
    since = record.lives[-1].since
    right = unsure = 0
    for sample in record.samples:
        if sample.ended < since or record.streams[sample.stream]["model"] != model:
            continue
        right += sample.outcome == RIGHT
        is_lost = sample.outcome in (LOST, SILENT)
        unsure += is_lost or any(event.meets(sample) for event in record.events)
    return right, unsure


def _asks_loads(record: Record, sample: Sample) -> bool:
    return bool(record.streams[sample.stream]["ask"] == LOADS)
