"""The unanswered requests of one connection, and their limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.scheduling.cancellation import Cancellation
    from pocketserve.engine.scheduling.semaphore import Semaphore
    from pocketserve.transports.socket.threads import FrameBudget
    from pocketserve_wire.frames import Frame, Header
    from pocketserve_wire.handshake import ConnectionLimits

SMALL_BODY = 65_536
"""Bodies up to this size do not count for ``incoming``."""


class InflightRequests:
    """Counts requests and bytes, and rejects those over the limits.

    :meth:`admit` and :meth:`received` are for the reading thread; the others require the
    connection's lock.

    Args:
        limits: the connection's.
        slots: for requests of all connections.
        incoming: for bytes of incoming bodies of all connections.
        access: returns whether the connection's token is still valid; None for a
            permanent one.

    Attributes:
        refusal: why the latest request is rejected; its body is discarded.
        received_at: monotonic time of its header.
        last_id: id of the latest accepted request.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        slots: Semaphore,
        incoming: FrameBudget,
        access: Callable[[], bool] | None,
    ) -> None:
        self._max_frame, self._max_inflight, self._max_bytes = limits[:3]
        self._slots = slots
        self._incoming = incoming
        self._access = access
        self._requests: dict[int, Cancellation] = {}
        self._count = 0
        self._bytes = 0
        self._receiving = 0
        self.refusal: ApiError | None = None
        self.received_at = 0.0
        self.last_id = 0

    def __len__(self) -> int:
        return len(self._requests)

    def admit(self, header: Header) -> bool:
        """Return whether to keep a request's body, based on its header."""
        size = header.body_length
        self.received_at = time.monotonic()
        self.refusal = None
        if self._access is not None and not self._access():
            text = "the token that this connection was opened with has expired or was revoked"
            self.refusal = ApiError(ErrorCode.UNAUTHORIZED, text)
        elif size > self._max_frame:
            text = f"the body exceeds {self._max_frame} bytes (max_body_bytes)"
            self.refusal = ApiError(
                ErrorCode.BODY_TOO_LARGE, f"Request Entity Too Large: {text}"
            )
        elif self._count >= self._max_inflight:
            self.refusal = _full(
                f"{self._count} requests are in progress on this connection "
                "(socket_inflight)"
            )
        elif self._bytes + size > self._max_bytes and self._count:
            self.refusal = _full(
                f"bodies of {self._bytes} bytes are in progress on this connection "
                "(socket_bytes_inflight)"
            )
        elif size > SMALL_BODY:
            # The announced size counts: all of it may be there in a moment.
            if self._incoming.acquire(size):
                self._receiving = size
            else:
                self.refusal = _full(
                    "the incoming bodies on all connections are too large together"
                )
        return self.refusal is None

    def received(self) -> None:
        """Note that the body is complete, or never will be."""
        size, self._receiving = self._receiving, 0
        if size:
            self._incoming.release(size)

    def add(self, frame: Frame, cancellation: Cancellation) -> ApiError | None:
        """Add a complete request; return an error if it is rejected."""
        if self.refusal is not None:
            return self.refusal
        try:
            self._slots.acquire()
        except IndexError:
            text = (
                "too many requests are in progress on all connections; try again later"
            )
            return ApiError(ErrorCode.QUEUE_FULL, text, retry_after_s=0.5)
        self._requests[frame.request_id] = cancellation
        self._count += 1
        self._bytes += len(frame.body)
        self.last_id = frame.request_id
        return None

    def make_room(self, frame: Frame) -> None:
        """Release a request's share of the limits before its response is sent."""
        self._count -= 1
        self._bytes -= len(frame.body)
        self._slots.release()

    def remove(self, request_id: int) -> None:
        """Remove a request whose answer was sent."""
        del self._requests[request_id]

    def cancellation(self, request_id: int) -> Cancellation | None:
        """Return the cancellation of a request in progress, if any."""
        return self._requests.get(request_id)

    def cancellations(self) -> list[Cancellation]:
        """Return the switches of all requests under way."""
        return list(self._requests.values())


def _full(reason: str) -> ApiError:
    return ApiError(
        ErrorCode.QUEUE_FULL, f"{reason}; try again later", retry_after_s=0.1
    )
