"""Cancellation of requests by a transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pocketserve_wire import ApiError, ErrorCode

_LOCK = threading.Lock()
"""Of all switches: it is held for two assignments, and each request has a switch that hardly any of them throws."""


class Cancellation:
    """The cancel switch of one request.

    A transport sets it; the request's queue listens.

    Thread-safe. Throwing it twice, or after the request has ended, does nothing.

    Attributes:
        cancelled: whether the request is cancelled; only :meth:`cancel` sets it.
    """

    __slots__ = ("_listener", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._listener: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Cancel the request.

        The listener runs on this thread and must not block.
        """
        with _LOCK:
            if self.cancelled:
                return
            self.cancelled = True
            listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Set the listener; call it at once if already cancelled.

        None removes it.
        """
        with _LOCK:
            if not self.cancelled:
                self._listener = listener
                return
        if listener is not None:
            listener()

    def check(self) -> None:
        """Refuse to go on.

        Raises:
            ApiError: CANCELLED.
        """
        if self.cancelled:
            raise cancelled()


@contextmanager
def waking(
    cancellation: Cancellation | None, condition: threading.Condition
) -> Iterator[None]:
    """Notify a condition when the request is cancelled."""
    if cancellation is None:
        yield
        return

    def wake() -> None:
        with condition:
            condition.notify_all()

    cancellation.listen(wake)
    try:
        yield
    finally:
        cancellation.listen(None)


def cancelled() -> ApiError:
    """Return the error for a cancelled request."""
    return ApiError(
        ErrorCode.CANCELLED,
        "the request was cancelled by its caller; the model was not run",
    )
