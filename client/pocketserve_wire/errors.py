"""All error codes of the server, and the faults that close a socket connection.

The ``code`` (a member's name) is API and never changes its meaning; the text beside it
may. Both transports send ``{"error": "<one sentence>", "code": "<CODE>"}`` with the
status below.
"""

from __future__ import annotations

import enum
import json
from typing import Any


class ErrorCode(enum.Enum):
    """Stable error codes with their HTTP status and whether a retry may succeed."""

    MALFORMED_JSON = (400, False)
    INVALID_HEADER = (400, False)
    INVALID_REQUEST = (400, False)
    INVALID_PARAMETER = (400, False)
    INVALID_TENSOR = (400, False)
    INVALID_INPUT = (400, False)
    CONTEXT_EXCEEDED = (400, False)
    UNAUTHORIZED = (401, False)
    TICKET_REFUSED = (401, False)
    HOST_REFUSED = (403, False)
    ORIGIN_REFUSED = (403, False)
    SESSION_REFUSED = (403, False)
    PAIRING_CLOSED = (403, False)
    PAIRING_REFUSED = (403, False)
    NOT_FOUND = (404, False)
    MODEL_NOT_FOUND = (404, False)
    VERSION_NOT_FOUND = (404, False)
    METHOD_NOT_ALLOWED = (405, False)
    SUPERSEDED = (409, False)
    BODY_TOO_LARGE = (413, False)
    UNSUPPORTED_ENCODING = (415, False)
    QUEUE_FULL = (429, True)
    HEADERS_TOO_LARGE = (431, False)
    CANCELLED = (499, False)
    INFERENCE_FAILED = (500, False)
    INTERNAL = (500, False)
    NOT_IMPLEMENTED = (501, False)
    MODEL_FAILED = (503, False)
    RUNTIME_MISSING = (503, False)
    MODEL_NOT_READY = (503, True)
    MEMORY_BUDGET = (503, True)
    LOW_POWER = (503, True)
    SHUTTING_DOWN = (503, True)
    DEADLINE_EXCEEDED = (504, True)

    def __init__(self, status: int, retryable: bool) -> None:
        self.status = status
        self.retryable = retryable

    # Several codes share one (status, retryable) pair; Enum would alias them.
    def __new__(cls, status: int, retryable: bool) -> ErrorCode:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member


class ApiError(Exception):
    """An error response: one sentence that names the field and its limit.

    Args:
        retry_after_s: seconds until a retry makes sense; sent as ``Retry-After``.
        field: of the request that is at fault; OpenAI's routes send it as ``param``.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retry_after_s: float | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.field = field

    @property
    def status(self) -> int:
        """Return the HTTP status; the socket protocol uses the same numbers."""
        return self.code.status

    def copy(self) -> ApiError:
        """Return an equal error that can be stored or raised again.

        A raised exception refers to its frames, and so to a request's body or a model.
        """
        return ApiError(
            self.code,
            self.message,
            retry_after_s=self.retry_after_s,
            field=self.field,
        )

    def body(self) -> bytes:
        """Return the response body: one JSON object in ASCII."""
        document = {"error": self.message, "code": self.code.name}
        return json.dumps(document).encode("ascii")


def code_named(name: object) -> ErrorCode | None:
    """Return the code with this name, or None if this version doesn't have it."""
    if not isinstance(name, str):
        return None
    return ErrorCode.__members__.get(name)


class ConnectionFault(enum.IntEnum):
    """Reasons to close a connection.

    The ERROR frame carries the number in ``arg`` and the name as ``code``.
    """

    BAD_MARK = 1
    BAD_FRAME = 2
    UNEXPECTED_FRAME = 3
    FRAME_TOO_LARGE = 4
    BAD_REQUEST_ID = 5
    UNAUTHORIZED = 6
    UNSUPPORTED_VERSION = 7
    TIMEOUT = 8
    BAD_HANDSHAKE = 9
    TOO_MANY_CONNECTIONS = 10
    UNKNOWN_FRAME = 11
    SLOW_READER = 12
    INTERNAL = 13


class GoAwayReason(enum.IntEnum):
    """Reasons to accept no more requests on a connection: the ``arg`` of GOAWAY."""

    SHUTTING_DOWN = 1
    IDLE = 2


class ConnectionFaultError(Exception):
    """A protocol violation by the peer; the connection must be closed.

    ``details`` are additional members of the ERROR frame's JSON.
    """

    def __init__(self, fault: ConnectionFault, message: str, **details: Any) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.details = details

    def body(self) -> bytes:
        """Return the ERROR frame's body, in the shape of all other errors."""
        document = {"error": self.message, "code": self.fault.name, **self.details}
        return json.dumps(document).encode("ascii")


class HttpPeerError(ConnectionFaultError):
    """The peer speaks HTTP; the response must be HTTP, too."""

    def __init__(self) -> None:
        super().__init__(
            ConnectionFault.BAD_MARK,
            "this is the socket port; HTTP has a port of its own",
        )
