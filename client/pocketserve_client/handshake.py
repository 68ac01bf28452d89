"""Open a connection of the socket protocol, which authenticates the server first."""

from __future__ import annotations

import os
import socket
import time

from pocketserve_client.errors import (
    FROZEN,
    NobodyListensError,
    NotOurServerError,
    PocketserveError,
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
    """Connect and authenticate, within ``timeout`` seconds.

    Args:
        key: the token's ASCII bytes; None sends no proof.

    Raises:
        NobodyListensError: the port refused the connection.
        ServerUnreachableError: the handshake failed or timed out.
        NotOurServerError: the listener could not prove that it knows the token.
        ServerError: UNAUTHORIZED: the server does not accept this token, or requires
            one.
    """
    deadline = time.monotonic() + timeout
    name = f"{address[0]}:{address[1]}"
    connected = _connect(address, timeout)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.HELLO], max_body)
        limits = _authenticate(connected, decoder, key, deadline, max_body)
        return connected, decoder, limits
    except BaseException as error:
        connected.close()
        if isinstance(error, ConnectionFaultError):
            raise _error_of_fault(error, name, key) from None
        if isinstance(error, OSError):
            raise _error_of_failure(error, name, timeout) from None
        raise


def _connect(address: tuple[str, int], timeout: float) -> socket.socket:
    """Connect, or raise NobodyListensError."""
    name = f"{address[0]}:{address[1]}"
    try:
        return socket.create_connection(address, timeout)
    except TimeoutError:
        text = f"{name} accepted no connection within {timeout:.3g} s; {FROZEN}"
        raise NobodyListensError(text) from None
    except OSError as error:
        fault = f"{name} cannot be reached ({error.strerror or error})"
        raise NobodyListensError(
            f"{fault}; is the server running? start it with: pocketserve serve"
        ) from None


def _authenticate(
    connected: socket.socket,
    decoder: FrameDecoder,
    key: bytes | None,
    deadline: float,
    max_body: int,
) -> ConnectionLimits:
    nonce = os.urandom(NONCE_BYTES)
    name = f"python/{__version__}"
    shake = ClientHandshake(key, nonce, max_body, name, takes_parts=True)
    connected.sendall(shake.hello)
    challenge = _next_frame(connected, decoder, deadline)
    connected.sendall(shake.answer_challenge(challenge))
    decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.AUTH]
    limits = shake.accept_ready(_next_frame(connected, decoder, deadline))
    decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.READY]
    return limits


def _error_of_fault(
    fault: ConnectionFaultError, name: str, key: bytes | None
) -> PocketserveError:
    if fault.fault is not ConnectionFault.UNAUTHORIZED:
        return ServerUnreachableError(
            f"{name}: {fault.message}; is it a pocketserve socket port?"
        )
    if key is None:
        return ServerError(401, "UNAUTHORIZED", fault.message)
    return NotOurServerError(f"{name}: {fault.message}")


def _error_of_failure(
    error: OSError, name: str, timeout: float
) -> ServerUnreachableError:
    if isinstance(error, TimeoutError):
        reason = f"did not answer within {timeout:.3g} s; {FROZEN}"
        text = f"{name} accepts connections but {reason}"
        return ServerUnreachableError(text)
    reason = str(error.strerror or error)
    return ServerUnreachableError(
        f"the handshake with {name} failed ({reason}); is it a pocketserve socket port?"
    )


def named_error(frame: Frame) -> Exception:
    """Convert an ERROR frame to an exception."""
    try:
        content = loads_object(bytes(frame.body))
    except ApiError:
        content = {}
    code = str(content.get("code", ""))
    message = str(content.get("error", "")) or "it gave no reason"
    if code == ConnectionFault.UNAUTHORIZED.name:
        return ServerError(401, code, message)
    return ServerUnreachableError(
        f"the server closed the connection: {message} ({code})"
    )


def _next_frame(
    connected: socket.socket, decoder: FrameDecoder, deadline: float
) -> Frame:
    while True:
        frame = decoder.next()
        if frame is not None:
            break
        connected.settimeout(max(0.001, deadline - time.monotonic()))
        count = connected.recv_into(decoder.buffer())
        if not count:
            raise OSError("it closed the connection")
        decoder.received(count)
    if frame.type == FrameType.ERROR:
        raise named_error(frame)
    return frame
