"""State between requests: the protocol's sequence extension.

A sequence is a series of requests with one ``sequence_id``, opened by ``sequence_start`` and closed by
``sequence_end``. Two kinds of model keep state. Some take it as inputs and give it back as outputs: then the arrays are
kept here between requests. Others keep it inside: then each sequence has a session of its own.

Sequences are bounded in number and in idle time; the one that rested longest makes room. Source: Triton's sequence
extension of the Open Inference Protocol.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pocketserve.engine.lane import Lane
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

MAX_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """What one request says of its sequence. An ``id`` of 0 or "" means that it belongs to none."""

    id: int | str
    start: bool
    end: bool


@dataclass(slots=True)
class Sequence:
    """One series of requests.

    Attributes:
        state: the arrays to feed back, by input name.
        session: a session of its own, for models that keep state inside; None for the others.
        lane: the line in front of that session.
        turn: held by the request whose turn it is: the steps of a sequence run one after the other.
    """

    last_used: float
    state: dict[str, Array] = field(default_factory=dict)
    session: Session | None = None
    lane: Lane | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0

    @contextmanager
    def hold(self, deadline: float) -> Iterator[None]:
        """Wait for the step before to end.

        Args:
            deadline: monotonic time in seconds.

        Raises:
            ApiError: DEADLINE_EXCEEDED.
        """
        if not self.turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ApiError(ErrorCode.DEADLINE_EXCEEDED, "the request's timeout passed while its sequence was busy")
        try:
            yield
        finally:
            self.turn.release()


def read_step(parameters: Mapping[str, Any]) -> SequenceStep | None:
    """The sequence parameters of a request; None when it belongs to no sequence.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    number = parameters.get("sequence_id", 0)
    flags = [parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
    text = isinstance(number, str) and len(number) <= MAX_ID_CHARS
    if not text and not (type(number) is int and 0 <= number < 2**64):
        raise ApiError(
            ErrorCode.INVALID_PARAMETER, "parameters.sequence_id must be an integer from 0 or a short string"
        )
    if not all(isinstance(flag, bool) for flag in flags):
        raise ApiError(ErrorCode.INVALID_PARAMETER, "parameters.sequence_start and sequence_end must be true or false")
    return SequenceStep(number, *flags) if number not in (0, "") else None


class SequenceTable:
    """The open sequences of one loaded version.

    Args:
        most: sequences that may be open; the one that rested longest is given up for a new one.
        max_idle: seconds without a request after which a sequence is given up.
        open_session: makes a session for models that keep state inside; None for the others.
        queue_limit: requests of one such sequence that may wait.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        most: int,
        max_idle: float,
        open_session: Callable[[], Session] | None,
        queue_limit: int,
        clock: Callable[[], float],
    ) -> None:
        self._most = most
        self._max_idle = max_idle
        self._open_session = open_session
        self._queue_limit = queue_limit
        self._clock = clock
        self._sequences: OrderedDict[int | str, Sequence] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sequences)

    def enter(self, step: SequenceStep) -> Sequence:
        """The sequence of a request, fresh if it starts one.

        Raises:
            ApiError: INVALID_REQUEST when it continues a sequence that is not open (any more).
        """
        with self._lock:
            dropped = self._drop_idle()
            sequence = self._sequences.pop(step.id, None)
            if step.start and sequence is not None:
                dropped.append(sequence)
                sequence = None
            if sequence is None and not step.start:
                self._close_unused(dropped)
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"sequence {str(step.id)[:64]!r} is not open (any more); start it with sequence_start",
                )
            if sequence is None:
                dropped += self._make_room()
                sequence = Sequence(self._clock())
            self._sequences[step.id] = sequence
            sequence.users += 1
            sequence.last_used = self._clock()
        self._close_unused(dropped)
        self._give_session(sequence)
        return sequence

    def leave(self, step: SequenceStep, sequence: Sequence, *, failed: bool) -> None:
        """Note that a request has ended; the last one of a sequence closes it.

        A request that failed leaves its sequence in a state nobody knows, so that is closed too.
        """
        with self._lock:
            sequence.users -= 1
            sequence.last_used = self._clock()
            if (step.end or failed) and self._sequences.get(step.id) is sequence:
                del self._sequences[step.id]
            closing = [] if self._is_open(sequence) else [sequence]
        self._close_unused(closing)

    def close(self) -> None:
        """Give up every sequence."""
        with self._lock:
            dropped = list(self._sequences.values())
            self._sequences.clear()
        self._close_unused(dropped)

    def _is_open(self, sequence: Sequence) -> bool:
        return any(known is sequence for known in self._sequences.values())

    def _drop_idle(self) -> list[Sequence]:
        now = self._clock()
        expired = [
            key for key, item in self._sequences.items() if not item.users and now - item.last_used > self._max_idle
        ]
        return [self._sequences.pop(key) for key in expired]

    def _make_room(self) -> list[Sequence]:
        """The sequence that rested longest goes; those with a request under way stay."""
        if len(self._sequences) < self._most:
            return []
        resting = [key for key, item in self._sequences.items() if not item.users]
        if not resting:
            raise ApiError(
                ErrorCode.QUEUE_FULL, f"all {self._most} sequences of this model are busy; try again", retry_after_s=1
            )
        return [self._sequences.pop(resting[0])]

    def _give_session(self, sequence: Sequence) -> None:
        if self._open_session is None or sequence.session is not None:
            return
        session = self._open_session()
        sequence.session, sequence.lane = session, Lane([session], self._queue_limit, self._clock)

    @staticmethod
    def _close_unused(sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if not sequence.users and sequence.session is not None:
                sequence.session.close()
                sequence.session = None
