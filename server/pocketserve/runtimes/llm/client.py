"""Ask an engine over its UNIX socket: HTTP/1.1 with JSON and server-sent events."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

MAX_EVENT_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 1 << 26
MAX_SOCKET_PATH: Final = 100
"""Bytes that a socket's address certainly has room for; systems have 107."""

WAIT_S: Final = 1.0
"""Seconds without an event after which the client is looked after."""

DONE: Final = b"[DONE]"


class EngineError(Exception):
    """The engine refused a request.

    Attributes:
        status: of its answer.
        kind: its own word for the fault, such as ``exceed_context_size_error``.
        details: further members, such as ``n_ctx``.
    """

    def __init__(
        self, status: int, message: str, kind: str, details: Mapping[str, Any]
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.details = details


class EngineLostError(OSError):
    """The connection broke, or the engine wrote nonsense."""


class EngineTimeoutError(EngineLostError):
    """The deadline passed before the answer was whole."""


class EngineInterruptedError(EngineLostError):
    """The request was given up."""


class EngineConnection:
    """A connection for one request. ``close`` may be called by any thread.

    Args:
        folder: of the socket.
        deadline: monotonic time by which everything must have come.
    """

    def __init__(self, folder: Path, name: str, deadline: float) -> None:
        self._deadline = deadline
        self._is_interrupted = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._set_timeout()
            _connect(self._socket, folder, name)
        except BaseException:
            self._socket.close()
            raise
        self._http = http.client.HTTPConnection("engine")
        self._http.sock = self._socket

    def close(self) -> None:
        """End the connection, and so the work on the request."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._http.close()
        self._socket.close()

    def interrupt(self) -> None:
        """Make the thread that reads from it fail at once; that one closes it."""
        self._is_interrupted = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request and return the JSON of the answer."""
        answer = self._send(path, body)
        data = self._read(answer, MAX_ANSWER_BYTES)
        return _json(data)

    def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        on_wait: Callable[[], None] | None = None,
    ) -> Iterator[Any]:
        """Send a request and yield the JSON of each event.

        Args:
            on_wait: called every second without an event; may raise to give up.

        Raises:
            EngineError: the engine refused it, at once or later.
            EngineLostError: it ended, hung or wrote nonsense.
        """
        answer = self._send(path, body, on_wait)
        while True:
            if on_wait is not None and not self._has_buffered(answer):
                self._wait(on_wait)
            line = self._line(answer)
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == DONE:
                return
            event = _json(data)
            if isinstance(event, dict) and "error" in event:
                raise _refusal(500, event)
            yield event

    def is_healthy(self) -> bool:
        """Return whether the model is loaded."""
        return self._status_of("/health") == 200

    def wait_until_free(self) -> None:
        """Wait until the engine's main thread takes up new work.

        Its health is answered by other threads, its list of adapters by the main one.
        """
        self._status_of("/lora-adapters")

    def _status_of(self, path: str) -> int:
        self._set_timeout()
        self._http.request("GET", path)
        answer = self._http.getresponse()
        self._read(answer, MAX_EVENT_BYTES)
        return answer.status

    def _send(
        self,
        path: str,
        body: Mapping[str, Any],
        on_wait: Callable[[], None] | None = None,
    ) -> http.client.HTTPResponse:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        self._set_timeout()
        try:
            self._http.request("POST", path, data, headers)
            if on_wait is not None:
                self._wait(on_wait)
            answer = self._http.getresponse()
        except EngineTimeoutError:
            raise
        except TimeoutError as error:
            raise EngineTimeoutError("the engine did not answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._loss() from error
        if answer.status != 200:
            data = self._read(answer, MAX_EVENT_BYTES)
            raise _refusal(answer.status, _json(data))
        return answer

    def _has_buffered(self, answer: http.client.HTTPResponse) -> bool:
        """Return whether bytes were received that were not read yet."""
        self._socket.settimeout(0)
        try:
            return bool(answer.fp.peek(1))
        except (OSError, ValueError):
            return True  # reading fails then, and tells why

    def _wait(self, on_wait: Callable[[], None]) -> None:
        """Wait for bytes, or for the end of the connection.

        A socket's own timeout can't do this: nothing can be read after it has passed.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            self._set_timeout()
            left = self._deadline - time.monotonic()
            if poll.poll(max(0.0, min(left, WAIT_S)) * 1000):
                return
            on_wait()

    def _line(self, answer: http.client.HTTPResponse) -> bytes:
        self._set_timeout()
        try:
            line = answer.readline(MAX_EVENT_BYTES + 1)
        except TimeoutError as error:
            raise EngineTimeoutError("the answer took too long") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._loss() from error
        if not line.endswith(b"\n"):
            raise self._loss()
        return line

    def _read(self, answer: http.client.HTTPResponse, limit: int) -> bytes:
        try:
            data = answer.read(limit + 1)
        except TimeoutError as error:
            raise EngineTimeoutError("the answer took too long") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._loss() from error
        if len(data) > limit:
            raise EngineLostError(f"the engine wrote more than {limit} bytes")
        return data

    def _loss(self) -> EngineLostError:
        if self._is_interrupted:
            return EngineInterruptedError("the request was cancelled")
        return EngineLostError("the engine ended")

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise EngineTimeoutError("the answer took too long")
        self._socket.settimeout(left)


def _connect(connection: socket.socket, folder: Path, name: str) -> None:
    path = str(folder / name)
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        connection.connect(path)
        return
    # A longer path has no room in an address; one by the folder's descriptor does.
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineLostError("the engine's answer is not JSON") from error


def _refusal(status: int, answer: Any) -> EngineError:
    fault = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(fault, dict):
        fault = {}
    message = str(fault.get("message", "no reason"))
    code = fault.get("code")
    return EngineError(
        code if isinstance(code, int) else status,
        message[:500],
        str(fault.get("type", "")),
        fault,
    )
