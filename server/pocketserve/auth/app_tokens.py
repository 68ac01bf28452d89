"""Named, short-lived and revocable tokens for apps.

The file contains only the SHA-256 of each token. Over HTTP a token is hashed and looked
up. In the socket's handshake the token is the key of an HMAC-SHA256, and RFC 2104
hashes keys that are longer than the hash's block. So these tokens have more than 64
characters, and the server can prove that it knows a token from its hash alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketserve.state.folder_lock import WAIT_S, locked
from pocketserve.state.json_store import file_stamp, replace_json
from pocketserve_wire.files.plain_file import open_plain
from pocketserve_wire.files.run_file import LATEST

TOKEN_BYTES: Final = 64
"""Random bytes: 86 characters, more than HMAC-SHA256's block of 64."""
MAX_TOKENS: Final = 32  # the handshake does not name a token, so the server tries each

MAX_FILE_BYTES: Final = 65_536
MAX_SECONDS: Final = 366 * 86_400
CHECK_INTERVAL_S: Final = 1.0
"""Interval of checking the file; a revoked token is rejected after this time."""

log = logging.getLogger(__name__)

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_DIGEST: Final = r"[0-9a-f]{64}"


class AppTokenError(Exception):
    """The tokens cannot be changed; the message has a way out."""


class AppToken(NamedTuple):
    """An app's token as stored, valid for a wall-clock period."""

    name: str
    sha256: str
    created: float
    expires: float

    @property
    def key(self) -> bytes:
        """Return the HMAC key that is equivalent to the token."""
        return bytes.fromhex(self.sha256)

    def is_good(self, now: float) -> bool:
        """Return whether the token is valid at a time."""
        return self.created <= now < self.expires


def path_of(token_file: Path) -> Path:
    """Return the path of the app tokens' file."""
    return token_file.with_name(f"{token_file.name}.apps.json")


def token_digest(token: bytes) -> str:
    """Return the SHA-256 of a token, 64 hexadecimal digits."""
    import hashlib  # late, because most servers have only one token

    return hashlib.sha256(token).hexdigest()


