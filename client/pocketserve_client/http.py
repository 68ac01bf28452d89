"""The HTTP transport of the client."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Final
from urllib.parse import urlsplit

from pocketserve_client import fork_safety
from pocketserve_client.bounded import BoundedConnection, Owner, answer_too_large
from pocketserve_client.errors import ConnectionLostError, ServerUnreachableError
from pocketserve_client.transport import JSON, Answer, Request

DEFAULT_URL = "http://127.0.0.1:8470"
MAX_AT_ONCE = 8
"""Requests that are under way together when they are started without waiting; further ones wait."""

MAX_IDLE: Final = 10
"""Connections that are kept for further requests."""

DEFAULT_MAX_ANSWER_BYTES: Final = 256 << 20
PIECE_BYTES: Final = 1 << 20
"""What is read of a body at a time: a peer may announce any length."""

_JSON_LENGTH = re.compile(r"[0-9]{1,10}")


class HttpTransport:
    """Sends requests over connections that are kept alive. May be used from several threads.

    Proxies, ``.netrc``, cookies and redirects are ignored: a loopback server needs none, and each could leak the token.

    Args:
        token: sent with every request; None sends none.
        timeout: seconds for each exchange in all, from connecting to the answer's last byte.
        max_answer: bytes of the largest answer that is taken.
        owner: where given, nothing is sent unless a server of this user has the port.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout: float,
        max_answer: int = DEFAULT_MAX_ANSWER_BYTES,
        owner: Owner | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._max_answer = max_answer
        self._owner = owner
        self.answered = False
        self._closed = False
        self._idle: list[BoundedConnection] = []
        self.reset_after_fork()
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Leave all connections to the process from which this one was forked."""
        self._close_idle()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def send(self, request: Request) -> Answer:
        """Send a request and read its whole answer."""
        headers = {**self._headers, "Content-Type": request.content_type} if request.chunks else self._headers
        if 0 < request.json_length < request.body_length:
            headers["Inference-Header-Content-Length"] = str(request.json_length)
        body = b"".join(request.chunks) if request.chunks or request.method != "GET" else None
        try:
            with self._connection() as connection:
                connection.request(request.method, urlsplit(self._url).path + request.path, body, headers)
                with connection.getresponse() as response:
                    content = self._read(response)
        except TimeoutError:
            raise ServerUnreachableError(f"{self._url} did not answer within {self._timeout:g} s") from None
        except (OSError, HTTPException, ValueError) as error:  # of what is hardly HTTP, too
            had_worked = self.answered and not isinstance(error, ValueError)
            raise (ConnectionLostError if had_worked else ServerUnreachableError)(
                f"{self._url} cannot be reached ({getattr(error, 'strerror', None) or error}); is the server running? "
                "start it with: pocketserve serve"
            ) from None
        self.answered = True
        length = response.getheader("Inference-Header-Content-Length", "")
        json_length = int(length) if _JSON_LENGTH.fullmatch(length) else None
        return Answer(response.status, content, json_length, response.getheader("Content-Type", JSON))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[BoundedConnection]:
        """Give a connection for one exchange, and keep it if nothing fails."""
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = BoundedConnection(urlsplit(self._url), self._owner)
        try:
            connection.begin(self._timeout, self._max_answer)
            yield connection
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._close_idle()

    def _read(self, response: HTTPResponse) -> bytes:
        """Read a body as it was sent: unpacking is not asked for, and would let few bytes become many."""
        pieces, length = [], 0
        while piece := response.read(PIECE_BYTES):
            pieces.append(piece)
            length += len(piece)
            if length > self._max_answer:
                raise answer_too_large()
        if response.length:
            raise ConnectionError("the connection was closed within the answer")
        return b"".join(pieces)

    def start(self, request: Request) -> HttpPending:
        """Send a request on another thread: HTTP/1.1 connections take one request at a time."""
        with self._lock:
            if self._closed:
                raise ServerUnreachableError("the client was closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="pocketserve-client")
            return HttpPending(self._pool.submit(self.send, request))

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class HttpPending:
    """A request under way on another thread."""

    def __init__(self, future: Future[Answer]) -> None:
        self._future = future
        self._process = os.getpid()
        self.is_done = future.done
        self.cancel = future.cancel  # one that was sent cannot be called back over HTTP

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer; by default for as long as the exchange may take."""
        if os.getpid() != self._process and not self._future.done():
            raise ConnectionLostError("the request is under way in the process from which this one was forked")
        try:
            return self._future.result(timeout)
        except TimeoutError:
            raise ServerUnreachableError(f"no answer came within {timeout:g} s") from None
