"""OpenAI's shape of errors, which its clients read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pocketserve.api.messages import ApiResponse
from pocketserve_wire import ApiError, ErrorCode, strict_json

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


_INPUTS: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/responses": "input",
    "/v1/audio/transcriptions": "file",
    "/v1/audio/translations": "file",
}
"""The field with each route's input."""

_INPUT_FAULTS: Final = (ErrorCode.INVALID_INPUT, ErrorCode.CONTEXT_EXCEEDED)


def openai_error(
    response: ApiResponse, error: BaseException, pattern: str
) -> ApiResponse:
    """Return an answer to a fault in OpenAI's shape; status and headers stay.

    Args:
        pattern: of the route.
    """
    fault = json.loads(b"".join(response.chunks))
    kind = _TYPES.get(response.status)
    if kind is None:
        is_own = response.status >= 500
        kind = "server_error" if is_own else "invalid_request_error"
    code = fault["code"]
    document = {
        "message": fault["error"],
        "type": kind,
        "param": _field_of(error, pattern),
        "code": _CODES.get(code, code.lower()),
    }
    response.chunks = [strict_json.dumps({"error": document})]
    return response


def _field_of(error: BaseException, pattern: str) -> str | None:
    """Return the request's field that is at fault, if one is."""
    if not isinstance(error, ApiError):
        return None
    if error.field is not None:
        return error.field
    if error.code is ErrorCode.MODEL_NOT_FOUND:
        return "model"
    if error.code in _INPUT_FAULTS:
        return _INPUTS.get(pattern)
    return None
