"""The transport that chooses between socket and HTTP with the first request."""

from __future__ import annotations

import threading

from pocketserve_client import fork_safety
from pocketserve_client.connection import PendingAnswer
from pocketserve_client.errors import NobodyListensError
from pocketserve_client.http import HttpPending, HttpTransport
from pocketserve_client.language.streams import LineStream
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import Answer, Request


class AutomaticTransport:
    """Uses the socket if reachable, else HTTP, and keeps the first that works.

    HTTP sends the token to any listener. So HTTP is tried only if nothing listens on
    the socket's port: a listener that fails the handshake, stays silent or hangs up may
    have taken both ports. In addition, the HTTP transport passed here verifies for each
    connection that a server of this user has the port.
    """

    def __init__(self, socket: SocketTransport, http: HttpTransport) -> None:
        self._socket = socket
        self._http = http
        self._current: SocketTransport | HttpTransport | None = None
        self.reset_after_fork()
        fork_safety.watch(self)

    def reset_after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may hold."""
        self._lock = threading.Lock()

    def send(self, request: Request) -> Answer:
        """Send a request and wait for the answer."""
        return self._transport(request).send(request)

    def start(self, request: Request) -> PendingAnswer | HttpPending:
        """Send a request without waiting for the answer."""
        return self._transport(request).start(request)

    def stream(self, request: Request) -> LineStream:
        """Send a request, and return the lines of its answer as they come."""
        return self._transport(request).stream(request)

    def close(self) -> None:
        """Close both transports."""
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
                        # Not kept, so that the next request tries the socket again.
                        return self._http
                    self._current = self._http
        return self._current
