"""Opening a connection of the socket protocol: who listens is made sure of before anything is sent to it."""

from __future__ import annotations

import os
import socket
import time

from pocketserve_client.errors import (
    NobodyListensError,
    NotOurServerError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_wire.errors import ApiError, ConnectionFault, ConnectionFaultError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame, FrameType
from pocketserve_wire.handshake import NONCE_BYTES, ClientHandshake, ConnectionLimits
from pocketserve_wire.strict_json import loads_object
from pocketserve_wire.version import __version__


def open_connection(
    address: tuple[str, int], key: bytes | None, timeout: float, max_body: int
) -> tuple[socket.socket, FrameDecoder, ConnectionLimits]:
    """Connect and shake hands, within ``timeout`` seconds. ``key`` is the token's ASCII bytes; None sends no proof.

    Raises:
        NobodyListensError: the port took no connection.
        ServerUnreachableError: the handshake was not finished in time, or not kept to.
        NotOurServerError: what listens could not prove that it knows the token.
        ServerError: UNAUTHORIZED, the server does not know this token; or it asks for one and there is none.
    """
    deadline = time.monotonic() + timeout
    name = f"{address[0]}:{address[1]}"
    try:
        connected = socket.create_connection(address, timeout)
    except OSError as error:
        fault = f"{name} cannot be reached ({error.strerror or error})"
        raise NobodyListensError(
            f"{fault}; is the server running? start it with: pocketserve serve"
        ) from None
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.HELLO], max_body)
        shake = ClientHandshake(
            key, os.urandom(NONCE_BYTES), max_body, f"python/{__version__}"
        )
        connected.sendall(shake.hello)
        connected.sendall(
            shake.answer_challenge(_next_frame(connected, decoder, deadline))
        )
        decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.AUTH]
        limits = shake.accept_ready(_next_frame(connected, decoder, deadline))
        decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.READY]
        return connected, decoder, limits
    except ConnectionFaultError as fault:
        connected.close()
        if fault.fault is not ConnectionFault.UNAUTHORIZED:
            raise ServerUnreachableError(
                f"{name}: {fault.message}; is it a pocketserve socket port?"
            ) from None
        if key is None:
            raise ServerError(401, "UNAUTHORIZED", fault.message) from None
        raise NotOurServerError(f"{name}: {fault.message}") from None
    except OSError as error:
        connected.close()
        reason = (
            "took too long"
            if isinstance(error, TimeoutError)
            else str(error.strerror or error)
        )
        text = f"the handshake with {name} failed ({reason}); is it a pocketserve socket port?"
        raise ServerUnreachableError(text) from None
    except BaseException:
        connected.close()
        raise


def named_error(frame: Frame) -> Exception:
    """Return what an ERROR frame says."""
    try:
        content = loads_object(bytes(frame.body))
    except ApiError:
        content = {}
    code, message = (
        str(content.get("code", "")),
        str(content.get("error", "")) or "it gave no reason",
    )
    if code == ConnectionFault.UNAUTHORIZED.name:
        return ServerError(401, code, message)
    return ServerUnreachableError(
        f"the server closed the connection: {message} ({code})"
    )


def _next_frame(
    connected: socket.socket, decoder: FrameDecoder, deadline: float
) -> Frame:
    while (frame := decoder.next()) is None:
        connected.settimeout(max(0.001, deadline - time.monotonic()))
        count = connected.recv_into(decoder.buffer())
        if not count:
            raise OSError("it closed the connection")
        decoder.received(count)
    if frame.type == FrameType.ERROR:
        raise named_error(frame)
    return frame
