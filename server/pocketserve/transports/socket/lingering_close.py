"""Closed connections whose last output must still reach the peer.

Closing while the peer still sends would reset the connection, and the peer might never read why it was closed.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pocketserve.transports.socket.server import SocketServer

MAX: Final = 32
"""Such connections at a time; the oldest gives way."""

_scratch = bytearray(65_536)


class LingeringClose:
    """The event loop's part for one such connection."""

    def __init__(self, server: SocketServer, connection: socket.socket) -> None:
        self._server = server
        self._event_loop = server.event_loop
        self._lingering = server.lingering
        self._seconds = server.timeouts.lingering
        self._socket = connection
        self._descriptor = connection.fileno()

    @classmethod
    def begin(cls, server: SocketServer, connection: socket.socket) -> None:
        """Take over a connection that the event loop no longer watches.

        Callable from any thread.
        """
        if not server.event_loop.call(cls(server, connection)._begin):
            connection.close()

    def _begin(self) -> None:
        if self._server.stopped:
            self._socket.close()
            return
        try:
            self._socket.setblocking(False)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._socket.close()
            return
        self._lingering[self] = None
        if len(self._lingering) > MAX:
            next(iter(self._lingering)).close()
        self._event_loop.add(self._descriptor, self)
        self._event_loop.set_timer(self, time.monotonic() + self._seconds)
        self._event_loop.arm(self._descriptor)

    def on_ready(self, events: int) -> None:
        """Discard input."""
        try:
            ended = not self._socket.recv_into(_scratch)
        except BlockingIOError:
            ended = False
        except OSError:
            ended = True
        if ended:
            self.close()
        else:
            self._event_loop.arm(self._descriptor)

    def on_time(self) -> None:
        """It took too long."""
        self.close()

    def on_fault(self) -> None:
        """The loop failed on this connection."""
        self.close()

    def close(self) -> None:
        """The end; on the event loop's thread."""
        if self._lingering.pop(self, self) is self:
            return
        self._event_loop.remove(self._descriptor, self)
        with contextlib.suppress(OSError):
            # Wakes a thread that may still be reading.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
