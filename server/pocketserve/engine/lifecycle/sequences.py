"""State between requests: the protocol's sequence extension.

A sequence is a series of requests with one ``sequence_id``, opened by ``sequence_start`` and closed by
``sequence_end``. Two kinds of model keep state. Some take it as inputs and give it back as outputs: then the arrays are
kept here between requests. Others keep it inside: then each sequence has a session of its own.

Sequences are bounded in number and in idle time; the one that was idle longest makes room. Source: Triton's sequence
extension of the Open Inference Protocol.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pocketserve.engine.scheduling.entries import QueueEntry
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.oip_fields import bad_parameter

log = logging.getLogger(__name__)

MAX_ID_CHARS = 256
BESIDE_OTHERS = (
    "a sequence needs a single server, and several may answer here; "
    "use one that runs alone"
)


SequenceKey = tuple[str, int | str]  # the owner, and the id that it chose


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A request's sequence parameters.

    An ``id`` of 0 or "" means no sequence.

    ``owner`` is the identity of the client's token: clients with tokens of their own may choose the same id.
    """

    id: int | str
    start: bool
    end: bool
    owner: str = ""

    @property
    def key(self) -> SequenceKey:
        """Return the sequence's key, unique over all clients."""
        return self.owner, self.id


class TaskState(Protocol):
    """State of a task between two steps."""

    @property
    def nbytes(self) -> int:
        """Return its bytes."""
        ...


@dataclass(slots=True)
class Sequence:
    """A series of requests."""

    last_used: float
    # The arrays to feed back, by input name.
    state: dict[str, Array] = field(default_factory=dict)
    session: Session | None = (
        None  # a session of its own, for models that keep state inside; None for the others
    )
    queue: ModelQueue | None = None  # the queue in front of that session
    # What the task keeps from step to step; None for models with state of their own.
    task_state: TaskState | None = None
    # Pending and running requests; they run one at a time.
    steps: deque[QueueEntry] = field(default_factory=deque)
    opening: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0

    @property
    def memory_bytes(self) -> int:
        """Return the sequence's bytes beside the model.

        Its steps may run meanwhile, so each value is read once.
        """
        session, state = self.session, self.state
        size = session.memory_bytes if session is not None else 0
        for array in state.values():
            size += array.nbytes
        task_state = self.task_state
        if task_state is not None:
            size += task_state.nbytes
        return size


def read_step(parameters: Mapping[str, Any], owner: str = "") -> SequenceStep | None:
    """Parse a request's sequence parameters; None without any.

    Raises INVALID_PARAMETER.
    """
    number = parameters.get("sequence_id", 0)
    start = parameters.get("sequence_start", False)
    end = parameters.get("sequence_end", False)
    text = isinstance(number, str) and len(number) <= MAX_ID_CHARS
    if not text and not (type(number) is int and 0 <= number < 2**64):
        raise bad_parameter(
            "parameters.sequence_id", "must be an integer from 0 or a short string"
        )
    if not (isinstance(start, bool) and isinstance(end, bool)):
        raise bad_parameter(
            "parameters.sequence_start and sequence_end", "must be true or false"
        )
    return SequenceStep(number, start, end, owner) if number not in (0, "") else None


