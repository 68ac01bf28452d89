"""Errors that end a connection of the socket protocol: the reasons of its ERROR and GOAWAY frames."""

from __future__ import annotations

import enum
import json
from typing import Any


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
        return json.dumps({"error": self.message, "code": self.fault.name, **self.details}).encode("ascii")


class HttpPeerError(ConnectionFaultError):
    """The peer speaks HTTP; it is answered in HTTP."""

    def __init__(self) -> None:
        super().__init__(ConnectionFault.BAD_MARK, "this is the socket port; HTTP has a port of its own")
