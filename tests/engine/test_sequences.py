"""The table of sequences: order, bounds, and what becomes of a sequence whose step failed or came too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from pocketserve.engine.lifecycle.sequences import SequenceStep, SequenceTable, read_step
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve_wire import ApiError, ErrorCode

WAIT_S = 10.0


class Counted:
    """A session that only knows whether it is open."""

    opened = 0
    memory_bytes = 1000

    def __init__(self) -> None:
        type(self).opened += 1
        self.is_open = True

    def close(self) -> None:
        assert self.is_open, "closed twice"
        self.is_open = False


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(
    maximum: int = 2, opener: Callable[[], object] | None = Counted, queue_limit: int = 4, clock: Clock | None = None
) -> SequenceTable:
    """A table of sequences with sessions of their own."""
    return SequenceTable(maximum, 60.0, opener, queue_limit, clock or Clock())  # type: ignore[arg-type]


def start(name: str, *, end: bool = False) -> SequenceStep:
    return SequenceStep(name, start=True, end=end)


def go_on(name: str, *, end: bool = False) -> SequenceStep:
    return SequenceStep(name, start=False, end=end)


def take(sequences: SequenceTable, step: SequenceStep) -> object:
    """One whole step; returns the session that it ran on."""
    sequence, ticket = sequences.enter(step)
    with sequence.hold(ticket, RequestOptions(time.monotonic() + WAIT_S)):
        sequences.prepare(sequence)
        session = sequence.session
    sequences.leave(step, sequence, failed=False)
    return session


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


def test_steps_share_a_session_and_the_end_closes_it() -> None:
    sequences = table()
    first = take(sequences, start("a"))
    assert take(sequences, go_on("a")) is first
    assert take(sequences, go_on("a", end=True)) is first
    assert not first.is_open and len(sequences) == 0  # type: ignore[attr-defined]
    assert refusal(lambda: sequences.enter(go_on("a"))) is ErrorCode.INVALID_REQUEST


def test_a_new_start_is_a_fresh_session() -> None:
    sequences = table()
    first = take(sequences, start("a"))
    second = take(sequences, start("a"))
    assert second is not first and not first.is_open and len(sequences) == 1  # type: ignore[attr-defined]


def test_a_busy_sequence_cannot_be_started_anew() -> None:
    sequences = table()
    sequence, _ = sequences.enter(start("a"))
    assert refusal(lambda: sequences.enter(start("a"))) is ErrorCode.QUEUE_FULL
    assert sequences.enter(go_on("a"))[0] is sequence


def test_steps_run_in_the_order_in_which_they_came() -> None:
    sequences = table(queue_limit=20)
    first, ticket = sequences.enter(start("a"))
    order: list[int] = []
    entered = [sequences.enter(go_on("a")) for _ in range(8)]

    def run(number: int) -> None:
        sequence, mine = entered[number]
        with sequence.hold(mine, RequestOptions(time.monotonic() + WAIT_S)):
            order.append(number)
        sequences.leave(go_on("a"), sequence, failed=False)

    threads = [threading.Thread(target=run, args=(number,)) for number in reversed(range(8))]
    with first.hold(ticket, RequestOptions(time.monotonic() + WAIT_S)):
        for thread in threads:
            thread.start()
        assert order == []
    for thread in threads:
        thread.join(WAIT_S)
    assert order == list(range(8))


def test_a_step_that_came_too_late_leaves_the_sequence_alone() -> None:
    sequences = table()
    sequence, ticket = sequences.enter(start("a"))
    late, its_ticket = sequences.enter(go_on("a"))
    with sequence.hold(ticket, RequestOptions(time.monotonic() + WAIT_S)):
        sequences.prepare(sequence)
        hold = late.hold(its_ticket, RequestOptions(time.monotonic()))
        assert refusal(hold.__enter__) is ErrorCode.DEADLINE_EXCEEDED
        sequences.leave(go_on("a"), late, failed=False)
    sequences.leave(start("a"), sequence, failed=False)
    assert take(sequences, go_on("a")) is sequence.session


def test_a_step_that_waits_may_be_cancelled() -> None:
    sequences, switch = table(), Cancellation()
    sequence, ticket = sequences.enter(start("a"))
    waiting, its_ticket = sequences.enter(go_on("a"))
    entered = threading.Event()
    codes: list[ErrorCode] = []

    def wait() -> None:
        entered.set()
        terms = RequestOptions(time.monotonic() + WAIT_S, cancellation=switch)
        codes.append(refusal(waiting.hold(its_ticket, terms).__enter__))

    with sequence.hold(ticket, RequestOptions(time.monotonic() + WAIT_S)):
        thread = threading.Thread(target=wait)
        thread.start()
        assert entered.wait(WAIT_S)
        switch.cancel()
        thread.join(WAIT_S)
    assert codes == [ErrorCode.CANCELLED]
    sequences.leave(go_on("a"), waiting, failed=False)
    sequences.leave(start("a"), sequence, failed=False)
    assert take(sequences, go_on("a")) is sequence.session


def test_a_failed_step_closes_its_sequence() -> None:
    sequences = table()
    sequence, ticket = sequences.enter(start("a"))
    with sequence.hold(ticket, RequestOptions(time.monotonic() + WAIT_S)):
        sequences.prepare(sequence)
    session = sequence.session
    sequences.leave(start("a"), sequence, failed=True)
    assert session is not None and not session.is_open  # type: ignore[attr-defined]
    assert refusal(lambda: sequences.enter(go_on("a"))) is ErrorCode.INVALID_REQUEST


def test_a_session_that_cannot_be_opened_blocks_nobody() -> None:
    def fail() -> object:
        raise ApiError(ErrorCode.MODEL_FAILED, "gone")

    sequences = table(maximum=1, opener=fail)
    for _ in range(3):
        assert refusal(lambda: take_failing(sequences)) is ErrorCode.MODEL_FAILED


def take_failing(sequences: SequenceTable) -> None:
    step = start("a", end=True)
    sequence, ticket = sequences.enter(step)
    try:
        with sequence.hold(ticket, RequestOptions(time.monotonic() + WAIT_S)):
            sequences.prepare(sequence)
    finally:
        sequences.leave(step, sequence, failed=False)


def test_bounds() -> None:
    """The one that rested longest makes room; busy ones stay; waiting steps are bounded; idle ones expire."""
    clock = Clock()
    sequences = table(maximum=2, queue_limit=2, clock=clock)
    first = take(sequences, start("a"))
    take(sequences, start("b"))
    take(sequences, start("c"))
    assert not first.is_open and len(sequences) == 2  # type: ignore[attr-defined]
    held = [sequences.enter(go_on("b")) for _ in range(3)]
    assert refusal(lambda: sequences.enter(go_on("b"))) is ErrorCode.QUEUE_FULL
    sequences.enter(go_on("c"))
    assert refusal(lambda: sequences.enter(start("d"))) is ErrorCode.QUEUE_FULL
    for sequence, _ in held:
        sequences.leave(go_on("b"), sequence, failed=False)
    clock.now = 61.0
    assert refusal(lambda: sequences.enter(go_on("b"))) is ErrorCode.INVALID_REQUEST


BAD: list[dict[str, object]] = [
    {"sequence_id": -1},
    {"sequence_id": 2**64},
    {"sequence_id": 1.5},
    {"sequence_id": True},
    {"sequence_id": "x" * 257},
    {"sequence_id": 1, "sequence_start": 1},
    {"sequence_id": 1, "sequence_end": "yes"},
]


def test_what_sequences_hold_is_counted() -> None:
    """Their sessions, and the arrays of models that take their state as inputs."""
    sequences = table()
    take(sequences, start("a"))
    take(sequences, start("b"))
    assert sequences.memory_bytes == 2000
    take(sequences, go_on("b", end=True))
    assert sequences.memory_bytes == 1000
    feeding = table(opener=None)
    sequence, _ = feeding.enter(start("a"))
    sequence.state = {"state": np.zeros(5, np.float32)}
    assert feeding.memory_bytes == 20


def test_nothing_that_the_engine_asks_waits_for_a_session_that_is_closed() -> None:
    """It asks under its own lock, behind which all requests would stand."""
    closing, counted = threading.Event(), threading.Event()

    class Slow(Counted):
        def close(self) -> None:
            closing.set()
            counted.wait(WAIT_S)

    sequences = table(opener=Slow)
    take(sequences, start("a"))
    thread = threading.Thread(target=take, args=(sequences, go_on("a", end=True)))
    thread.start()
    assert closing.wait(WAIT_S)
    watch = threading.Timer(WAIT_S / 2, counted.set)
    watch.start()
    assert sequences.memory_bytes == 0 and sequences.next_expiry() is None and not counted.is_set()
    watch.cancel()
    counted.set()
    thread.join(WAIT_S)


@pytest.mark.parametrize("parameters", BAD)
def test_bad_parameters_are_refused(parameters: dict[str, object]) -> None:
    assert refusal(lambda: read_step(parameters)) is ErrorCode.INVALID_PARAMETER


def test_no_id_is_no_sequence() -> None:
    assert read_step({}) is read_step({"sequence_id": 0}) is read_step({"sequence_id": ""}) is None
    assert read_step({"sequence_id": "a", "sequence_start": True}) == start("a")