@dataclass(slots=True, eq=False, repr=False)
class SequenceTable:
    """The open sequences of one loaded version."""

    maximum: int  # sequences that may be open; the one that was idle longest is given up for a new one
    max_idle: float  # seconds without a request after which a sequence is given up
    # Creates a session for models with internal state; None for others.
    open_session: Callable[[], Session] | None
    queue_limit: int  # requests of one such sequence that may wait
    clock: Callable[[], float]
    queue: ModelQueue  # the version's own; a sequence with a session of its own shares its scheduler and flow
    # Whether all steps arrive at this process.
    is_alone: Callable[[], bool] = lambda: True
    _sequences: dict[SequenceKey, Sequence] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of all open sequences.

        Asked under the engine's lock, so that it does not wait for ours, under which sessions are closed.
        """
        return sum(
            sequence.memory_bytes for sequence in tuple(self._sequences.values())
        )

    @property
    def has_sessions(self) -> bool:
        """Return whether each sequence has its own session."""
        return self.open_session is not None

    def enter(self, step: SequenceStep, entry: QueueEntry) -> Sequence:
        """Add a request to its sequence, or start one.

        End it with :meth:`leave`.

        Raises:
            ApiError: INVALID_REQUEST when it continues a sequence that is not open (any more); QUEUE_FULL when it
                starts one anew that is still busy, or too many wait; NOT_IMPLEMENTED beside other workers.
        """
        if not self.is_alone():
            raise ApiError(ErrorCode.NOT_IMPLEMENTED, BESIDE_OTHERS)
        with self._lock:
            dropped = self._drop_idle()
            try:
                # Last in the order from now on, which is that of their last use.
                sequence = self._sequences[step.key] = self._find(step, dropped)
                sequence.last_used = self.clock()
            finally:
                _close_all(dropped)
            entry.steps = sequence.steps
            sequence.steps.append(entry)
            sequence.users += 1
        return sequence

    def queue_of(self, sequence: Sequence) -> ModelQueue:
        """Return the queue of a sequence's own session.

        Its first step opens the session; raises MODEL_FAILED.
        """
        assert self.open_session is not None
        with sequence.opening:
            if sequence.queue is None:
                session = sequence.session = self.open_session()
                shared = self.queue.scheduler, self.queue.flow
                sequence.queue = ModelQueue(
                    [session], self.queue_limit, self.clock, *shared
                )
            return sequence.queue

    def _find(self, step: SequenceStep, dropped: list[Sequence]) -> Sequence:
        """Find or create the request's sequence; list evictions."""
        sequence = self._sequences.get(step.key)
        name = f"sequence {str(step.id)[:64]!r}"
        if sequence is None and not step.start:
            text = f"{name} is not open; start it with sequence_start"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if sequence is not None and (
            sequence.users if step.start else len(sequence.steps) > self.queue_limit
        ):
            raise ApiError(
                ErrorCode.QUEUE_FULL, f"{name} is busy; try again", retry_after_s=0.1
            )
        if sequence is not None:
            del self._sequences[step.key]
            if not step.start:
                return sequence
            dropped.append(sequence)
        dropped += self._make_room()
        return Sequence(self.clock())

    def leave(
        self, step: SequenceStep, sequence: Sequence, entry: QueueEntry, *, failed: bool
    ) -> None:
        """Note the end of a request; the last one closes the sequence.

        So does one whose run failed: the state is undefined then.
        """
        with self._lock:
            was_run = entry not in sequence.steps
            if not was_run:
                sequence.steps.remove(entry)
            sequence.users -= 1
            sequence.last_used = self.clock()
            if (step.end or failed) and self._sequences.get(step.key) is sequence:
                del self._sequences[step.key]
            if not sequence.users and self._sequences.get(step.key) is not sequence:
                _close_all([sequence])
        if not was_run and sequence.steps:
            self.queue.scheduler.start_waiting()  # the next step may have waited for this one only

    def sweep(self) -> None:
        """Close idle sequences."""
        with self._lock:
            _close_all(self._drop_idle())

    def next_expiry(self) -> float | None:
        """Return the earliest expiry of a sequence, None without any.

        Asked under the engine's lock, as :attr:`memory_bytes`.
        """
        now = self.clock()
        ends = []
        for item in tuple(self._sequences.values()):
            idle_since = now if item.users else item.last_used
            ends.append(idle_since + self.max_idle)
        return min(ends, default=None)

    def close(self) -> None:
        """Close all sequences; busy ones are closed by their request."""
        with self._lock:
            sequences = self._sequences.values()
            _close_all([sequence for sequence in sequences if not sequence.users])
            self._sequences.clear()

    def _drop_idle(self) -> list[Sequence]:
        now = self.clock()
        expired = []
        for key, item in tuple(self._sequences.items()):
            if not item.users and now - item.last_used >= self.max_idle:
                expired.append(self._sequences.pop(key))
        return expired

    def _make_room(self) -> list[Sequence]:
        """Drop the longest idle sequence that is not in use."""
        if len(self._sequences) < self.maximum:
            return []
        for key, item in self._sequences.items():
            if not item.users:
                return [self._sequences.pop(key)]
        text = f"all {self.maximum} sequences of this model are busy; try again"
        raise ApiError(ErrorCode.QUEUE_FULL, text, retry_after_s=1)


def _close_all(sequences: Iterable[Sequence]) -> None:
    for sequence in sequences:
        session, sequence.session = sequence.session, None
        try:
            if session is not None:
                session.close()
        except Exception:  # which must not cost the request that made it go
            log.exception("the session of a sequence could not be closed")
