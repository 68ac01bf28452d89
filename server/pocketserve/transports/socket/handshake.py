"""A connection before READY, handled on the event loop's thread.

It uses no thread and little memory.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from typing import TYPE_CHECKING, Final

from pocketserve.transports.socket.connection import Connection
from pocketserve.transports.socket.lingering_close import LingeringClose
from pocketserve_wire.errors import ConnectionFault, ConnectionFaultError, HttpPeerError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame, FrameType, json_frame
from pocketserve_wire.handshake import NONCE_BYTES, ServerHandshake

if TYPE_CHECKING:
    from pocketserve.transports.socket.server import SocketServer

log = logging.getLogger(__name__)

MAX_OVER: Final = 1024 * 1024
"""Bytes by which a body may exceed the limit and still be read, thrown away and answered 413."""

_HTTP_TEXT = b"this is the socket port; HTTP has a port of its own\n"
_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_HTTP_TEXT), _HTTP_TEXT)
)

_STATUS = {
    ConnectionFault.UNAUTHORIZED: 401,
    ConnectionFault.TIMEOUT: 408,
    ConnectionFault.TOO_MANY_CONNECTIONS: 429,
}
"""HTTP statuses for the log; 400 for other faults."""


class HandshakeConnection:
    """A connection whose peer has proven nothing yet.

    Args:
        server: takes over the connection once the proof is right.
    """

    def __init__(self, server: SocketServer, connection: socket.socket) -> None:
        self._server = server
        self._socket = connection
        self._descriptor = connection.fileno()
        self._decoder = FrameDecoder(
            ALLOWED[Role.SERVER, HandshakeState.HELLO],
            server.limits.max_frame + MAX_OVER,
            listens=True,
        )
        further = server.apps.keys if server.apps is not None else dict
        self._handshake = ServerHandshake(
            server.key, secrets.token_bytes(NONCE_BYTES), server.limits, further
        )
        self._refusal: bytes | None = None
        self._began = time.monotonic()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.event_loop.add(self._descriptor, self)
        server.event_loop.set_timer(self, self._began + server.timeouts.handshake)
        server.event_loop.arm(self._descriptor)

    def on_ready(self, events: int) -> None:
        """Bytes came, or the connection broke."""
        if self._refusal is not None:  # nothing that comes now can help
            return self.close()
        try:
            count = self._socket.recv_into(self._decoder.buffer())
            if not count:
                return self.close()
            self._decoder.received(count)
            if self._go_on():
                self._server.event_loop.arm(self._descriptor)
        except HttpPeerError:
            self._log_refusal(400, len(_HTTP_TEXT))
            self.leave(_HTTP_ANSWER)
        except ConnectionFaultError as fault:
            self._refuse(fault)
        except BlockingIOError:
            self._server.event_loop.arm(self._descriptor)
        except OSError:
            self.close()
        return None

    def _go_on(self) -> bool:
        """Process complete frames.

        Return True while the handshake is in progress.
        """
        while (frame := self._decoder.next()) is not None:
            if frame.type == FrameType.HELLO:
                self._socket.sendall(self._handshake.answer_hello(frame))
                self._decoder.allowed = ALLOWED[Role.SERVER, HandshakeState.AUTH]
            elif frame.type == FrameType.AUTH:
                self._become_known(frame)
                return False
            else:
                self.close()
                return False
        return True

    def _become_known(self, frame: Frame) -> None:
        ready = self._handshake.answer_auth(frame)
        if self._server.full:
            raise ConnectionFaultError(
                ConnectionFault.TOO_MANY_CONNECTIONS,
                "the server has reached its limit of connections",
            )
        self._socket.sendall(ready)
        self._decoder.allowed = ALLOWED[Role.SERVER, HandshakeState.READY]
        self._forget()
        shake = self._handshake
        if shake.owner is not None:
            log.debug("the app %s has opened a connection", shake.owner.name)
        connection = Connection(
            self._server,
            self._socket,
            self._decoder,
            shake.client_max_frame,
            shake.owner,
            takes_parts=shake.client_takes_parts,
        )
        self._server.register(connection)

    def _refuse(self, fault: ConnectionFaultError) -> None:
        log.debug("refusing a connection: %s", fault.fault.name)
        self._log_refusal(_STATUS.get(fault.fault, 400), len(fault.body()))
        self._refusal = json_frame(FrameType.ERROR, fault.body(), arg=fault.fault)
        if fault.fault is ConnectionFault.UNAUTHORIZED:
            self._server.event_loop.set_timer(
                self, time.monotonic() + self._server.timeouts.wrong_proof
            )
        else:
            self.leave(self._refusal)

    def _log_refusal(self, status: int, size: int) -> None:
        log_request = self._server.service.traffic.log_request
        if log_request is not None:
            log_request(
                "socket",
                "HELLO",
                "",
                "",
                status,
                started=self._began,
                bytes_in=0,
                bytes_out=size,
                trusted=False,
            )

    def on_time(self) -> None:
        """Reject a wrong proof after its delay, or a slow handshake."""
        if self._refusal is not None:
            self.leave(self._refusal)
        else:
            text = f"the handshake took over {self._server.timeouts.handshake:g} s"
            self._refuse(ConnectionFaultError(ConnectionFault.TIMEOUT, text))

    def evict(self) -> None:
        """Close this handshake to make room for a newer one.

        A legitimate client would have finished by now.
        """
        fault = ConnectionFaultError(
            ConnectionFault.TOO_MANY_CONNECTIONS,
            "too many connections are in the handshake",
        )
        self.leave(json_frame(FrameType.ERROR, fault.body(), arg=fault.fault))

    def on_fault(self) -> None:
        """The loop failed on this connection."""
        self.close()

    def leave(self, last: bytes) -> None:
        """Send something last and close."""
        self._forget()
        try:
            self._socket.sendall(last)
        except OSError:
            self._socket.close()
            return
        LingeringClose.begin(self._server, self._socket)

    def close(self) -> None:
        """Close without a word."""
        self._forget()
        self._socket.close()

    def _forget(self) -> None:
        self._server.handshakes.pop(self, None)
        self._server.event_loop.remove(self._descriptor, self)