def read_tokens(path: Path) -> tuple[AppToken, ...]:
    """Return the tokens in a file, or none if it is missing.

    Raises:
        AppTokenError: the file is invalid, unreadable, or readable by others.
    """
    try:
        with open_plain(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise AppTokenError(
            f"the tokens of apps in {path} cannot be read: {error.strerror}"
        ) from None
    if mode & 0o077:
        raise AppTokenError(
            f"others can read the tokens of apps in {path}; run: chmod 600 {path}"
        )
    try:
        if len(content) > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        return tuple(map(_token_of, json.loads(content)["tokens"][:MAX_TOKENS]))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise AppTokenError(
            f"{path} contains no app tokens; delete it and create them again"
        ) from None


def _token_of(entry: Any) -> AppToken:
    token = AppToken(
        name=str(entry["name"]),
        sha256=str(entry["sha256"]),
        created=float(entry["created"]),
        expires=float(entry["expires"]),
    )
    if not (re.fullmatch(NAME, token.name) and re.fullmatch(_DIGEST, token.sha256)):
        raise ValueError("invalid name or hash")
    if not 0 <= token.created <= token.expires <= LATEST:
        raise ValueError("invalid dates")
    return token


def add_token(path: Path, name: str, seconds: float, now: float | None = None) -> str:
    """Create a token, store its hash, and return it.

    Raises:
        AppTokenError: the token cannot be added.
    """
    import secrets  # late, because tokens are rarely created

    if not re.fullmatch(NAME, name):
        raise AppTokenError(
            "a token's name has letters, digits, dots, hyphens and underscores, "
            "64 at most"
        )
    token = secrets.token_urlsafe(TOKEN_BYTES)
    created = time.time() if now is None else now
    digest = token_digest(token.encode("ascii"))
    entry = AppToken(name, digest, created, created + seconds)

    def add(tokens: list[AppToken]) -> list[AppToken]:
        if any(other.name == name for other in tokens):
            raise AppTokenError(
                f"there is a token called {name!r} already; revoke it first: "
                f"--revoke {name}"
            )
        if len(tokens) >= MAX_TOKENS:
            raise AppTokenError(
                f"there are {MAX_TOKENS} app tokens, the limit; revoke one with "
                "--revoke NAME"
            )
        return [*tokens, entry]

    _change(path, created, add)
    return token


def revoke_token(path: Path, name: str, now: float | None = None) -> None:
    """Revoke a token. Running requests continue, new ones are rejected.

    Raises:
        AppTokenError: there is no such token, or it cannot be revoked.
    """

    def remove(tokens: list[AppToken]) -> list[AppToken]:
        remaining = [token for token in tokens if token.name != name]
        if len(remaining) == len(tokens):
            raise AppTokenError(
                f"there is no token called {name!r}; `pocketserve token --list` lists "
                "all"
            )
        return remaining

    _change(path, time.time() if now is None else now, remove)


def _change(
    path: Path,
    now: float,
    change: Callable[[list[AppToken]], list[AppToken]],
    wait_s: float = WAIT_S,
) -> None:
    """Change the file exclusively, and drop expired tokens.

    Once dropped, a token cannot become valid again by a wrong clock.
    """
    with locked(path.parent, wait_s) as is_locked:
        if not is_locked:
            raise AppTokenError(
                f"another program is changing the app tokens in {path}; try again"
            )
        before = list(read_tokens(path))
        after = change([token for token in before if now < token.expires])
        if after == before:
            return
        try:
            replace_json(path, {"tokens": [token._asdict() for token in after]})
        except OSError as error:
            raise AppTokenError(
                f"the app tokens in {path} cannot be changed: {error.strerror}"
            ) from None


class AppTokens:
    """A running server's app tokens, reloaded on changes. Thread-safe.

    Setting the clock back while the server runs does not extend a token, because
    elapsed time counts. Expired tokens are removed from the file, so a clock that jumps
    ahead ends them for good.
    """

    def __init__(
        self,
        path: Path,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._wall, self._clock = wall, clock
        self._by_digest: dict[str, AppToken] = {}
        self._stamp: tuple[int, ...] | None = None
        self._check_at = clock()
        self._latest = wall(), clock()

    def all(self) -> tuple[AppToken, ...]:
        """Return the valid tokens."""
        self._refresh()
        if not self._by_digest:
            return ()
        now = self._now()
        return tuple(token for token in self._by_digest.values() if token.is_good(now))

    def keys(self) -> dict[AppToken, bytes]:
        """Return the valid tokens with their HMAC keys."""
        return {token: token.key for token in self.all()}

    def find(self, presented: bytes) -> AppToken | None:
        """Return the valid token that was presented, or None."""
        self._refresh()
        if not self._by_digest:
            return None
        # Looking up hashes leaks nothing, because a client cannot choose a hash.
        token = self._by_digest.get(token_digest(presented))
        if token is None or not token.is_good(self._now()):
            return None
        return token

    def is_good(self, token: AppToken) -> bool:
        """Return whether an accepted token is still valid."""
        self._refresh()
        return self._by_digest.get(token.sha256) == token and token.is_good(self._now())

    def _now(self) -> float:
        """Return the current time, which never goes backwards."""
        latest, at = self._latest  # one tuple, so that threads read both consistently
        clock = self._clock()
        now = max(self._wall(), latest + clock - at)
        self._latest = now, clock
        return now

    def _refresh(self) -> None:
        now = self._clock()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_INTERVAL_S
        stamp = file_stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        if self._by_digest:
            self._drop_expired(self._now())

    def _read(self) -> None:
        try:
            tokens = read_tokens(self._path)
        except AppTokenError as error:
            log.warning("%s; no app token is accepted", error)
            tokens = ()
        self._by_digest = {token.sha256: token for token in tokens}

    def _drop_expired(self, now: float) -> None:
        good = {
            key: token for key, token in self._by_digest.items() if now < token.expires
        }
        if len(good) < len(self._by_digest):
            self._by_digest = good
            with contextlib.suppress(AppTokenError):  # retried at the next check
                _change(self._path, now, list, wait_s=0.0)
