"""Fetch what lies at an address of the web by ``requests``, within a time and a number of bytes, without our token."""

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
PIECE_BYTES: Final = 1 << 20  # what is read of a body at a time
FETCH_ERRORS: Final = (
    requests.RequestException,
    HTTPError,
    OSError,
    ValueError,
)  # of what is hardly HTTP, too


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
        with (
            bounded_session(exchange) as session,
            open_address(session, url, seconds) as response,
        ):
            if response.status_code != 200:
                raise ServerUnreachableError(
                    f"{url} cannot be fetched: it answers {response.status_code}"
                )
            return _read(response, max_bytes)
    except NotOurServerError:
        raise ServerUnreachableError(
            f"{url} holds more than {max_bytes:,} bytes"
        ) from None
    except FETCH_ERRORS as error:
        raise ServerUnreachableError(
            f"{url} cannot be fetched: {innermost_reason(error)}"
        ) from None


def bounded_session(exchange: ExchangeLimits) -> requests.Session:
    """Return a session whose exchanges keep within limits, with no cookies and nothing of the environment."""
    session = _Session()
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
    """Return the response at an address, its body unread, once redirects are followed; never from HTTPS to HTTP.

    Args:
        headers: returns what to send to an address; it may refuse the address by an error.

    Raises:
        ServerUnreachableError: there are too many redirects, or one leads to HTTP.
    """
    start = url
    for _ in range(MAX_REDIRECTS + 1):
        response = session.get(
            url,
            headers=headers(url),
            timeout=seconds,
            allow_redirects=False,
            stream=True,
        )
        if not response.is_redirect:
            return response
        response.close()
        onward = urljoin(
            url, response.headers["Location"]
        )  # to HTTP only: the session knows no other schemes
        if urlsplit(url).scheme == "https" and urlsplit(onward).scheme != "https":
            raise ServerUnreachableError(
                f"{start} cannot be fetched: it leads to an address without HTTPS"
            )
        url = onward
    raise ServerUnreachableError(
        f"{start} cannot be fetched: more than {MAX_REDIRECTS} addresses lead to others"
    )


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


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """Look for none: even where it does not follow them, the library reads and unpacks their bodies without end."""


def innermost_reason(error: BaseException) -> str:
    """Return the innermost reason: requests wraps the operating system's error several times."""
    while True:
        candidates = (getattr(error, "reason", None), *error.args[:1], error.__cause__)
        inner = next(
            (item for item in candidates if isinstance(item, BaseException)), None
        )
        if inner is None:
            return str(getattr(error, "strerror", None) or error)
        error = inner
