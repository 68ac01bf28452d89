"""Answers in parts over HTTP: ``text/event-stream``, sent while the model works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pocketserve.api.messages import ApiResponse
from pocketserve.engine.scheduling.cancellation import cancelled

_DISCONNECTED: Final = "waitress.client_disconnected"
_HEADERS: Final[dict[str, str]] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx would collect the parts
}


class EventStream:
    """Sends parts of one answer on the thread that runs the request.

    Args:
        start: WSGI's ``start_response``; its result writes at once.
        headers: those besides the stream's own.
    """

    def __init__(
        self,
        environ: dict[str, Any],
        start: Callable[..., Any],
        headers: dict[str, str],
    ) -> None:
        self._start = start
        self._headers = _HEADERS | headers
        self._has_gone: Callable[[], bool] = environ.get(_DISCONNECTED, bool)
        self._write: Callable[[bytes], Any] | None = None

    def send(self, data: bytes) -> None:
        """Send a part.

        Raises:
            ApiError: CANCELLED, the client has gone or doesn't read.
        """
        self.check()
        if self._write is None:
            self._write = self._start("200 OK", list(self._headers.items()))
        try:
            self._write(data)
        except Exception:  # each server has its own for a connection that broke
            raise cancelled() from None

    def check(self) -> None:
        """Raise as :meth:`send` if the client has gone."""
        if self._has_gone():
            raise cancelled()

    def end(self, response: ApiResponse) -> None:
        """Send the last part, or the error that ended the answer, if it has begun."""
        if self._write is None:
            return
        response.sent = True
        data = b"".join(response.chunks)
        if response.status != 200:
            data = b"data: " + data + b"\n\n"
        if not self._has_gone():
            self._write(data)
