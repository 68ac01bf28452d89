"""The HTTP transport of the client."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.cookiejar import DefaultCookiePolicy
from typing import Final
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError, ReadTimeoutError

from pocketserve_client import fork_safety
from pocketserve_client.bounded import BoundedAdapter, ExchangeLimits, Owner, answer_too_large
from pocketserve_client.errors import ConnectionLostError, NotOurServerError, ServerUnreachableError
from pocketserve_client.transport import JSON, Answer, Request

DEFAULT_URL = "http://127.0.0.1:8470"
MAX_AT_ONCE = 8  # requests that are under way together when they are started without waiting; further ones wait
DEFAULT_MAX_ANSWER_BYTES: Final = 256 << 20
MAX_REDIRECTS: Final = 5
PIECE_BYTES: Final = 1 << 20  # what is read of a body at a time
FETCH_ERRORS: Final = (requests.RequestException, HTTPError, OSError, ValueError)  # of what is hardly HTTP, too
_JSON_LENGTH = re.compile(r"[0-9]{1,10}")


class HttpTransport:
    """Sends requests over one kept-alive connection pool. May be used from several threads.

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
        self._url, self._token, self._owner = url.rstrip("/"), token, owner
        self._timeout, self._max_answer = timeout, max_answer
        self.answered = self._closed = False
        self.reset_after_fork()
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Leave all connections to the process from which this one was forked."""
        self._exchange = ExchangeLimits()
        self._session = bounded_session(self._exchange, self._owner)
        if self._token is not None:
            self._session.headers["Authorization"] = f"Bearer {self._token}"
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="pocketserve-client")

    def send(self, request: Request) -> Answer:
        """Send a request and read its whole answer."""
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        headers = {"Content-Type": request.content_type} if request.chunks else {}
        if 0 < request.json_length < request.body_length:
            headers["Inference-Header-Content-Length"] = str(request.json_length)
        seconds = request.seconds_left(self._timeout)
        self._exchange.begin(seconds, self._max_answer)
        try:
            with self._session.request(
                request.method,
                self._url + request.path,
                data=b"".join(request.chunks) if request.chunks or request.method != "GET" else None,
                headers=headers,
                timeout=seconds,
                allow_redirects=False,
                stream=True,
            ) as response:
                content = _read(response, self._max_answer)
        except (requests.Timeout, ReadTimeoutError, TimeoutError):
            raise ServerUnreachableError(f"{self._url} did not answer within {seconds:.3g} s") from None
        except FETCH_ERRORS as error:
            had_worked = self.answered and isinstance(error, (requests.ConnectionError, HTTPError))
            text = f"{self._url} cannot be reached ({innermost_reason(error)}); is the server running?"
            kind = ConnectionLostError if had_worked else ServerUnreachableError
            raise kind(f"{text} start it with: pocketserve serve") from None
        self.answered = True
        length = response.headers.get("Inference-Header-Content-Length", "")
        json_length = int(length) if _JSON_LENGTH.fullmatch(length) else None
        return Answer(response.status_code, content, json_length, response.headers.get("Content-Type", JSON))

    def start(self, request: Request) -> HttpPending:
        """Send a request on another thread: HTTP/1.1 connections take one request at a time."""
        with self._lock:
            if self._closed:
                raise ServerUnreachableError("the client was closed")
            return HttpPending(self._pool.submit(self.send, request))

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._session.close()


def fetch(url: str, seconds: float, max_bytes: int) -> bytes:
    """Return what lies at an address of HTTP; nothing of this user goes there, neither token nor cookie.

    Args:
        seconds: for all of it, redirects included.

    Raises:
        ServerUnreachableError: it cannot be had within these bounds; the text says why.
    """
    exchange = ExchangeLimits()
    exchange.begin(seconds, max_bytes)
    try:
        with bounded_session(exchange) as session, open_address(session, url, seconds) as response:
            if response.status_code != 200:
                raise ServerUnreachableError(f"{url} cannot be fetched: it answers {response.status_code}")
            return _read(response, max_bytes)
    except NotOurServerError:
        raise ServerUnreachableError(f"{url} holds more than {max_bytes:,} bytes") from None
    except FETCH_ERRORS as error:
        raise ServerUnreachableError(f"{url} cannot be fetched: {innermost_reason(error)}") from None


def bounded_session(exchange: ExchangeLimits, owner: Owner | None = None) -> requests.Session:
    """Return a session whose exchanges keep within limits, with no cookies and nothing of the environment."""
    session = _Session()
    # A loopback server is never behind a proxy, whatever the environment says; and no .netrc entry may take
    # the place of the token.
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    for scheme in ("http://", "https://"):
        session.mount(scheme, BoundedAdapter(exchange, owner))
    session.headers["Accept-Encoding"] = "identity"
    return session


def open_address(
    session: requests.Session, url: str, seconds: float, headers: Callable[[str], Mapping[str, str]] = lambda url: {}
) -> requests.Response:
    """Return the response at an address, its body unread, once redirects are followed; never from HTTPS to HTTP.

    Args:
        headers: returns what to send to an address; it may refuse the address by an error.

    Raises:
        ServerUnreachableError: there are too many redirects, or one leads to HTTP.
    """
    start = url
    for _ in range(MAX_REDIRECTS + 1):
        response = session.get(url, headers=headers(url), timeout=seconds, allow_redirects=False, stream=True)
        if not response.is_redirect:
            return response
        response.close()
        onward = urljoin(url, response.headers["Location"])  # to HTTP only: the session knows no other schemes
        if urlsplit(url).scheme == "https" and urlsplit(onward).scheme != "https":
            raise ServerUnreachableError(f"{start} cannot be fetched: it leads to an address without HTTPS")
        url = onward
    raise ServerUnreachableError(f"{start} cannot be fetched: more than {MAX_REDIRECTS} addresses lead to others")


def _read(response: requests.Response, max_bytes: int) -> bytes:
    """Read a body as it was sent: unpacking is not asked for, and would let few bytes become many."""
    pieces, length = [], 0
    for piece in response.raw.stream(PIECE_BYTES, decode_content=False):
        pieces.append(piece)
        length += len(piece)
        if length > max_bytes:
            raise answer_too_large()
    response.raw.release_conn()  # an empty body leaves that to us
    return b"".join(pieces)


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Look for none: even where it does not follow them, the library reads and unpacks their bodies without end."""


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


def innermost_reason(error: BaseException) -> str:
    """Return the innermost reason: requests wraps the operating system's error several times."""
    while True:
        candidates = (getattr(error, "reason", None), *error.args[:1], error.__cause__)
        inner = next((item for item in candidates if isinstance(item, BaseException)), None)
        if inner is None:
            return str(getattr(error, "strerror", None) or error)
        error = inner
