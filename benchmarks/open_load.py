"""The open load: requests on a schedule, regardless of answers.

One thread never waits for a socket: requests are prepared bytes, unsent bytes are kept,
and garbage collection is off. The system can still delay it, so it records its own
delays in sending and reading; measurements during a delay say nothing about the server
and are left out.
"""

from __future__ import annotations

import gc
import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.calls import Call, frame_length
from pocketserve_wire.frames import HEADER

OK, REFUSED, SUPERSEDED = 200, 429, 409
BELIEVED_S = 0.001
"""Answers count only if the generator's own delay was shorter."""

AT_ONCE = 16
"""Requests sent between two polls for answers."""

_ID = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer. Times in seconds, of ``time.perf_counter``.

    Attributes:
        left, came: when its request left and when it was read.
        unsure: its own delay in sending, or in reading the answer: the larger one.
    """

    status: int
    left: float
    came: float
    unsure: float

    @property
    def age_ms(self) -> float:
        """Milliseconds from the request to the answer."""
        return 1e3 * (self.came - self.left)


@dataclass
class OpenLoad:
    """The result of an open load.

    Attributes:
        began: when the first request left.
        offered: requests that were due.
        dropped: due requests that were skipped.
        answers: all answers, in order of arrival.
        late: seconds behind schedule, by request.
        seconds: the duration of sending.
    """

    began: float = 0.0
    offered: int = 0
    dropped: int = 0
    answers: list[Seen] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def with_status(self, status: int) -> list[Seen]:
        """The answers with a status."""
        return [seen for seen in self.answers if seen.status == status]

    def believed(self, status: int) -> list[float]:
        """Return the reliable ages in ms of answers with a status."""
        return [
            seen.age_ms
            for seen in self.with_status(status)
            if seen.unsure <= BELIEVED_S
        ]

    @property
    def goodput(self) -> float:
        """Answers per second that came while requests were sent."""
        return (
            sum(seen.came <= self.began + self.seconds for seen in self.with_status(OK))
            / self.seconds
        )

    @property
    def doubted(self) -> float:
        """The share of answers that are not believed."""
        return sum(seen.unsure > BELIEVED_S for seen in self.answers) / max(
            1, len(self.answers)
        )


def open_load(
    calls: Sequence[Call],
    rate: float,
    seconds: float,
    drain: float = 10.0,
    *,
    drops: bool = False,
) -> OpenLoad:
    """Send ``rate`` requests a second over framed connections.

    Args:
        drops: skip a request while its connection hasn't sent the one before, like a
            camera.
    """
    load = OpenLoad(seconds=seconds)
    lanes = [_Lane(call) for call in calls]
    total = int(rate * seconds)
    with _undisturbed(), select.epoll() as poller:
        for lane in lanes:
            poller.register(lane.call.socket, select.EPOLLIN)
        by_fd = {lane.call.socket.fileno(): lane for lane in lanes}
        load.began = looked = time.perf_counter()
        deadline = load.began + seconds + drain
        while (
            load.offered < total or any(lane.sent for lane in lanes)
        ) and looked < deadline:
            due = _send_due(load, lanes, rate, total, drops=drops)
            # Sleeping for less would be late: the system counts in milliseconds.
            nap = 0.05
            if load.offered < total:
                nap = due - time.perf_counter() - 0.002
            if nap > 0 and not any(lane.unsent for lane in lanes):
                ready = poller.poll(nap)
                # The poll was woken by the answers, so they have just arrived.
                looked = time.perf_counter()
            else:
                ready = poller.poll(0)
            before = looked
            looked = time.perf_counter()
            for fd, _ in ready:
                by_fd[fd].receive(load, before)
            for lane in lanes:
                lane.push()
    return load


def _send_due(
    load: OpenLoad, lanes: Sequence[_Lane], rate: float, total: int, *, drops: bool
) -> float:
    """Send the due requests; return the next time."""
    for _ in range(AT_ONCE):
        due = load.began + load.offered / rate
        now = time.perf_counter()
        if load.offered >= total or due > now:
            return due
        lane = lanes[load.offered % len(lanes)]
        load.offered += 1
        if drops and lane.unsent:
            load.dropped += 1
            continue
        lane.send(now, now - due)
        load.late.append(now - due)
    return 0.0


class _Lane:
    """One framed connection with many requests under way."""

    def __init__(self, call: Call) -> None:
        self.call = call
        call.socket.setblocking(False)
        self.sent: dict[int, tuple[float, float]] = {}
        self._number = 0
        self._bytes = bytearray()
        self.unsent = bytearray()

    def send(self, now: float, late: float) -> None:
        """Send one more, stamped with its own number; never waits."""
        self._number += 1
        _ID.pack_into(self.call.request, 4, self._number)
        self.sent[self._number] = now, late
        self.unsent += self.call.request
        self.push()

    def push(self) -> None:
        """Send the remaining bytes."""
        if not self.unsent:
            return
        try:
            del self.unsent[: self.call.socket.send(self.unsent)]
        except BlockingIOError:
            return

    def receive(self, load: OpenLoad, looked: float) -> None:
        """Read once.

        Args:
            looked: the time of the previous poll.
        """
        data = self.call.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed a connection under load")
        self._bytes += data
        now = time.perf_counter()
        while True:
            length = frame_length(self._bytes, len(self._bytes))
            if length is None or len(self._bytes) < length:
                return
            _, _, _, number, status, *_ = HEADER.unpack_from(self._bytes)
            left, late = self.sent.pop(number)
            load.answers.append(Seen(status, left, now, max(late, now - looked)))
            del self._bytes[:length]


@contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
