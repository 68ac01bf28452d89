"""The request log: one line per request, without any content."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

log = logging.getLogger(__name__)

LINE: Final = (
    "%(transport)s %(method)s %(path)s %(status)d %(model)s "
    "%(ms).1f ms, %(bytes_in)d B in, %(bytes_out)d B out"
)
STRANGERS_A_SECOND: Final = 20
"""Lines for requests without the token: every app on the device can send those, and must not fill its storage."""

MAX_PATH: Final = 256
"""Bytes of a path that are shown: longer ones lead nowhere."""

MAX_ID: Final = 128
"""Characters of an id that are shown."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")
_TRACE_PARENT = re.compile(
    r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,256})?"
)
_LONG_SEGMENT = re.compile("([^/]{16})[^/]{25,}")  # tokens have 43 letters
_METHOD = re.compile("[A-Z]{1,16}")
_SAFE = "/:@!$&'()*+,;=-._~"  # RFC 3986, section 3.3: what stands in a path as it is


def read_request_id(text: str | None) -> str:
    """Return the id in an ``X-Request-Id`` header; empty if invalid."""
    return text if text is not None and _REQUEST_ID.fullmatch(text) else ""


def read_trace_id(text: str | None) -> str:
    """Return the trace id in a ``traceparent`` header; empty if invalid.

    See W3C Trace Context.
    """
    match = _TRACE_PARENT.fullmatch(text) if text is not None else None
    return match[1] if match is not None else ""


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
        ids: Mapping[str, str] | None = None,
    ) -> None:
        """Write a request's line.

        Args:
            path: percent-decoded bytes as Latin-1, as in WSGI; without the query.
            model: the path's, which need not exist; empty where it has none.
            started: when it came, by the monotonic clock.
            bytes_in, bytes_out: of the bodies, as they were sent.
            trusted: it came with the token.
            ids: by which the client finds the request, by name; logged with the token only.
        """
        now = time.monotonic()
        if not (trusted or self._has_room(int(now))):
            return
        fields: dict[str, Any] = {
            "transport": transport,
            "method": method if _METHOD.fullmatch(method) else "-",
            "path": _path_text(path.encode("latin-1", "replace"), status),
            "status": status,
            "model": _path_text(model.encode(errors="replace"), status),
            "ms": round(1e3 * (now - started), 3),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        line = LINE
        for name, value in (ids or {}).items():
            if trusted and value:
                fields[name] = quote(value[:MAX_ID], _SAFE)
                line += f", {name} %({name})s"
        log.info(line, fields)

    def _has_room(self, second: int) -> bool:
        """Return whether an unauthenticated request gets a line.

        Log the number of omitted lines.
        """
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
    """Return a path for the log.

    Long segments of rejected paths are cut: they may be tokens.
    """
    text = quote(path[:MAX_PATH], _SAFE)
    return (_LONG_SEGMENT.sub(r"\1...", text) if status >= 400 else text) or "-"
