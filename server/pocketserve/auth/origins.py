"""Pages of the user's own apps: origins that the owner lists may ask this server from a browser (CORS).

Sources: the Fetch standard, section "CORS protocol"; Private Network Access for its preflight header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

PATTERN: Final = re.compile(
    r"[a-z][a-z0-9+.-]{0,31}://(?:\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{1,5})?"
)
"""A scheme, a host and perhaps a port, as browsers send it; neither ``*`` nor ``null``."""

METHODS: Final = "GET, HEAD, POST, PUT"
REQUEST_HEADERS: Final = (
    "Authorization, Content-Type, Content-Encoding, Inference-Header-Content-Length, X-Request-Id, traceparent, "
    "tracestate"
)
RESPONSE_HEADERS: Final = (
    "Inference-Header-Content-Length, Retry-After, WWW-Authenticate, X-Request-Id"
)
MAX_AGE_S: Final = 600  # that a browser may reuse the answer to a preflight


class AllowedOrigins:
    """The origins of the setting ``allowed_origins``, and the headers for their pages."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)

    def __contains__(self, origin: str | None) -> bool:
        return origin is not None and origin.lower() in self._origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def response_headers(self, origin: str | None, vary: str = "") -> dict[str, str]:
        """Return the headers of an answer; none where no origin is listed.

        Args:
            vary: the answer's own ``Vary`` header.
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
        """Return the headers of the answer to a preflight of a listed origin."""
        headers = {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(MAX_AGE_S),
            "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        }
        if environ.get("HTTP_ACCESS_CONTROL_REQUEST_PRIVATE_NETWORK") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return headers


def refusal_of_origin(origin: str) -> str:
    """Return the sentence for a page whose origin is not listed, with the setting that allows it."""
    text = "requests from web pages of another origin are refused"
    if PATTERN.fullmatch(origin.lower()):
        return f"{text}; to allow this one, start the server with --allowed-origins {origin.lower()}"
    return f"{text}, and a page without an origin cannot be listed in --allowed-origins"
