"""Bounded fetches from other servers, without our token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Final
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from pocketserve_client.bounded import (
    BoundedConnection,
    ExchangeLimits,
    answer_too_large,
)
from pocketserve_client.errors import NotOurServerError, ServerUnreachableError

MAX_REDIRECTS: Final = 5
PIECE_BYTES: Final = 1 << 20  # of a body are read at a time
FETCH_ERRORS: Final = (
    requests.RequestException,
    HTTPError,
    OSError,
    ValueError,
)
"""Errors of a fetch, including those that responses in broken HTTP cause."""


def fetch(url: str, seconds: float, max_bytes: int) -> bytes:
    """Return the content at an address, without sending credentials.

    Args:
        seconds: the limit for the whole fetch, redirects included.

    Raises:
        ServerUnreachableError: it can't be fetched within these bounds; the text says why.
    """
    exchange = ExchangeLimits()
    exchange.begin(seconds, max_bytes)
    try:
        with (
            bounded_session(exchange) as session,
            open_address(session, url, seconds) as response,
        ):
            if response.status_code != 200:
                raise ServerUnreachableError(
                    f"{url} cannot be fetched: "
                    f"the server answers {response.status_code}"
                )
            return _read(response, max_bytes)
    except NotOurServerError:
        raise ServerUnreachableError(
            f"{url} has more than {max_bytes:,} bytes"
        ) from None
    except FETCH_ERRORS as error:
        raise ServerUnreachableError(
            f"{url} cannot be fetched: {innermost_reason(error)}"
        ) from None


def bounded_session(exchange: ExchangeLimits) -> requests.Session:
    """Return a bounded session without cookies and settings of the environment."""
    session = _HttpSession()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    for scheme in ("http://", "https://"):
        session.mount(scheme, _BoundedAdapter(exchange))
    session.headers["Accept-Encoding"] = "identity"
    return session


def open_address(
    session: requests.Session,
    url: str,
    seconds: float,
    headers: Callable[[str], Mapping[str, str]] = lambda url: {},
) -> requests.Response:
    """Follow redirects, and return the response with its body unread.

    Redirects from HTTPS to HTTP are rejected.

    Args:
        headers: returns the headers to send to an address; it may raise to reject it.

    Raises:
        ServerUnreachableError: there are too many redirects, or one leads to HTTP.
    """
    address = url
    for _ in range(MAX_REDIRECTS + 1):
        response = session.get(
            address,
            headers=headers(address),
            timeout=seconds,
            allow_redirects=False,
            stream=True,
        )
        if not response.is_redirect:
            return response
        response.close()
        # The session rejects other schemes than HTTP and HTTPS.
        target = urljoin(address, response.headers["Location"])
        if _is_https(address) and not _is_https(target):
            raise ServerUnreachableError(
                f"{url} cannot be fetched: it redirects to an address without HTTPS"
            )
        address = target
    raise ServerUnreachableError(
        f"{url} cannot be fetched: it redirects more than {MAX_REDIRECTS} times"
    )


def _is_https(url: str) -> bool:
    return urlsplit(url).scheme == "https"


def _read(response: requests.Response, max_bytes: int) -> bytes:
    """Read a body without decompression, which could make few bytes many."""
    pieces = []
    length = 0
    for piece in response.raw.stream(PIECE_BYTES, decode_content=False):
        pieces.append(piece)
        length += len(piece)
        if length > max_bytes:
            raise answer_too_large()
    response.raw.release_conn()  # requests doesn't after an empty body
    return b"".join(pieces)


class _BoundedAdapter(HTTPAdapter):
    """Opens the bounded connections for ``requests``."""

    def __init__(self, exchange: ExchangeLimits) -> None:
        super().__init__()
        self.poolmanager.pool_classes_by_scheme = {
            scheme: type(
                pool.__name__, (pool,), {"ConnectionCls": _bounded(base, exchange)}
            )
            for scheme, pool, base in (
                ("http", HTTPConnectionPool, HTTPConnection),
                ("https", HTTPSConnectionPool, HTTPSConnection),
            )
        }


def _bounded(base: type, exchange: ExchangeLimits) -> type:
    return type(base.__name__, (BoundedConnection, base), {"exchange": exchange})


class _HttpSession(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: requests reads redirects' bodies without a limit."""


def innermost_reason(error: BaseException) -> str:
    """Return the root cause: requests wraps the system's error several times."""
    while True:
        inner = _inner_error(error)
        if inner is None:
            return str(getattr(error, "strerror", None) or error)
        error = inner


def _inner_error(error: BaseException) -> BaseException | None:
    for item in (getattr(error, "reason", None), *error.args[:1], error.__cause__):
        if isinstance(item, BaseException):
            return item
    return None
