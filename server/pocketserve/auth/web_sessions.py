"""Tickets and sessions of the server's own page.

A ticket is valid once and for a minute, and is exchanged for a session. So the token
never appears in an address, a cookie or a browser's history. ``docs/web.md`` describes
the procedure and its limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pocketserve.auth.app_tokens import token_digest
from pocketserve_wire import ApiError, ErrorCode

TICKET_S: Final = 60  # enough for a slow start of the browser on a slow phone
MAX_TICKETS: Final = 8  # the oldest is evicted
MAX_SESSIONS: Final = 8  # the oldest is evicted
RANDOM_BYTES: Final = 32  # of a ticket and of a session, like the token


class WebSessions:
    """The hashed tickets and sessions of one server. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[str, float] = {}
        """Expiry by hash, the oldest first."""
        self._sessions: dict[str, None] = {}
        """Hashes, the oldest first."""

    def issue(self) -> str:
        """Return a new ticket."""
        ticket, now = _random_text(), self._clock()
        with self._lock:
            self._tickets = {
                digest: end for digest, end in self._tickets.items() if now < end
            }
            self._tickets[_digest(ticket)] = now + TICKET_S
            _drop_oldest(self._tickets, MAX_TICKETS)
        return ticket

    def redeem(self, ticket: str) -> str:
        """Exchange a ticket, which becomes invalid, for a new session.

        Raises:
            ApiError: TICKET_REFUSED.
        """
        digest, session = _digest(ticket), _random_text()
        with self._lock:
            end = self._tickets.pop(digest, None)
            if end is None or self._clock() >= end:
                raise ApiError(
                    ErrorCode.TICKET_REFUSED,
                    f"the ticket is used, older than {TICKET_S} seconds or unknown; "
                    "run `pocketserve open` again",
                )
            self._sessions[_digest(session)] = None
            _drop_oldest(self._sessions, MAX_SESSIONS)
        return session

    def is_session(self, presented: bytes) -> bool:
        """Return whether the presented text is a valid session."""
        # Looking up hashes leaks nothing, because a client cannot choose a hash.
        return bool(self._sessions) and token_digest(presented) in self._sessions


def _digest(text: str) -> str:
    return token_digest(text.encode("utf-8", errors="replace"))


def _random_text() -> str:
    import secrets  # late, because most servers never open the page

    return secrets.token_urlsafe(RANDOM_BYTES)


def _drop_oldest(entries: dict[str, Any], limit: int) -> None:
    while len(entries) > limit:
        del entries[next(iter(entries))]
