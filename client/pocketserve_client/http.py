"""The HTTP transport of the client."""

from __future__ import annotations

import os
import re
import select
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import quote, urlsplit

from pocketserve_client import fork_safety
from pocketserve_client.bounded import BoundedConnection, ExchangeLimits, answer_too_large
from pocketserve_client.errors import ConnectionLostError, ServerUnreachableError, UnprovenPortError
from pocketserve_client.transport import JSON, Answer, Request
from pocketserve_wire.files.run_file import Run

DEFAULT_URL = "http://127.0.0.1:8470"
MAX_AT_ONCE = 8  # requests that are under way together when they are started without waiting; further ones wait
DEFAULT_MAX_ANSWER_BYTES: Final = 256 << 20
PIECE_BYTES: Final = 1 << 20  # what is read at a time of a body that does not say how long it is
_JSON_LENGTH = re.compile(r"[0-9]{1,10}")
Owner = Callable[[], Run | None]  # tells which server of this user has the port now


class HttpTransport:
    """Sends requests over kept-alive connections. May be used from several threads.

    A loopback server is behind no proxy, and nothing takes the place of the token: neither the environment nor
    ``.netrc`` is looked at. Cookies are not kept, and redirects are not followed.

    Args:
        token: sent with every request; None sends none.
        timeout: seconds for each exchange in all, from connecting to the answer's last byte.
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
        self._url, self._owner = url.rstrip("/"), owner
        parts = urlsplit(self._url)
        self._prefix = quote(parts.path, safe="/%")
        self._headers = [f"Host: {parts.netloc.rpartition('@')[2]}", "Accept-Encoding: identity"]
        if token is not None:
            self._headers.append(f"Authorization: Bearer {token}")
        self._timeout, self._max_answer = timeout, max_answer
        self.answered = self._closed = False
        self.reset_after_fork()
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Leave all connections to the process from which this one was forked."""
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="pocketserve-client")

    def send(self, request: Request) -> Answer:
        """Send a request and read its whole answer."""
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        seconds = request.seconds_left(self._timeout)
        try:
            answer = self._exchange(request, seconds)
        except TimeoutError:
            raise ServerUnreachableError(f"{self._url} did not answer within {seconds:.3g} s") from None
        except (HTTPException, OSError, ValueError) as error:  # ValueError: of what is hardly HTTP
            reason = getattr(error, "strerror", None) or error
            text = f"{self._url} cannot be reached ({reason}); is the server running? start it with: pocketserve serve"
            had_worked = self.answered and not isinstance(error, ValueError)
            raise (ConnectionLostError if had_worked else ServerUnreachableError)(text) from None
        self.answered = True
        return answer

    def start(self, request: Request) -> HttpPending:
        """Send a request on another thread: HTTP/1.1 connections take one request at a time."""
        with self._lock:
            if self._closed:
                raise ServerUnreachableError("the client was closed")
            return HttpPending(self._pool.submit(self.send, request))

    def close(self) -> None:
        """Close all connections; those in use, once they have their answer."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        while (connection := self._take()) is not None:
            connection.close()

    def _exchange(self, request: Request, seconds: float) -> Answer:
        connection = self._take_usable()
        if connection is None:
            connection = self._open(seconds)
        else:
            connection.exchange.begin(seconds, self._max_answer)
        try:
            connection.send(b"".join((self._head_of(request), *request.chunks)))
            with HTTPResponse(connection.sock, method=request.method) as response:
                response.begin()
                body = _read(response, self._max_answer)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, is_reusable=not response.will_close)
        length = response.headers.get("Inference-Header-Content-Length", "")
        json_length = int(length) if _JSON_LENGTH.fullmatch(length) else None
        return Answer(response.status, body, json_length, response.headers.get("Content-Type", JSON))

    def _head_of(self, request: Request) -> bytes:
        """Return request line and headers, to be sent with the body in one piece.

        Raises:
            ValueError: a path or a token holds what would end its line.
        """
        path, length = self._prefix + request.path, request.body_length
        lines = [f"{request.method} {path} HTTP/1.1", *self._headers]
        if length or request.method != "GET":
            lines.append(f"Content-Length: {length}")
        if length:
            lines.append(f"Content-Type: {request.content_type}")
        if 0 < request.json_length < length:
            lines.append(f"Inference-Header-Content-Length: {request.json_length}")
        if " " in path or not all(line.isprintable() for line in lines):
            raise ValueError("a path or the token holds characters that a line of HTTP cannot")
        return "\r\n".join((*lines, "", "")).encode("ascii")

    def _take(self) -> _Connection | None:
        try:
            return self._idle.pop()  # the one that was used last
        except IndexError:
            return None

    def _take_usable(self) -> _Connection | None:
        """Return a connection that rests and was not closed by the server."""
        while (connection := self._take()) is not None:
            if connection.is_silent():
                return connection
            connection.close()
        return None

    def _give_back(self, connection: _Connection, *, is_reusable: bool) -> None:
        """Keep a connection for the next request, if the server does."""
        if not is_reusable or self._closed or len(self._idle) >= MAX_AT_ONCE:
            connection.close()
        else:
            self._idle.append(connection)

    def _open(self, seconds: float) -> _Connection:
        """Connect, and make sure of the port's owner before anything is sent.

        The owner before and the owner after must be the same run of a server: then it had the port in between, too.
        One that only came afterwards may have taken over from whoever took this connection.

        Raises:
            UnprovenPortError: no server of this user has the port.
        """
        before = self._owner() if self._owner is not None else None
        connection = _connection(self._url, seconds)
        connection.exchange.begin(seconds, self._max_answer)
        try:
            connection.connect()
            if self._owner is not None and (before is None or self._owner() != before):
                raise UnprovenPortError(
                    "nobody listens for the socket protocol, and nothing shows that who listens at "
                    f"{connection.host}:{connection.port} is your server, so it was told nothing; start the server "
                    f"with: pocketserve serve, or name the address (--url, POCKETSERVE_URL or Client('{self._url}')) "
                    "if you know who listens there"
                )
        except BaseException:
            connection.close()
            raise
        return connection


class _Connection(BoundedConnection, HTTPConnection):
    """A connection to a server without TLS."""

    def is_silent(self) -> bool:
        """Return whether nothing came while it rested: neither its end nor what nobody asked for."""
        poller = select.poll()
        poller.register(self.sock.fileno(), select.POLLIN)
        return not poller.poll(0)


class _TlsConnection(_Connection, HTTPSConnection):
    """The same with TLS."""


def _connection(url: str, seconds: float) -> _Connection:
    """Return a connection to a server, not opened yet."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        from requests.utils import DEFAULT_CA_BUNDLE_PATH  # late: a server on this device has no TLS

        context = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH)
        connection: _Connection = _TlsConnection(host, parts.port, timeout=seconds, context=context)
    else:
        connection = _Connection(host, parts.port, timeout=seconds)
    connection.exchange = ExchangeLimits()
    return connection


def _read(response: HTTPResponse, max_bytes: int) -> bytes:
    """Read a body as it was sent: unpacking is not asked for, and would let few bytes become many."""
    if response.length is not None:
        if response.length > max_bytes:
            raise answer_too_large()
        return response.read()
    pieces, length = [], 0
    while piece := response.read(PIECE_BYTES):
        pieces.append(piece)
        length += len(piece)
        if length > max_bytes:
            raise answer_too_large()
    return b"".join(pieces)


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
