"""Tokens of single apps: named, short-lived, and revoked one by one; the installation's own token lives on.

The file holds no token but the SHA-256 of each. Over HTTP a token is hashed and looked up. In the socket's handshake
the token is the key of an HMAC-SHA256, and RFC 2104 hashes a key that is longer than the hash's block before use: so
these tokens have more than 64 characters, and their hash is all that the server needs to prove that it knows them.
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

TOKEN_BYTES: Final = (
    64  # random bytes, 86 characters: more than HMAC-SHA256's block of 64
)
MAX_TOKENS: Final = 32  # the handshake names no token, so the server tries each

MAX_FILE_BYTES: Final = 65_536
MAX_SECONDS: Final = 366 * 86_400
LOOK_S: Final = 1.0  # how often the file is checked while requests come: a revoked token is refused after so long

log = logging.getLogger(__name__)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class AppTokenError(Exception):
    """The tokens cannot be changed as asked; the text is one sentence with the way out."""


class AppToken(NamedTuple):
    """An app's token, as the server knows it. It is good from the one time to the other, by the wall clock."""

    name: str
    sha256: str
    created: float
    expires: float

    @property
    def key(self) -> bytes:
        """Return the HMAC key that the token itself is equal to."""
        return bytes.fromhex(self.sha256)

    def is_good(self, now: float) -> bool:
        """Tell whether the token counts at that time. Before it was made the clock is wrong, and it does not."""
        return self.created <= now < self.expires


def path_of(token_file: Path) -> Path:
    """Return the file with the tokens of apps, beside the installation's own."""
    return token_file.with_name(f"{token_file.name}.apps.json")


def token_digest(token: bytes) -> str:
    """Return the SHA-256 of a token, 64 hexadecimal digits."""
    import hashlib  # late: most servers know one token only

    return hashlib.sha256(token).hexdigest()


def read_tokens(path: Path) -> tuple[AppToken, ...]:
    """Return the tokens in a file, none where there is no file; raise AppTokenError for one that must not be used."""
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
            f"{path} holds no tokens of apps; delete it, and make them anew"
        ) from None


def _token_of(entry: Any) -> AppToken:
    token = AppToken(
        str(entry["name"]),
        str(entry["sha256"]),
        float(entry["created"]),
        float(entry["expires"]),
    )
    if not (NAME.fullmatch(token.name) and _DIGEST.fullmatch(token.sha256)):
        raise ValueError("no name, or no hash")
    if not 0 <= token.created <= token.expires <= LATEST:
        raise ValueError("no dates")
    return token


def add_token(path: Path, name: str, seconds: float, now: float | None = None) -> str:
    """Make a token that is good for so many seconds, store its hash, and return it; or raise AppTokenError."""
    import secrets  # late: a token is made once for an app

    if not NAME.fullmatch(name):
        raise AppTokenError(
            "a token's name has letters, digits, dots, hyphens and underscores, 64 at most"
        )
    token, created = (
        secrets.token_urlsafe(TOKEN_BYTES),
        time.time() if now is None else now,
    )

    def add(tokens: list[AppToken]) -> list[AppToken]:
        if any(other.name == name for other in tokens):
            raise AppTokenError(
                f"there is a token called {name!r} already; take it back first: --revoke {name}"
            )
        if len(tokens) >= MAX_TOKENS:
            raise AppTokenError(
                f"there are {MAX_TOKENS} tokens of apps, and no more; take one back with --revoke NAME"
            )
        return [
            *tokens,
            AppToken(
                name, token_digest(token.encode("ascii")), created, created + seconds
            ),
        ]

    _change(path, created, add)
    return token


def revoke_token(path: Path, name: str, now: float | None = None) -> None:
    """Revoke a token, or raise AppTokenError. What runs goes on; what comes is refused."""

    def remove(tokens: list[AppToken]) -> list[AppToken]:
        remaining = [token for token in tokens if token.name != name]
        if len(remaining) == len(tokens):
            raise AppTokenError(
                f"there is no token called {name!r}; `pocketserve token --list` names all"
            )
        return remaining

    _change(path, time.time() if now is None else now, remove)


def _change(
    path: Path,
    now: float,
    change: Callable[[list[AppToken]], list[AppToken]],
    wait_s: float = WAIT_S,
) -> None:
    """Change the file, one process at a time. What has expired goes, so that no clock brings it back."""
    with locked(path.parent, wait_s) as is_locked:
        if not is_locked:
            raise AppTokenError(
                f"another program holds the tokens of apps in {path}; try again"
            )
        before = list(read_tokens(path))
        after = change([token for token in before if now < token.expires])
        if after == before:
            return
        try:
            replace_json(path, {"tokens": [token._asdict() for token in after]})
        except OSError as error:
            raise AppTokenError(
                f"the tokens of apps in {path} cannot be changed: {error.strerror}"
            ) from None


class AppTokens:
    """The tokens of apps as a server knows them: it reads them again once the file has changed.

    May be used from several threads. A clock that is set back while the server runs gives no time: the time that has
    passed counts on. What has expired is taken out of the file, so it stays so; a clock that jumps ahead ends tokens
    for good.
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
        """Return those that are good now."""
        self._refresh()
        if not self._by_digest:
            return ()
        now = self._now()
        return tuple(token for token in self._by_digest.values() if token.is_good(now))

    def keys(self) -> dict[AppToken, bytes]:
        """Return those that are good now, each with its HMAC key."""
        return {token: token.key for token in self.all()}

    def find(self, presented: bytes) -> AppToken | None:
        """Return the token that was presented, if it is one and is good."""
        self._refresh()
        if not self._by_digest:
            return None
        # Hashes are compared, which nobody can choose, by a table whose order nobody knows.
        token = self._by_digest.get(token_digest(presented))
        return token if token is not None and token.is_good(self._now()) else None

    def is_good(self, token: AppToken) -> bool:
        """Tell whether a token that was good is so still."""
        self._refresh()
        return self._by_digest.get(token.sha256) == token and token.is_good(self._now())

    def _now(self) -> float:
        """Return the time of day, or what it would be by what has passed, whichever is later."""
        latest, at = (
            self._latest
        )  # one pair: what has passed must not be added twice by two threads
        clock = self._clock()
        now = max(self._wall(), latest + clock - at)
        self._latest = now, clock
        return now

    def _refresh(self) -> None:
        now = self._clock()
        if now < self._check_at:
            return
        self._check_at = now + LOOK_S
        if (stamp := file_stamp(self._path)) != self._stamp:
            self._stamp = stamp
            try:
                self._by_digest = {
                    token.sha256: token for token in read_tokens(self._path)
                }
            except AppTokenError as error:
                log.warning("%s; no token of an app is accepted", error)
                self._by_digest = {}
        if self._by_digest:
            self._drop_expired(self._now())

    def _drop_expired(self, now: float) -> None:
        good = {
            key: token for key, token in self._by_digest.items() if now < token.expires
        }
        if len(good) < len(self._by_digest):
            self._by_digest = good
            with contextlib.suppress(AppTokenError):  # nothing is waited for
                _change(self._path, now, list, wait_s=0.0)
