"""The HTTP transport of the client."""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import threading
import weakref
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
    FROZEN,
    AddressError,
    ConnectionLostError,
    ServerUnreachableError,
    UnprovenPortError,
)
from pocketserve_client.language.streams import MAX_LINE_BYTES
from pocketserve_client.transport import JSON, Answer, Request
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK, Address
from pocketserve_wire.files.run_file import Run
from pocketserve_wire.version import __version__

DEFAULT_URL = f"http://{Address(LOOPBACK, HTTP_PORT)}"
MAX_AT_ONCE = 8  # concurrent requests on threads, and idle connections that are kept
DEFAULT_MAX_ANSWER_BYTES: Final = 256 << 20
PIECE_BYTES: Final = 1 << 20
"""Bytes per read of a body without a length."""

JOINED_BYTES: Final = 256 << 10
"""Largest body that is copied after its head; longer ones are sent without a copy."""
_IN_A_PATH: Final = "/%!$&'()*+,;=:@~"  # besides letters and digits
_JSON_LENGTH = re.compile(r"[0-9]{1,10}")
Owner = Callable[[], Run | None]
"""Returns this user's server that has the port now."""


class HttpTransport:
    """Sends requests over kept-alive connections. Thread-safe.

    There is no proxy in front of a server on loopback, so the environment and
    ``.netrc`` are not used. Cookies are not kept, and redirects are not followed.

    Args:
        token: sent with every request; None sends none. A user name and password in the
            URL replace it.
        timeout: seconds for each exchange, from connecting to the answer's last byte.
        owner: if given, nothing is sent unless a server of this user has the port.
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
        """Drop all connections of the parent process."""
        _close_all(self._idle)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(
            MAX_AT_ONCE, thread_name_prefix="pocketserve-client"
        )

    def send(self, request: Request) -> Answer:
        """Send a request and read the whole answer."""
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        seconds = request.seconds_left(self._timeout)
        try:
            answer = self._exchange(request, seconds)
        except TimeoutError:
            raise ServerUnreachableError(
                f"{self._url} did not answer within {seconds:.3g} s; {FROZEN}"
            ) from None
        # http.client raises ValueError for answers that are hardly HTTP.
        except (HTTPException, OSError, ValueError) as error:
            raise self._unreachable(error) from None
        self.answered = True
        return answer

    def stream(self, request: Request) -> HttpStream:
        """Send a request, and return the lines of its answer as they come."""
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        seconds = request.seconds_left(self._timeout)
        with self._failures(seconds):
            connection = self._open(seconds)
        return HttpStream(connection, self._stream(connection, request, seconds))

    def _stream(
        self, connection: _Connection, request: Request, seconds: float
    ) -> Generator[bytes | Answer, None, None]:
        with self._failures(seconds):
            try:
                yield from self._lines(connection, request)
            finally:
                connection.close()

    @contextmanager
    def _failures(self, seconds: float) -> Iterator[None]:
        """Convert the errors of an exchange that takes so long at most."""
        try:
            yield
        except TimeoutError:
            raise ServerUnreachableError(
                f"{self._url} did not answer within {seconds:.3g} s"
            ) from None
        except (HTTPException, OSError, ValueError) as error:
            raise self._unreachable(error) from None

    def _lines(
        self, connection: _Connection, request: Request
    ) -> Iterator[bytes | Answer]:
        _send(connection, self._head_of(request), request)
        with HTTPResponse(connection.sock, method=request.method) as response:
            _begin(response)
            self.answered = True
            if response.status != 200:
                content_type = response.headers.get("Content-Type", JSON)
                body = _read(response, self._max_answer)
                yield Answer(response.status, body, None, content_type)
                return
            while line := response.readline(MAX_LINE_BYTES):
                yield line

    def _unreachable(self, error: Exception) -> ServerUnreachableError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerUnreachableError(self._unverified(error))
        reason = getattr(error, "strerror", None) or error
        text = (
            f"{self._url} cannot be reached ({reason}); is the server running? "
            "start it with: pocketserve serve"
        )
        if self.answered and not isinstance(error, ValueError):
            return ConnectionLostError(text)
        return ServerUnreachableError(text)

    def start(self, request: Request) -> HttpPending:
        """Send a request on another thread, as HTTP/1.1 allows one per connection."""
        with self._lock:
            if self._closed:
                raise ServerUnreachableError("the client was closed")
            return HttpPending(self._pool.submit(self.send, request))

    def close(self) -> None:
        """Close idle connections now, and the others after their answer."""
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
                body = self._read_answer(response, send_error)
        except BaseException:
            connection.close()
            raise
        is_reusable = send_error is None and not response.will_close
        self._give_back(connection, is_reusable=is_reusable)
        length = response.headers.get("Inference-Header-Content-Length", "")
        json_length = int(length) if _JSON_LENGTH.fullmatch(length) else None
        content_type = response.headers.get("Content-Type", JSON)
        return Answer(response.status, body, json_length, content_type)

    def _read_answer(self, response: HTTPResponse, send_error: OSError | None) -> bytes:
        """Read the answer; raise ``send_error`` if there is none."""
        try:
            _begin(response)
            return _read(response, self._max_answer)
        except (HTTPException, OSError):
            if send_error is not None:
                raise send_error from None
            raise

    def _head_of(self, request: Request) -> bytes:
        """Return request line and headers, sent together with a small body.

        Raises:
            ValueError: a path or token contains characters that would end its line.
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
                "the path or the token has characters that HTTP does not allow"
            )
        return "\r\n".join((*lines, "", "")).encode("ascii")

    def _take(self) -> _Connection | None:
        try:
            return self._idle.pop()  # the most recently used one
        except IndexError:
            return None

    def _take_usable(self) -> _Connection | None:
        """Return an idle connection that the server has not closed."""
        while True:
            connection = self._take()
            if connection is None or connection.is_silent():
                return connection
            connection.close()

    def _give_back(self, connection: _Connection, *, is_reusable: bool) -> None:
        """Keep a reusable connection for the next request, or close it."""
        with self._lock:
            if is_reusable and not self._closed and len(self._idle) < MAX_AT_ONCE:
                self._idle.append(connection)
                return
        connection.close()

    def _connection(self, seconds: float) -> _Connection:
        """Return a new connection, not opened yet."""
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
            self._tls = ssl.create_default_context()
        return self._tls

    def _unverified(self, error: ssl.SSLCertVerificationError) -> str:
        """Return the message for a certificate that no authority vouches for."""
        reason = error.verify_message or "certificate verify failed"
        text = f"{self._url} cannot be trusted ({reason}), so nothing was sent to it; "
        if self._tls is not None and not self._tls.cert_store_stats()["x509_ca"]:
            text += "Python found no certificates of authorities on this system: "
        return (
            f"{text}name a file of trusted certificates in the environment variable"
            " SSL_CERT_FILE"
        )

    def _open(self, seconds: float) -> _Connection:
        """Connect, and verify the port's owner before anything is sent.

        The owner before and after connecting must be the same run of a server: then it
        had the port in between, too. A server found only afterwards may have replaced
        the program that accepted this connection.

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
                    "nothing listens for the socket protocol, and nothing proves that "
                    f"the listener on {connection.host}:{connection.port} is your "
                    "server, so nothing was sent to it; start the server with: "
                    "pocketserve serve, or name the address (--url, POCKETSERVE_URL or "
                    f"Client('{self._url}')) if you know who listens there"
                )
        except BaseException:
            connection.close()
            raise
        return connection


class HttpStream:
    """The lines of an answer; its connection serves no other request."""

    def __init__(
        self, connection: _Connection, lines: Generator[bytes | Answer, None, None]
    ) -> None:
        self._connection = connection
        self._lines = lines

    def __next__(self) -> bytes | Answer:
        return next(self._lines)

    def close(self) -> None:
        """End the answer; a thread that reads it fails, and closes the connection."""
        with suppress(OSError, AttributeError):  # closed already
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        with suppress(ValueError):  # another thread reads
            self._lines.close()
            self._connection.close()


class _Connection(BoundedConnection, HTTPConnection):
    """A connection without TLS."""

    def is_silent(self) -> bool:
        """Return whether an idle connection is open and has received nothing."""
        poller = select.poll()
        poller.register(self.sock.fileno(), select.POLLIN)
        return not self.sock.pending() and not poller.poll(0)


class _TlsConnection(_Connection, HTTPSConnection):
    """A connection with TLS."""


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


def _host_of(parts: SplitResult) -> str:
    """Return the ``Host`` header for a URL; raise AddressError if it is invalid."""
    host = (parts.hostname or "").partition("%")[0]  # without a local zone
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
    """Send a request; return the error of a server that stopped reading.

    It may have answered before that.
    """
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
    """Read status and headers; reject informational responses (101 to 199)."""
    response.begin()
    if response.status < 200:
        raise BadStatusLine(f"status {response.status}")


def _read(response: HTTPResponse, max_bytes: int) -> bytes:
    """Read a body as sent; compressed bodies are not requested, so never expand."""
    if response.length is not None:
        if response.length > max_bytes:
            raise answer_too_large()
        return response.read()
    pieces: list[bytes] = []
    length = 0
    while length <= max_bytes:
        piece = response.read(PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        length += len(piece)
    raise answer_too_large()


class HttpPending:
    """A request in progress on another thread."""

    def __init__(self, future: Future[Answer]) -> None:
        self._future = future
        self._process = os.getpid()
        self.is_done = future.done
        self.cancel = future.cancel  # HTTP cannot cancel a request that was sent

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer; by default for the duration of the exchange."""
        if os.getpid() != self._process and not self._future.done():
            raise ConnectionLostError(
                "the request is in progress in the process from which this one was "
                "forked"
            )
        try:
            return self._future.result(timeout)
        except TimeoutError:
            raise ServerUnreachableError(
                f"no answer came within {timeout:g} s"
            ) from None
