"""A line in the log for each request: what was asked, how it ended and how long that took; never what was sent."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Final
from urllib.parse import quote

log = logging.getLogger(__name__)

LINE: Final = (
    "%(transport)s %(method)s %(path)s %(status)d %(model)s %(ms).1f ms, %(bytes_in)d B in, %(bytes_out)d B out"
)
STRANGERS_A_SECOND: Final = 20
"""Lines for requests without the token: every app on the device can send those, and must not fill its storage."""

MAX_PATH: Final = 256
"""Bytes of a path that are shown: longer ones lead nowhere."""

_LONG_SEGMENT = re.compile("([^/]{16})[^/]{25,}")  # tokens have 43 letters
_METHOD = re.compile("[A-Z]{1,16}")
_SAFE = "/:@!$&'()*+,;=-._~"  # RFC 3986, section 3.3: what stands in a path as it is


class RequestLog:
    """Writes the lines, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second = 0
        self._strangers = 0

    def write(
        self,
        transport: str,
        method: str,
        path: str,
        model: str,
        status: int,
        *,
        started: float,
        bytes_in: int,
        bytes_out: int,
        trusted: bool = True,
    ) -> None:
        """Write a request's line.

        Args:
            path: percent-decoded bytes as Latin-1, as in WSGI; without the query.
            model: the path's, which need not exist; empty where it has none.
            started: when it came, by the monotonic clock.
            bytes_in, bytes_out: of the bodies, as they were sent.
            trusted: it came with the token.
        """
        now = time.monotonic()
        if not (trusted or self._has_room(int(now))):
            return
        fields = {
            "transport": transport,
            "method": method if _METHOD.fullmatch(method) else "-",
            "path": _path_text(path.encode("latin-1", "replace"), status),
            "status": status,
            "model": _path_text(model.encode(errors="replace"), status),
            "ms": round(1e3 * (now - started), 3),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        log.info(LINE, fields)

    def _has_room(self, second: int) -> bool:
        """Return whether one more request without the token gets a line; tell how many got none."""
        with self._lock:
            left_out = 0
            if second != self._second:
                left_out = max(0, self._strangers - STRANGERS_A_SECOND)
                self._second, self._strangers = second, 0
            self._strangers += 1
            has_room = self._strangers <= STRANGERS_A_SECOND
        if left_out:
            log.info("%d more requests without the token are not listed", left_out)
        return has_room


def _path_text(path: bytes, status: int) -> str:
    """Return a path for the log; of what was refused, long segments are cut: they may be tokens."""
    text = quote(path[:MAX_PATH], _SAFE)
    return (_LONG_SEGMENT.sub(r"\1...", text) if status >= 400 else text) or "-"
