"""OpenAI's shape of errors, which its clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pocketserve.api.messages import ApiResponse
from pocketserve_wire import ErrorCode, strict_json

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CODES: Final[Mapping[str, str]] = {
    ErrorCode.CONTEXT_EXCEEDED.name: "context_length_exceeded",
    ErrorCode.MODEL_NOT_FOUND.name: "model_not_found",
    ErrorCode.UNAUTHORIZED.name: "invalid_api_key",
}
"""OpenAI's own words, where programs look for them."""


def openai_error(response: ApiResponse) -> ApiResponse:
    """Return an answer to a fault in OpenAI's shape; status and headers stay."""
    fault = json.loads(b"".join(response.chunks))
    kind = _TYPES.get(response.status)
    if kind is None:
        is_own = response.status >= 500
        kind = "server_error" if is_own else "invalid_request_error"
    code = fault["code"]
    error = {
        "message": fault["error"],
        "type": kind,
        "param": None,
        "code": _CODES.get(code, code.lower()),
    }
    response.chunks = [strict_json.dumps({"error": error})]
    return response
