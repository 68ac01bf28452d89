"""waitress's worker threads, and the tasks that send responses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

from pocketserve.api.messages import error_response
from pocketserve.transports.http.body import MAX_JOINED, MemoryBuffer
from pocketserve.transports.http.wsgi import LINE_END, OWNER_KEY, status_line
from pocketserve.transports.request_log import read_request_id
from pocketserve_wire import ApiError, ErrorCode

_CODES = {
    400: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.BODY_TOO_LARGE,
    431: ErrorCode.HEADERS_TOO_LARGE,
    501: ErrorCode.NOT_IMPLEMENTED,
    505: ErrorCode.NOT_IMPLEMENTED,
}


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


class GrowingDispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """A thread pool that starts threads on demand.

    An idle server holds the memory of few threads.
    """

    def __init__(self, max_threads: int) -> None:
        super().__init__()
        self._max_threads = max_threads
        self.set_thread_count(1)

    def add_task(self, task: Any) -> None:
        with self.lock:
            idle = len(self.threads) - self.active_count
            grow = len(self.queue) >= idle and len(self.threads) < self._max_threads
        if grow:
            # Without a free thread in the system, the others do the work.
            with contextlib.suppress(RuntimeError):
                self.set_thread_count(len(self.threads) + 1)
        super().add_task(task)

    def start_new_thread(self, target: Callable[..., None], thread_no: int) -> None:
        try:
            super().start_new_thread(target, thread_no)
        except RuntimeError:
            self.threads.discard(thread_no)  # waitress counts it before it exists
            raise
