"""Worker threads, and the tasks with which waitress sends responses."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from waitress.task import ErrorTask, WSGITask
from waitress.utilities import build_http_date

from pocketserve.api.messages import error_response
from pocketserve.transports.http.body import MAX_JOINED, MemoryBuffer
from pocketserve.transports.http.wsgi import LINE_END, OWNER_KEY, status_line
from pocketserve.transports.request_log import read_request_id
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.transports.http.connections import Channel

log = logging.getLogger(__name__)

IDENT = "pocketserve"
"""The value of the header ``Server``."""

_CODES = {
    400: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.BODY_TOO_LARGE,
    431: ErrorCode.HEADERS_TOO_LARGE,
    501: ErrorCode.NOT_IMPLEMENTED,
    505: ErrorCode.NOT_IMPLEMENTED,
}


@functools.cache
def _capitalized(name: str) -> str:
    """Return a header's name as waitress sends it."""
    return "-".join(part.capitalize() for part in name.split("-"))


class HttpTask(WSGITask):  # type: ignore[misc]  # waitress has no types
    """Sends the header together with the body, and large bodies without a copy.

    Two sends would wake the client twice.
    """

    wrote_header: bool

    def get_environment(self) -> dict[str, Any]:
        """Add the token's owner: the parser has checked the token."""
        environ: dict[str, Any] = super().get_environment()
        environ[OWNER_KEY] = self.request.owner
        return environ

    def build_response_header(self) -> bytes:
        """Return the header that waitress would build, in fewer steps.

        waitress builds the headers that close a connection or have no length.
        """
        connection = self.request.headers.get("CONNECTION", "").lower()
        closes = self.version != "1.1" or connection == "close"
        if closes or self.content_length is None or not self.has_body:
            header: bytes = super().build_response_header()
            return header
        headers = [
            ("Server", IDENT),
            ("Date", build_http_date(self.start_time)),
            ("Content-Length", str(self.content_length)),
        ]
        for name, value in self.response_headers:
            if name != "Content-Length":
                headers.append((_capitalized(name), value))
        headers.sort(key=itemgetter(0))
        lines = [f"HTTP/1.1 {self.status}"]
        for name, value in headers:
            lines.append(f"{name}: {value}")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("latin-1")

    def write(self, data: bytes | memoryview) -> None:
        left = -1
        if self.content_length is not None:
            left = self.content_length - self.content_bytes_written
        if not (self.complete and self.has_body and 0 < len(data) <= left):
            super().write(data)
            return
        header = b"" if self.wrote_header else self.build_response_header()
        self.wrote_header = True
        self.content_bytes_written += len(data)
        if len(data) <= MAX_JOINED:
            self.channel.write_soon(header + data)
            return
        self.channel.write_soon(header)
        self.channel.write_soon(MemoryBuffer(memoryview(data)))


class JsonErrorTask(ErrorTask):  # type: ignore[misc]
    """Sends the faults that waitress finds as JSON, like all others."""

    def execute(self) -> None:
        error = self.request.refusal
        if error is None:
            error = self._read_fault()
            status: int = self.request.error.code
        else:
            status = error.status
        answer = error_response(error)
        body = error.body() + LINE_END
        self.channel.server.traffic.count("http", None, status)
        self._log(status, len(body))
        self.status = status_line(status)
        headers = self.request.headers
        origins = self.channel.adj.guard.origins.response_headers(headers.get("ORIGIN"))
        self.response_headers = [*answer.headers.items(), *origins.items()]
        request_id = read_request_id(headers.get("X_REQUEST_ID"))
        if request_id:
            self.response_headers.append(("X-Request-Id", request_id))
        self.response_headers.append(("Content-Type", answer.content_type))
        self.response_headers.append(("Connection", "close"))
        self.content_length = len(body)
        self.set_close_on_finish()
        self.write(body)

    def _read_fault(self) -> ApiError:
        """Return the error for a fault that waitress found."""
        fault = self.request.error
        default = ErrorCode.INVALID_REQUEST if fault.code < 500 else ErrorCode.INTERNAL
        code = _CODES.get(fault.code, default)
        detail = str(fault.body).strip()
        if code is ErrorCode.BODY_TOO_LARGE:
            limit = self.channel.adj.max_request_body_size - 1
            detail = f"the body exceeds {limit} bytes (max_body_bytes)"
        return ApiError(code, f"{fault.reason}: {detail}")

    def _log(self, status: int, size: int) -> None:
        traffic, request = self.channel.server.traffic, self.request
        if traffic.log_request is None:
            return
        method = path = ""
        if status != 431:  # waitress replaces a request line that is too long
            method = getattr(request, "command", "")
            path = getattr(request, "path", "")
        traffic.log_request(
            "http",
            method,
            path,
            "",
            status,
            started=time.monotonic(),
            bytes_in=request.body_bytes_received,
            bytes_out=size,
            trusted=request.trusted,
        )


class GrowingDispatcher:
    """A thread pool that starts threads on demand, in place of waitress's.

    An idle server holds the memory of few threads.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._tasks: SimpleQueue[Channel | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.spare = 0  # idle threads, less the requests that wait for one
        with self._lock:
            self._start_thread()

    def add_task(self, task: Channel) -> None:
        """Run a connection's next request on some thread soon."""
        with self._lock:
            self.spare -= 1
            if self.spare < 0 and len(self._threads) < self._max_threads:
                # Without a free thread in the system, the others do the work.
                with contextlib.suppress(RuntimeError):
                    self._start_thread()
        self._tasks.put(task)

    def _start_thread(self) -> None:
        name = f"waitress-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        self.spare += 1

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            try:
                task.service()
            except BaseException:
                log.exception("unexpected error while answering a request")
            task = None  # an idle thread keeps no connection
            with self._lock:
                self.spare += 1

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:
        """End all threads; cancel the tasks that wait.

        waitress closes connections in the same way.
        """
        deadline = time.monotonic() + timeout
        if cancel_pending:
            self._cancel_pending()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return cancel_pending

    def _cancel_pending(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.cancel()
