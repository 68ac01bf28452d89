"""The choice between the transports, made with the first request."""

from __future__ import annotations

import threading

from pocketserve_client import fork_safety
from pocketserve_client.connection import PendingAnswer
from pocketserve_client.errors import NobodyListensError
from pocketserve_client.http import HttpPending, HttpTransport
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import Answer, Request


class AutomaticTransport:
    """The socket where it can be reached, else HTTP. The first that works is kept.

    HTTP hands the token to whoever listens. So it is only tried where nobody listens on the socket's port: somebody who
    does, and then fails to prove that he knows the token, stays silent or hangs up, may have taken both ports. And the
    HTTP transport that is given here makes sure itself, with each connection, that a server of this user has its port.
    """

    def __init__(self, socket: SocketTransport, http: HttpTransport) -> None:
        self._socket = socket
        self._http = http
        self._current: SocketTransport | HttpTransport | None = None
        self.reset_after_fork()
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Replace the lock, which a thread of the other process may hold."""
        self._lock = threading.Lock()

    def send(self, request: Request) -> Answer:
        """Send a request and wait for its answer."""
        return self._transport(request).send(request)

    def start(self, request: Request) -> PendingAnswer | HttpPending:
        """Send a request without waiting."""
        return self._transport(request).start(request)

    def close(self) -> None:
        """Close both."""
        self._socket.close()
        self._http.close()

    def _transport(self, request: Request) -> SocketTransport | HttpTransport:
        if self._current is None:
            with self._lock:
                try:
                    self._socket.connect(request.deadline)
                    self._current = self._socket
                except NobodyListensError:
                    if not self._http.answered:
                        return (
                            self._http
                        )  # not remembered: the next request looks for the socket again
                    self._current = self._http
        return self._current
