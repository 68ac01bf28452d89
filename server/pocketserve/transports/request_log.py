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
MAX_UNTRUSTED_LINES: Final = 20
"""Lines per second for requests without the token.

Every app on the device can send those, and must not fill the storage."""

MAX_PATH: Final = 256
"""Bytes of a path that are logged: no route is longer."""

MAX_ID: Final = 128
"""Characters of an id that are logged."""

_REQUEST_ID = r"[A-Za-z0-9._:+/=@-]{1,128}"
_TRACE_PARENT = r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.{0,256})?"
"""Version, trace, parent and flags. Version ``ff`` and zero ids are invalid by W3C Trace Context."""

_LONG_SEGMENT = "([^/]{16})[^/]{25,}"  # tokens have 43 letters
_METHOD = "[A-Z]{1,16}"
_SAFE = "/:@!$&'()*+,;=-._~"  # unescaped in paths (RFC 3986, section 3.3)


def read_request_id(text: str | None) -> str:
    """Return the id in an ``X-Request-Id`` header; empty if invalid."""
    return text if text is not None and re.fullmatch(_REQUEST_ID, text) else ""


def read_trace_id(text: str | None) -> str:
    """Return the trace id in a ``traceparent`` header; empty if invalid.

    See W3C Trace Context.
    """
    match = re.fullmatch(_TRACE_PARENT, text) if text is not None else None
    if match is None:
        return ""
    version, trace_id, more = match.groups()
    is_extended_00 = version == "00" and more is not None
    return "" if is_extended_00 else str(trace_id)


class RequestLog:
    """Writes the lines, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second = 0
        self._untrusted = 0

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
        trace: Mapping[str, str] | None = None,
    ) -> None:
        """Log a request.

        Args:
            path: percent-decoded bytes as Latin-1, as in WSGI; without the query.
            model: the model in the path, which may not exist; empty without one.
            started: monotonic time of arrival.
            bytes_in, bytes_out: sizes of the bodies as sent.
            trusted: the request had a valid token.
            ids: the client's ids for the request; logged only with a valid token.
            trace: W3C Trace Context headers, by name; only for traces.
        """
        now = time.monotonic()
        if not (trusted or self._has_room(int(now))):
            return
        if not re.fullmatch(_METHOD, method):
            method = "-"
        fields: dict[str, Any] = {
            "transport": transport,
            "method": method,
            "path": path_text(path.encode("latin-1", "replace"), status),
            "status": status,
            "model": path_text(model.encode(errors="replace"), status),
            "ms": round(1e3 * (now - started), 3),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        log.info(LINE + _add_ids(fields, ids if trusted else None), fields)

    def _has_room(self, second: int) -> bool:
        """Return whether an unauthenticated request gets a line.

        Log the number of omitted lines.
        """
        with self._lock:
            left_out = 0
            if second != self._second:
                left_out = max(0, self._untrusted - MAX_UNTRUSTED_LINES)
                self._second, self._untrusted = second, 0
            self._untrusted += 1
            has_room = self._untrusted <= MAX_UNTRUSTED_LINES
        if left_out:
            log.info("%d more requests without the token were not logged", left_out)
        return has_room


def _add_ids(fields: dict[str, Any], ids: Mapping[str, str] | None) -> str:
    """Add the ids to a line's fields; return their part of the line's format."""
    text = ""
    for name, value in (ids or {}).items():
        if value:
            fields[name] = quote(value[:MAX_ID], _SAFE)
            text += f", {name} %({name})s"
    return text


def path_text(path: bytes, status: int) -> str:
    """Return a path for the log.

    Long segments of rejected paths are cut: they may be tokens.
    """
    text = quote(path[:MAX_PATH], _SAFE)
    return (re.sub(_LONG_SEGMENT, r"\1...", text) if status >= 400 else text) or "-"
