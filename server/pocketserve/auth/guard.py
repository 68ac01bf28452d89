"""Check the token and the origin of requests.

Every app on a phone can reach a loopback port, and every web page can make a browser
send requests to it. So each request needs the token, and requests of foreign pages are
rejected before routing, by their ``Host`` (DNS rebinding) and ``Origin`` headers.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.auth.origins import AllowedOrigins, refusal_of_origin
from pocketserve.state.permissions import make_private_folder
from pocketserve.system import is_loopback
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.files.plain_file import open_plain

if TYPE_CHECKING:
    from pocketserve.auth.app_tokens import AppTokens
    from pocketserve.auth.web_sessions import WebSessions

TOKEN_BYTES = 32
MAX_CHECKED_HOSTS = 64  # Host headers that a guard caches
MAX_HOST = 256  # characters of a cached Host header
PAGE = "/page"  # the client's name for a session of the page; not a valid app name
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
# Each opening of the page has its own name, which browsers resolve without DNS.
_FRESH_ORIGIN = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.localhost"
_TOKEN = r"[A-Za-z0-9_-]{32,256}"


class TokenFileError(Exception):
    """A token file that cannot be used; the message explains why."""


def read_token(path: Path) -> str:
    """Read a token that only its owner can read.

    Raises:
        TokenFileError: the file is missing, invalid, or readable by others.
    """
    try:
        with open_plain(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise TokenFileError(
            f"the token file {path} cannot be read: {error.strerror}"
        ) from None
    if mode & 0o077:
        raise TokenFileError(
            f"the token file {path} can be read by others; run: chmod 600 {path}"
        )
    if not re.fullmatch(_TOKEN, text):
        raise TokenFileError(
            f"the token file {path} contains no token; delete it and start the server "
            "again"
        )
    return text


def ensure_token(path: Path) -> str:
    """Read the token, or create a random one.

    Raises:
        TokenFileError: the file cannot be read or created.
    """
    try:
        make_private_folder(path.parent)
        # O_EXCL: if two servers start together, one creates the file.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        _wait_for_content(path)
        return read_token(path)
    except OSError as error:
        raise TokenFileError(
            f"the token file {path} cannot be created: {error.strerror}"
        ) from None
    import secrets  # late, because an installation creates one token

    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
    except OSError as error:
        path.unlink(missing_ok=True)  # an empty file would be rejected for ever
        raise TokenFileError(
            f"the token file {path} cannot be created: {error.strerror}; "
            "make room on the device"
        ) from None
    return token


def _wait_for_content(path: Path) -> None:
    """Wait while another server writes its new token file."""
    with contextlib.suppress(OSError):  # reading it will report the error
        for _ in range(50):
            if path.stat().st_size:
                return
            time.sleep(0.01)


class Guard:
    """Authorizes requests by their headers; all if there is no token."""

    def __init__(
        self,
        token: str | None,
        extra_hosts: Iterable[str] = (),
        apps: AppTokens | None = None,
        pages: WebSessions | None = None,
        allowed_origins: Iterable[str] = (),
    ) -> None:
        self._apps = apps
        self._pages = pages
        self.origins = AllowedOrigins(allowed_origins)
        self.has_origins = bool(self.origins)
        self._token = token.encode("ascii") if token is not None else None
        self._bearer = b"Bearer " + (self._token or b"")
        self._checked_hosts: set[str] = set()  # Host headers of this machine
        self._hosts = LOOPBACK_HOSTS | {host.lower() for host in extra_hosts}

    @property
    def is_open(self) -> bool:
        """Return whether everybody is authorized."""
        return self._token is None

    def _is_own_name(self, name: str) -> bool:
        if name in self._hosts or is_loopback(name):
            return True
        return re.fullmatch(_FRESH_ORIGIN, name) is not None

    def check_source(
        self, host: str | None, origin: str | None, *, own_page: bool = False
    ) -> None:
        """Reject requests of foreign web pages: HOST_REFUSED or ORIGIN_REFUSED.

        Args:
            own_page: allow only this server's pages, and not ``allowed_origins``.
        """
        if origin is None and host in self._checked_hosts:
            return
        match = _HOST.fullmatch(host or "")
        name = match[1].lower() if match is not None else ""
        if match is None or int(match[2] or 0) > 65535 or not self._is_own_name(name):
            raise ApiError(ErrorCode.HOST_REFUSED, _refusal_of_host(name))
        if len(self._checked_hosts) < MAX_CHECKED_HOSTS and len(match[0]) < MAX_HOST:
            self._checked_hosts.add(match[0])
        if origin is None or self.is_own_origin(match[0], origin):
            return
        if origin not in self.origins:
            raise ApiError(ErrorCode.ORIGIN_REFUSED, refusal_of_origin(origin))
        if own_page:
            raise ApiError(
                ErrorCode.ORIGIN_REFUSED, "this is for the server's own page only"
            )

    def is_own_origin(self, host: str | None, origin: str) -> bool:
        """Return whether a page came from this server, given its Host header."""
        own = (host or "").lower()
        return origin.lower() in (f"http://{own}", f"https://{own}")

    def identify(self, authorization: str | None) -> str | None:
        """Return the owner of a token; None if it is not valid.

        The owner is "" for the installation's own token, and if none is needed;
        ``PAGE`` for a session; else the app's name.

        Args:
            authorization: ``Bearer TOKEN``, or ``Basic`` with the token as password.
        """
        if self._token is None:
            return ""
        header = authorization or ""
        # All comparisons take constant time.
        if hmac.compare_digest(header.encode(errors="replace"), self._bearer):
            return ""
        presented = _presented(header)
        if hmac.compare_digest(presented, self._token):
            return ""
        if self._apps is not None:
            app = self._apps.find(presented)
            if app is not None:
                return app.name
        if self._pages is not None and self._pages.is_session(presented):
            return PAGE
        return None

    def check_token(self, authorization: str | None) -> str | None:
        """Return the app or ``PAGE`` whose token it is, None for the installation's.

        Raises:
            ApiError: UNAUTHORIZED, which does not tell the cause.
        """
        owner = self.identify(authorization)
        if owner is None:
            raise self.unauthorized()
        return owner or None

    @staticmethod
    def unauthorized() -> ApiError:
        """Return the error for an invalid token."""
        return ApiError(
            ErrorCode.UNAUTHORIZED,
            "a valid token is required: send 'Authorization: Bearer TOKEN' "
            "(pocketserve token prints it)",
        )


def _refusal_of_host(name: str) -> str:
    text = "the Host header must name this machine: 127.0.0.1, localhost or [::1]"
    if not name:
        return text
    return (
        f"{text}; to be reached as {name:.253}, start the server with "
        f"--allowed-hosts {name:.253}"
    )


def _presented(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    scheme, value = scheme.lower(), value.strip()
    if scheme == "bearer":
        return value.encode("utf-8", errors="replace")
    if scheme == "basic":
        import base64  # late, because programs send Bearer

        with contextlib.suppress(ValueError):
            return base64.b64decode(value, validate=True).partition(b":")[2]
    return b""
