"""Errors of calls."""

from __future__ import annotations

from pocketserve_wire.errors import code_named


class PocketserveError(Exception):
    """Base of all errors of this package."""


class AddressError(PocketserveError, ValueError):
    """A server's address that cannot be one."""


class ServerUnreachableError(PocketserveError):
    """Nobody answered, or the connection broke; the text says what to check."""


class NobodyListensError(ServerUnreachableError):
    """The port took no connection, so nothing was sent to anybody."""


class ConnectionLostError(ServerUnreachableError):
    """A connection that had worked broke before the answer came. The server may or may not have run the request."""


class NotOurServerError(ServerUnreachableError):
    """Something else than the server that has our token listens on the port; it was told nothing."""


class UnprovenPortError(NotOurServerError):
    """Nothing proves that the HTTP port, which nobody named, is this user's server's; it was told nothing."""


class ServerError(PocketserveError):
    """The server answered with an error.

    Attributes:
        status: the HTTP status, over either transport.
        code: the stable code, such as ``MODEL_NOT_FOUND``; empty when something else than this server answered.
        message: what the server said.
        advice: what this client knows besides; the error's text is both.
    """

    def __init__(self, status: int, code: str, message: str, advice: str = "") -> None:
        super().__init__(
            status, code, message, advice
        )  # all of them, so that it can be pickled
        self.status, self.code, self.message, self.advice = (
            status,
            code,
            message,
            advice,
        )

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message

    @property
    def is_retryable(self) -> bool:
        """Return whether the same request may simply be sent again later."""
        code = code_named(self.code)
        return code.retryable if code is not None else self.status in (429, 503)


class ShuttingDownError(ServerError):
    """The server refused a request since it is about to end. Another one may take its place, as in a reload."""


class GatewayError(ServerError):
    """A proxy in front of the server answered instead of it: it has lost the server, which may have run the request."""
