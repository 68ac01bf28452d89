"""Tests of sequences: order, limits, and failed or late steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pocketserve.engine.lifecycle.sequences import (
    SequenceStep,
    SequenceTable,
    read_step,
)
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve_wire import ApiError, ErrorCode
from queue_entries import FunctionEntry

WAIT_S = 120.0


class Counted:
    """A session that only records whether it is open."""

    opened = 0
    memory_bytes = 1000

    def __init__(self) -> None:
        type(self).opened += 1
        self.is_open = True

    def close(self) -> None:
        assert self.is_open, "closed twice"
        self.is_open = False


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(
    maximum: int = 2,
    opener: Callable[[], object] | None = Counted,
    queue_limit: int = 4,
    clock: Clock | None = None,
) -> SequenceTable:
    """Return a table of sequences with separate sessions."""
    clock = clock or Clock()
    queue = ModelQueue([Counted()], queue_limit, clock)
    return SequenceTable(
        maximum,
        60.0,
        opener,
        queue_limit,
        clock,
        queue,
    )  # type: ignore[arg-type]


def start(name: str, *, end: bool = False) -> SequenceStep:
    return SequenceStep(name, start=True, end=end)


def go_on(name: str, *, end: bool = False) -> SequenceStep:
    return SequenceStep(name, start=False, end=end)


class Step(FunctionEntry):
    """One step of a sequence, in a table."""

    def __init__(
        self,
        sequences: SequenceTable,
        step: SequenceStep,
        options: RequestOptions | None = None,
    ) -> None:
        super().__init__(
            self._of_session, options or later(), lambda job: job() and None
        )
        self.sequences = sequences
        self.step = step
        self.failed = False
        self.session: object = None
        self.sequence = sequences.enter(step, self)

    def _of_session(self, session: object) -> object:
        if self.failed:
            raise ValueError
        return session

    def submit(self) -> object:
        """Submit it to the sequence's queue.

        Return the job of a free session.
        """
        return self.sequences.queue_of(self.sequence).submit(self)

    def end(self, result: object) -> None:
        """Leave the sequence."""
        super().end(result)
        self.sequences.leave(self.step, self.sequence, self, failed=self.failed)


def later() -> RequestOptions:
    return RequestOptions(time.monotonic() + WAIT_S)


def run_step(sequences: SequenceTable, step: SequenceStep) -> object:
    """Run a whole step; return its session."""
    entry = Step(sequences, step)
    job: Any = entry.submit()
    session = entry.sequence.session
    job()
    assert entry.result is session
    return session


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


def test_steps_share_a_session_and_the_end_closes_it() -> None:
    sequences = table()
    first = run_step(sequences, start("a"))
    assert run_step(sequences, go_on("a")) is first
    assert run_step(sequences, go_on("a", end=True)) is first
    assert not first.is_open and len(sequences) == 0  # type: ignore[attr-defined]
    assert refusal(lambda: Step(sequences, go_on("a"))) is ErrorCode.INVALID_REQUEST


def test_a_new_start_gets_a_new_session() -> None:
    sequences = table()
    first = run_step(sequences, start("a"))
    second = run_step(sequences, start("a"))
    assert second is not first and not first.is_open and len(sequences) == 1  # type: ignore[attr-defined]


def test_a_busy_sequence_cannot_be_restarted() -> None:
    sequences = table()
    first = Step(sequences, start("a"))
    assert refusal(lambda: Step(sequences, start("a"))) is ErrorCode.QUEUE_FULL
    assert Step(sequences, go_on("a")).sequence is first.sequence


def test_steps_run_in_order_of_arrival() -> None:
    """Neither the order of their threads nor their priority matters."""
    sequences = table(queue_limit=20)
    order = []
    first = Step(sequences, start("a"))
    steps = []
    for rank in (5, 9, 1, 5, 2, 8, 7, 1):
        steps.append(
            Step(sequences, go_on("a"), RequestOptions(later().deadline, rank=rank))
        )
    for number, entry in enumerate(steps):
        entry.function = lambda session, number=number: order.append(number)
    for entry in reversed(steps):
        assert entry.submit() is None
    assert order == []
    job: Any = first.submit()
    job()
    assert order == list(range(8))


def test_a_late_step_does_not_change_the_sequence() -> None:
    sequences = table()
    first = Step(sequences, start("a"))
    late = Step(sequences, go_on("a"), RequestOptions(0.0))
    clocked: Any = sequences.queue_of(first.sequence)
    clocked._clock = lambda: 1.0
    assert late.submit() is None
    assert refusal(lambda: late.result) is ErrorCode.DEADLINE_EXCEEDED
    job: Any = first.submit()
    job()
    assert run_step(sequences, go_on("a")) is first.sequence.session


def test_a_waiting_step_can_be_cancelled() -> None:
    sequences = table()
    switch = Cancellation()
    first = Step(sequences, start("a"))
    waiting = Step(
        sequences, go_on("a"), RequestOptions(later().deadline, cancellation=switch)
    )
    assert waiting.submit() is None
    switch.cancel()
    assert refusal(lambda: waiting.result) is ErrorCode.CANCELLED
    job: Any = first.submit()
    job()
    assert run_step(sequences, go_on("a")) is first.sequence.session


def test_a_step_that_ends_before_waiting_lets_the_next_run() -> None:
    sequences = table()
    first = Step(sequences, start("a"))
    second = Step(sequences, go_on("a"))
    assert second.submit() is None
    first.end(ApiError(ErrorCode.CANCELLED, "its caller is gone"))
    assert second.result is second.sequence.session


def test_a_failed_step_closes_its_sequence() -> None:
    sequences = table()
    failing = Step(sequences, start("a"))
    failing.failed = True
    job: Any = failing.submit()
    session = failing.sequence.session
    job()
    assert session is not None and not session.is_open  # type: ignore[attr-defined]
    assert refusal(lambda: Step(sequences, go_on("a"))) is ErrorCode.INVALID_REQUEST


def test_a_session_that_cannot_be_opened_blocks_no_other() -> None:
    def fail() -> object:
        raise ApiError(ErrorCode.MODEL_FAILED, "gone")

    sequences = table(maximum=1, opener=fail)
    for _ in range(3):
        step = Step(sequences, start("a", end=True))
        assert refusal(step.submit) is ErrorCode.MODEL_FAILED
        step.end(ApiError(ErrorCode.MODEL_FAILED, "gone"))


def test_sequences_are_bounded() -> None:
    """The longest idle sequence is evicted, and busy ones stay.

    Waiting steps are bounded, and idle sequences expire.
    """
    clock = Clock()
    sequences = table(maximum=2, queue_limit=2, clock=clock)
    first = run_step(sequences, start("a"))
    run_step(sequences, start("b"))
    run_step(sequences, start("c"))
    assert not first.is_open and len(sequences) == 2  # type: ignore[attr-defined]
    held = [Step(sequences, go_on("b")) for _ in range(3)]
    assert refusal(lambda: Step(sequences, go_on("b"))) is ErrorCode.QUEUE_FULL
    Step(sequences, go_on("c"))
    assert refusal(lambda: Step(sequences, start("d"))) is ErrorCode.QUEUE_FULL
    for entry in held:
        entry.end(None)
    clock.now = 61.0
    assert refusal(lambda: Step(sequences, go_on("b"))) is ErrorCode.INVALID_REQUEST


BAD: list[dict[str, object]] = [
    {"sequence_id": -1},
    {"sequence_id": 2**64},
    {"sequence_id": 1.5},
    {"sequence_id": True},
    {"sequence_id": "x" * 257},
    {"sequence_id": 1, "sequence_start": 1},
    {"sequence_id": 1, "sequence_end": "yes"},
]


def test_memory_of_sequences_is_counted() -> None:
    """Count their sessions, and the arrays of models with state inputs."""
    sequences = table()
    run_step(sequences, start("a"))
    run_step(sequences, start("b"))
    assert sequences.memory_bytes == 2000
    run_step(sequences, go_on("b", end=True))
    assert sequences.memory_bytes == 1000
    feeding = table(opener=None)
    Step(feeding, start("a")).sequence.state = {"state": np.zeros(5, np.float32)}
    assert feeding.memory_bytes == 20


def test_queries_of_the_engine_do_not_wait_for_a_closing_session() -> None:
    """The engine asks under its own lock, which would block all requests."""
    closing = threading.Event()
    counted = threading.Event()

    class Slow(Counted):
        def close(self) -> None:
            closing.set()
            counted.wait(WAIT_S)

    sequences = table(opener=Slow)
    run_step(sequences, start("a"))
    thread = threading.Thread(target=run_step, args=(sequences, go_on("a", end=True)))
    thread.start()
    assert closing.wait(WAIT_S)
    watch = threading.Timer(WAIT_S / 2, counted.set)
    watch.start()
    assert sequences.memory_bytes == 0
    assert sequences.next_expiry() is None
    assert not counted.is_set()
    watch.cancel()
    counted.set()
    thread.join(WAIT_S)


@pytest.mark.parametrize("parameters", BAD)
def test_invalid_parameters_are_rejected(parameters: dict[str, object]) -> None:
    assert refusal(lambda: read_step(parameters)) is ErrorCode.INVALID_PARAMETER


def test_requests_without_an_id_have_no_sequence() -> None:
    assert (
        read_step({})
        is read_step({"sequence_id": 0})
        is read_step({"sequence_id": ""})
        is None
    )
    assert read_step({"sequence_id": "a", "sequence_start": True}) == start("a")
