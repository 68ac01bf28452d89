"""Cross-origin requests (CORS) of web pages that the owner allows.

Sources: the Fetch standard, section "CORS protocol"; Private Network Access for its
preflight header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_PATTERN: Final = (
    r"[a-z][a-z0-9+.-]{0,31}://(?:\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{1,5})?"
)
"""Scheme, host and optional port, as browsers send it; neither ``*`` nor ``null``."""

METHODS: Final = "GET, HEAD, POST, PUT"
REQUEST_HEADERS: Final = (
    "Authorization, Content-Type, Content-Encoding, Inference-Header-Content-Length, "
    "X-Request-Id, traceparent, tracestate"
)
RESPONSE_HEADERS: Final = (
    "Inference-Header-Content-Length, Retry-After, WWW-Authenticate, X-Request-Id"
)
MAX_AGE_S: Final = 600  # browsers may cache a preflight response for this time


class AllowedOrigins:
    """The origins of the setting ``allowed_origins``, and their response headers."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)

    def __contains__(self, origin: str | None) -> bool:
        return origin is not None and origin.lower() in self._origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def response_headers(self, origin: str | None, vary: str = "") -> dict[str, str]:
        """Return the CORS headers of a response, or none.

        Args:
            vary: the response's own ``Vary`` header.
        """
        if not self._origins:
            return {}
        headers = {"Vary": f"{vary}, Origin" if vary else "Origin"}
        if origin is not None and origin in self:
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = RESPONSE_HEADERS
        return headers

    def preflight_headers(
        self, origin: str, environ: Mapping[str, object]
    ) -> dict[str, str]:
        """Return the headers of a preflight response to an allowed origin."""
        headers = {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(MAX_AGE_S),
            "Vary": "Origin, Access-Control-Request-Method, "
            "Access-Control-Request-Headers",
        }
        if environ.get("HTTP_ACCESS_CONTROL_REQUEST_PRIVATE_NETWORK") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return headers


def is_origin(text: str) -> bool:
    """Return whether a setting can list this origin, in any case of letters."""
    return re.fullmatch(_PATTERN, text.lower()) is not None


def refusal_of_origin(origin: str) -> str:
    """Return the error message for a rejected origin."""
    text = "requests from web pages of another origin are rejected"
    if is_origin(origin):
        return (
            f"{text}; to allow this one, start the server with "
            f"--allowed-origins {origin.lower()}"
        )
    return f"{text}, and a page without an origin cannot be listed in --allowed-origins"
