"""All errors that the server may answer, and those that end a connection of the socket protocol.

The ``code`` (a member's name) is API and never changes its meaning; the text beside it may. Both transports send
``{"error": "<one sentence>", "code": "<CODE>"}`` with the status below.
"""

from __future__ import annotations

import enum
import json
from typing import Any


class ErrorCode(enum.Enum):
    """Stable error codes with their HTTP status and whether the same request may simply be sent again."""

    MALFORMED_JSON = (400, False)
    INVALID_HEADER = (400, False)
    INVALID_REQUEST = (400, False)
    INVALID_PARAMETER = (400, False)
    INVALID_TENSOR = (400, False)
    INVALID_INPUT = (400, False)
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

    # Several codes share one (status, retryable) pair; without this, Enum would make them aliases.
    def __new__(cls, status: int, retryable: bool) -> ErrorCode:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member


class ApiError(Exception):
    """A fault that a caller is told about, in one sentence that names the field and the limit or expected value.

    Args:
        retry_after_s: seconds after which trying again makes sense; sent as ``Retry-After``.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """Return the HTTP status; the socket protocol uses the same numbers."""
        return self.code.status

    def copy(self) -> ApiError:
        """Return the same fault for a further caller, or to be stored.

        A raised exception refers to its frames, and so to a request's body or a model; raised again, to more of them.
        """
        return ApiError(self.code, self.message, retry_after_s=self.retry_after_s)

    def body(self) -> bytes:
        """Return the answer's body: one JSON object, ASCII only so that every client can read it."""
        return json.dumps({"error": self.message, "code": self.code.name}).encode(
            "ascii"
        )


def code_named(name: object) -> ErrorCode | None:
    """Return the code of that name, or None for a name that this version does not know."""
    return ErrorCode.__members__.get(name) if isinstance(name, str) else None


class ConnectionFault(enum.IntEnum):
    """Reasons to close a connection: the number travels in the ERROR frame's ``arg``, the name is its ``code``."""

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
    """Reasons to take no more requests on a connection: the ``arg`` of GOAWAY."""

    SHUTTING_DOWN = 1
    IDLE = 2


class ConnectionFaultError(Exception):
    """A peer broke the protocol; the connection cannot go on. ``details`` are further members of the ERROR's JSON."""

    def __init__(self, fault: ConnectionFault, message: str, **details: Any) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.details = details

    def body(self) -> bytes:
        """The ERROR frame's body: ASCII JSON, of the same shape as every other error's."""
        return json.dumps(
            {"error": self.message, "code": self.fault.name, **self.details}
        ).encode("ascii")


class HttpPeerError(ConnectionFaultError):
    """The peer speaks HTTP; it is answered in HTTP."""

    def __init__(self) -> None:
        super().__init__(
            ConnectionFault.BAD_MARK,
            "this is the socket port; HTTP has a port of its own",
        )
