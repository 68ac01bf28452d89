"""The socket transport: one connection at a time, reopened when it was lost."""

from __future__ import annotations

import math
import threading
import time

from pocketserve_client import fork_safety
from pocketserve_client.connection import (
    MAX_ANSWER_BYTES,
    ClientConnection,
    PendingAnswer,
)
from pocketserve_client.errors import (
    ConnectionLostError,
    NotOurServerError,
    ServerUnreachableError,
)
from pocketserve_client.language.streams import SocketStream
from pocketserve_client.transport import LEAST_S, Answer, Request


class SocketTransport:
    """Sends requests over the socket protocol. Thread-safe; threads share a connection.

    Args:
        token: proves both sides to each other; it is never sent. None for a server
            without authentication.
        timeout: seconds for connecting, and for each answer.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str | None,
        timeout: float,
        max_answer: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._address = address
        self._key = token.encode("utf-8") if token is not None else None
        self._timeout = timeout
        self._max_answer = max_answer
        self._closed = False
        self._opening = threading.Lock()
        self._connection: ClientConnection | None = None
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Drop the connection of the parent process."""
        self._opening = threading.Lock()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.forget()

    def send(self, request: Request) -> Answer:
        """Send a request and wait for the answer."""
        pending = self.connect(request.deadline).start(request)
        return pending.result(request.seconds_left(self._timeout))

    def start(self, request: Request) -> PendingAnswer:
        """Send a request without waiting for the answer."""
        return self.connect(request.deadline).start(request)

    def stream(self, request: Request) -> SocketStream:
        """Send a request, and return the lines of its answer as they come."""
        deadline = time.monotonic() + request.seconds_left(self._timeout)
        return SocketStream(self.start(request), deadline)

    def connect(self, deadline: float = math.inf) -> ClientConnection:
        """Return the usable connection, or open one before a monotonic deadline."""
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        with self._opening:
            if self._closed:
                raise ServerUnreachableError("the client was closed")
            previous = self._connection
            if previous is not None and previous.usable:
                return previous
            try:
                seconds = max(LEAST_S, min(self._timeout, deadline - time.monotonic()))
                connection = ClientConnection(
                    self._address, self._key, self._timeout, self._max_answer, seconds
                )
            except NotOurServerError:
                raise
            except ServerUnreachableError as error:
                if previous is None:
                    raise
                # The server was there a moment ago: it may be restarting.
                raise ConnectionLostError(str(error)) from None
            self._connection = connection
            if previous is not None:
                previous.retire()  # other threads may wait for its answers
            return connection

    def close(self) -> None:
        """Close the connection; requests in progress fail."""
        with self._opening:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
