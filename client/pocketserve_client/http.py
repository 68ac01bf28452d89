"""The HTTP transport of the client."""

from __future__ import annotations

import os
import re
import select
import ssl
import threading
import weakref
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
)
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pocketserve_client import fork_safety
from pocketserve_client.bounded import (
    BoundedConnection,
    ExchangeLimits,
    answer_too_large,
)
from pocketserve_client.errors import (
    AddressError,
    ConnectionLostError,
    ServerUnreachableError,
    UnprovenPortError,
)
from pocketserve_client.transport import JSON, Answer, Request
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK, Address
from pocketserve_wire.files.run_file import Run
from pocketserve_wire.version import __version__

DEFAULT_URL = f"http://{Address(LOOPBACK, HTTP_PORT)}"
MAX_AT_ONCE = 8  # requests that are under way together when they are started without waiting; further ones wait
DEFAULT_MAX_ANSWER_BYTES: Final = 256 << 20
PIECE_BYTES: Final = (
    1 << 20
)  # what is read at a time of a body that does not say how long it is
JOINED_BYTES: Final = (
    256 << 10
)  # of a body that is copied behind its head; a longer one is sent from where it lies
_IN_A_PATH: Final = "/%!$&'()*+,;=:@~"  # besides letters and digits
_JSON_LENGTH = re.compile(r"[0-9]{1,10}")
Owner = Callable[[], Run | None]  # tells which server of this user has the port now


class HttpTransport:
    """Sends requests over kept-alive connections. May be used from several threads.

    A loopback server is behind no proxy: neither the environment nor ``.netrc`` is looked at. Cookies are not kept, and
    redirects are not followed.

    Args:
        token: sent with every request; None sends none. A name and a password in the URL take its place.
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
        self._prefix = quote(parts.path, safe=_IN_A_PATH)
        self._headers = [
            f"Host: {_host_of(parts)}",
            f"User-Agent: pocketserve-client/{__version__}",
        ]
        self._headers.append("Accept-Encoding: identity")
        if parts.password is not None:
            self._headers.append(f"Authorization: Basic {_basic(parts)}")
        elif token is not None:
            self._headers.append(f"Authorization: Bearer {token}")
        self._tls: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close_all, self._idle)
        self._timeout, self._max_answer = timeout, max_answer
        self.answered = self._closed = False
        self.reset_after_fork()
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Leave all connections to the process from which this one was forked."""
        _close_all(self._idle)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(
            MAX_AT_ONCE, thread_name_prefix="pocketserve-client"
        )

    def send(self, request: Request) -> Answer:
        """Send a request and read its whole answer."""
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        seconds = request.seconds_left(self._timeout)
        try:
            answer = self._exchange(request, seconds)
        except TimeoutError:
            raise ServerUnreachableError(
                f"{self._url} did not answer within {seconds:.3g} s"
            ) from None
        except (
            HTTPException,
            OSError,
            ValueError,
        ) as error:  # ValueError: of what is hardly HTTP
            reason = getattr(error, "strerror", None) or error
            text = f"{self._url} cannot be reached ({reason}); is the server running? start it with: pocketserve serve"
            had_worked = self.answered and not isinstance(error, ValueError)
            raise (ConnectionLostError if had_worked else ServerUnreachableError)(
                text
            ) from None
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
            _close_all(self._idle)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _exchange(self, request: Request, seconds: float) -> Answer:
        connection = self._take_usable()
        if connection is None:
            connection = self._open(seconds)
        else:
            connection.exchange.begin(seconds, self._max_answer)
        try:
            send_error = _send(connection, self._head_of(request), request)
            with HTTPResponse(connection.sock, method=request.method) as response:
                try:
                    _begin(response)
                    body = _read(response, self._max_answer)
                except (HTTPException, OSError):
                    if send_error is not None:
                        raise send_error from None
                    raise
        except BaseException:
            connection.close()
            raise
        self._give_back(
            connection, is_reusable=send_error is None and not response.will_close
        )
        length = response.headers.get("Inference-Header-Content-Length", "")
        json_length = int(length) if _JSON_LENGTH.fullmatch(length) else None
        return Answer(
            response.status,
            body,
            json_length,
            response.headers.get("Content-Type", JSON),
        )

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
            raise ValueError(
                "a path or the token holds characters that a line of HTTP cannot"
            )
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
        with self._lock:
            if is_reusable and not self._closed and len(self._idle) < MAX_AT_ONCE:
                self._idle.append(connection)
                return
        connection.close()

    def _connection(self, seconds: float) -> _Connection:
        """Return a connection to the server, not opened yet."""
        parts = urlsplit(self._url)
        host = parts.hostname or ""
        if parts.scheme != "https":
            connection = _Connection(host, parts.port, timeout=seconds)
        else:
            connection = _TlsConnection(
                host, parts.port, timeout=seconds, context=self._tls_context()
            )
        connection.exchange = ExchangeLimits()
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            from requests.utils import (
                DEFAULT_CA_BUNDLE_PATH,
            )  # late: a server on this device has no TLS

            self._tls = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH)
        return self._tls

    def _open(self, seconds: float) -> _Connection:
        """Connect, and make sure of the port's owner before anything is sent.

        The owner before and the owner after must be the same run of a server: then it had the port in between, too.
        One that only came afterwards may have taken over from whoever took this connection.

        Raises:
            UnprovenPortError: no server of this user has the port.
        """
        before = self._owner() if self._owner is not None else None
        connection = self._connection(seconds)
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
        return not self.sock.pending() and not poller.poll(0)


class _TlsConnection(_Connection, HTTPSConnection):
    """The same with TLS."""


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


def _host_of(parts: SplitResult) -> str:
    """Return the value of the header ``Host`` for a URL; AddressError for a name that cannot be a server's."""
    host = (parts.hostname or "").partition("%")[0]  # a zone is this device's own
    try:
        host = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise AddressError(
            f"{host[:80]!r} cannot be the name of a server ({error})"
        ) from None
    return host if parts.port is None else f"{host}:{parts.port}"


def _basic(parts: SplitResult) -> str:
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return b64encode(pair.encode()).decode("ascii")


def _send(connection: _Connection, head: bytes, request: Request) -> OSError | None:
    """Send a request; returns the error of a peer that stopped reading, since it may have answered before that."""
    try:
        if request.body_length <= JOINED_BYTES:
            connection.send(b"".join((head, *request.chunks)))
            return None
        for piece in (head, *request.chunks):
            connection.send(piece)
    except (BrokenPipeError, ConnectionResetError) as error:
        return error
    return None


def _begin(response: HTTPResponse) -> None:
    """Read status and headers; BadStatusLine for 101 to 199, which would come before the answer itself."""
    response.begin()
    if response.status < 200:
        raise BadStatusLine(f"status {response.status}")


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
            raise ConnectionLostError(
                "the request is under way in the process from which this one was forked"
            )
        try:
            return self._future.result(timeout)
        except TimeoutError:
            raise ServerUnreachableError(
                f"no answer came within {timeout:g} s"
            ) from None
