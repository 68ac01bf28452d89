"""Tickets and sessions of the web page (``docs/web.md``)."""

from __future__ import annotations

from pocketserve.api.messages import (
    ApiRequest,
    ApiResponse,
    expect_nothing,
    json_response,
    refuse_unknown_query,
)
from pocketserve.auth.web_sessions import TICKET_S
from pocketserve.service import Service
from pocketserve_wire import ApiError, ErrorCode, strict_json
from pocketserve_wire.oip_fields import bad_request

MAX_BODY_BYTES = 4096


def ticket(service: Service, request: ApiRequest) -> ApiResponse:
    """Issue a ticket for the page, good once and for 60 seconds, and tell the page's address."""
    expect_nothing(request)
    return json_response(
        {
            "ticket": service.pages.issue(),
            "expires_in": TICKET_S,
            "url": service.page_url,
        }
    )


def session(service: Service, request: ApiRequest) -> ApiResponse:
    """Exchange a ticket for a session, a token without owner rights."""
    refuse_unknown_query(request)
    if len(request.body) > MAX_BODY_BYTES:
        raise ApiError(
            ErrorCode.BODY_TOO_LARGE,
            f"a ticket's message has at most {MAX_BODY_BYTES} bytes",
        )
    document = strict_json.loads(request.body)
    if (
        not isinstance(document, dict)
        or document.keys() != {"ticket"}
        or not isinstance(document["ticket"], str)
    ):
        raise bad_request('the body must be a JSON object: {"ticket": "..."}')
    return json_response({"session": service.pages.redeem(document["ticket"])})
