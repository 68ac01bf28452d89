"""The HTTP transport of the client."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import requests

from pocketserve_client import forks
from pocketserve_client.errors import ConnectionLostError, ServerUnreachableError
from pocketserve_client.transport import JSON, Answer, Request

DEFAULT_URL = "http://127.0.0.1:8470"
MOST_AT_ONCE = 8
"""Requests that are under way together when they are started without waiting; further ones stand in line."""

_BROKEN = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
"""What a connection that breaks before, and within, an answer ends in."""


class HttpTransport:
    """Sends requests over one kept-alive connection pool. May be used from several threads.

    Args:
        url: the server's address, such as ``http://127.0.0.1:8470``.
        token: sent with every request; None sends none.
        timeout: seconds for connecting, and for each wait for bytes.

    Attributes:
        answered: whether the server has ever answered.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._token = token
        self.answered = False
        self._closed = False
        self.start_anew()
        forks.watch(self)

    def start_anew(self) -> None:
        """Leave all connections to the process from which this one was forked."""
        self._session = requests.Session()
        # A loopback server is never behind a proxy, whatever the environment says; and no .netrc entry may take
        # the place of the token.
        self._session.trust_env = False
        self._session.headers["Accept-Encoding"] = "identity"
        if self._token is not None:
            self._session.headers["Authorization"] = f"Bearer {self._token}"
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def send(self, request: Request) -> Answer:
        """Send one request and read its whole answer.

        Raises:
            ServerUnreachableError: none came. ConnectionLostError: the server had answered before.
        """
        if self._closed:
            raise ServerUnreachableError("the client was closed")
        try:
            response = self._session.request(
                request.method,
                self._url + request.path,
                data=_body(request),
                headers=_headers(request),
                timeout=self._timeout,
                allow_redirects=False,
            )
        except requests.Timeout:
            raise ServerUnreachableError(f"{self._url} did not answer within {self._timeout:g} s") from None
        except requests.RequestException as error:
            lost = self.answered and isinstance(error, _BROKEN)
            raise (ConnectionLostError if lost else ServerUnreachableError)(
                f"{self._url} cannot be reached ({_cause(error)}); is the server running? start it with: "
                "pocketserve serve"
            ) from None
        self.answered = True
        length = response.headers.get("Inference-Header-Content-Length", "")
        return Answer(
            response.status_code,
            response.content,
            int(length) if length.isdecimal() else None,
            response.headers.get("Content-Type", JSON),
        )

    def start(self, request: Request) -> HttpPending:
        """Send one request on another thread: HTTP/1.1 connections take one request at a time."""
        with self._lock:
            if self._closed:
                raise ServerUnreachableError("the client was closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="pocketserve-client")
            return HttpPending(self._pool.submit(self.send, request))

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        self._session.close()


class HttpPending:
    """A request on its way. See :class:`pocketserve_client.transport.Pending`."""

    def __init__(self, future: Future[Answer]) -> None:
        self._future = future
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer.

        Raises:
            ServerUnreachableError: none came.
        """
        if os.getpid() != self._process and not self._future.done():
            raise ConnectionLostError("the request is under way in the process from which this one was forked")
        try:
            return self._future.result(timeout)
        except FutureTimeoutError:
            raise ServerUnreachableError(f"no answer came within {timeout:g} s") from None

    def done(self) -> bool:
        """Whether the answer, or the failure, is there."""
        return self._future.done()

    def cancel(self) -> None:
        """Give up a request that was not sent yet; one that was sent cannot be called back over HTTP."""
        self._future.cancel()


def _body(request: Request) -> bytes | None:
    if not request.chunks:
        return None if request.method == "GET" else b""
    return bytes(request.chunks[0]) if len(request.chunks) == 1 else b"".join(request.chunks)


def _headers(request: Request) -> dict[str, str]:
    headers = {"Content-Type": request.content_type} if request.chunks else {}
    if 0 < request.json_length < request.body_length:
        headers["Inference-Header-Content-Length"] = str(request.json_length)
    return headers


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        candidates = (getattr(seen, "reason", None), *seen.args[:1], seen.__cause__)
        seen = next((item for item in candidates if isinstance(item, BaseException)), None)


def _cause(error: BaseException) -> str:
    """The innermost reason: requests wraps the operating system's error several times."""
    *_, innermost = _causes(error)
    return str(getattr(innermost, "strerror", None) or innermost)
