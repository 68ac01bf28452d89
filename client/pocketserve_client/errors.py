"""Errors of the client."""

from __future__ import annotations

from pocketserve_wire.errors import code_named

FROZEN = (
    "the server may be busy, or its process stopped or frozen; on a phone, open Termux"
)
"""Advice for a server that accepts connections and says nothing."""


class PocketserveError(Exception):
    """Base of all errors of this package."""


class AddressError(PocketserveError, ValueError):
    """An invalid server address."""


class ServerUnreachableError(PocketserveError):
    """No answer, or a broken connection; the message says how to fix it."""


class NobodyListensError(ServerUnreachableError):
    """The port refused the connection, so nothing was sent."""


class ConnectionLostError(ServerUnreachableError):
    """A working connection broke before the answer arrived.

    The server may or may not have run the request.
    """


class NotOurServerError(ServerUnreachableError):
    """The port belongs to another program than our server; nothing was sent to it."""


class UnprovenPortError(NotOurServerError):
    """Nothing proves that the default HTTP port belongs to this user's server.

    Nothing was sent to it.
    """


class ServerError(PocketserveError):
    """The server answered with an error.

    Attributes:
        status: the HTTP status, over either transport.
        code: the stable code, such as ``MODEL_NOT_FOUND``; empty if another program
            answered.
        message: the server's message.
        advice: advice from this client; the error's text contains both.
    """

    def __init__(self, status: int, code: str, message: str, advice: str = "") -> None:
        # All arguments, so that it can be pickled.
        super().__init__(status, code, message, advice)
        self.status = status
        self.code = code
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message

    @property
    def is_retryable(self) -> bool:
        """Return whether the same request may succeed later."""
        code = code_named(self.code)
        return code.retryable if code is not None else self.status in (429, 503)


class ShuttingDownError(ServerError):
    """The server is shutting down. Another one may replace it, as in a reload."""


class GatewayError(ServerError):
    """A proxy answered because it lost the server, which may have run the request."""
