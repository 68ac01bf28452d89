"""The choice between the transports, made with the first request."""

from __future__ import annotations

import threading

from pocketserve_client import fork_safety
from pocketserve_client.errors import NobodyListensError
from pocketserve_client.http import HttpTransport
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import Answer, Pending, Request, Transport


class AutomaticTransport:
    """The socket where it can be reached, else HTTP. The first that works is kept.

    HTTP hands the token to whoever listens. So it is only tried where nobody listens on the socket's port: somebody who
    does, and then fails to prove that he knows the token, stays silent or hangs up, may have taken both ports. And the
    HTTP transport that is given here makes sure itself, with each connection, that a server of this user has its port.
    """

    def __init__(self, socket: SocketTransport, http: HttpTransport) -> None:
        self._socket = socket
        self._http = http
        self.reset_after_fork()
        fork_safety.watch(self)
        self._chosen: Transport | None = None

    def reset_after_fork(self) -> None:
        """Be free of a thread of the process from which this one was forked; the two look after themselves."""
        self._lock = threading.Lock()

    def send(self, request: Request) -> Answer:
        """Send one request and wait for its answer."""
        return self._transport().send(request)

    def start(self, request: Request) -> Pending:
        """Send one request without waiting."""
        return self._transport().start(request)

    def close(self) -> None:
        """Close both."""
        self._socket.close()
        self._http.close()

    def _transport(self) -> Transport:
        if self._chosen is not None:
            return self._chosen
        with self._lock:
            try:
                self._socket.connect()
            except NobodyListensError:
                # Not remembered: the next request looks for the socket again, unless HTTP has answered.
                return self._http if not self._http.answered else self._choose(self._http)
            return self._choose(self._socket)

    def _choose(self, transport: Transport) -> Transport:
        self._chosen = transport
        return transport
