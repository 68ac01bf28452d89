"""The handshake of the socket protocol: each side proves that it knows the key, and neither sends it.

Four frames: HELLO, CHALLENGE, AUTH, READY. Both proofs are HMAC-SHA256 over a hash of the first two frames as they
went over the wire, so a proof is worth nothing on another connection and no offer can be changed on the way. The
construction follows SCRAM (RFC 5802) without its password stretching, which a random 256-bit key does not need.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from . import strict_json
from .errors import ApiError, ConnectionFault, ConnectionFaultError
from .frames import Frame, FrameType, json_frame

VERSION: Final = 1
NONCE_BYTES: Final = 16
AUTH_HMAC: Final = "hmac-sha256"
AUTH_NONE: Final = "none"
MAX_U32: Final = 2**32 - 1
LEAST_MAX_FRAME: Final = 4096  # bytes that every client must take: all errors fit

_CLIENT = b"OI1 client\0"
_SERVER = b"OI1 server\0"
_NONCE = re.compile(r"[0-9a-f]{32}")


class ConnectionLimits(NamedTuple):
    """Limits that a server tells its clients in READY."""

    max_frame: int  # bytes of the largest body
    max_inflight: int  # unanswered requests of one connection
    max_bytes_inflight: int  # bytes of their bodies together
    idle_ms: int  # time without a frame after which a connection is closed
    server: str  # name and version


def transcript(hello: bytes, challenge: bytes) -> bytes:
    """Return the SHA-256 of both frames, headers included."""
    return hashlib.sha256(hello + challenge).digest()


def client_proof(key: bytes, hashed: bytes) -> str:
    """Return the 64 hexadecimal digits that AUTH carries."""
    return hmac.new(key, _CLIENT + hashed, hashlib.sha256).hexdigest()


def server_proof(key: bytes, hashed: bytes) -> str:
    """Return the 64 hexadecimal digits that READY carries."""
    return hmac.new(key, _SERVER + hashed, hashlib.sha256).hexdigest()


class ServerHandshake:
    """The server's half of a handshake. Methods raise ConnectionFaultError where the client breaks the protocol.

    Args:
        key: the token's ASCII bytes; None on a server that asks for none.
        nonce: 16 random bytes, never used before.
        further: returns the valid keys of other tokens by their owners.
    """

    def __init__(
        self,
        key: bytes | None,
        nonce: bytes,
        limits: ConnectionLimits,
        further: Callable[[], Mapping[Any, bytes]] = dict,
    ) -> None:
        self._key, self._further, self._nonce, self._limits = (
            key,
            further,
            nonce,
            limits,
        )
        self._hashed = b""
        self.owner: Any = (
            None  # whose further token the client has; None for the first key
        )
        self.client_max_frame = 0  # bytes of the largest body that the client takes; set once HELLO was read

    def answer_hello(self, frame: Frame) -> bytes:
        """Return the CHALLENGE frame that answers a HELLO."""
        offer = _document(frame, FrameType.HELLO, expected=not self._hashed)
        lowest, highest = _versions(offer)
        if not lowest <= VERSION <= highest:
            raise ConnectionFaultError(
                ConnectionFault.UNSUPPORTED_VERSION,
                f"this server speaks version {VERSION} only, not {lowest} to {highest}",
                v=[VERSION, VERSION],
            )
        _check_nonce(offer)
        self.client_max_frame = _number(offer, "max_frame", LEAST_MAX_FRAME)
        auth = AUTH_HMAC if self._key is not None else AUTH_NONE
        body = strict_json.dumps(
            {"v": VERSION, "nonce": self._nonce.hex(), "auth": auth}
        )
        challenge = json_frame(FrameType.CHALLENGE, body)
        self._hashed = transcript(
            json_frame(FrameType.HELLO, bytes(frame.body)), challenge
        )
        return challenge

    def answer_auth(self, frame: Frame) -> bytes:
        """Return the READY frame that answers a good AUTH."""
        proof = _proof(_document(frame, FrameType.AUTH, expected=bool(self._hashed)))
        ready: dict[str, Any] = {}
        if self._key is not None:
            for owner, key in (
                (None, self._key),
                *self._further().items(),
            ):  # all: the time tells no match's place
                if hmac.compare_digest(proof, client_proof(key, self._hashed)):
                    ready["proof"], self.owner = server_proof(key, self._hashed), owner
            if not ready:
                raise _unauthorized(
                    "this is not the token of this server (pocketserve token prints it)"
                )
        return json_frame(
            FrameType.READY, strict_json.dumps(ready | self._limits._asdict())
        )


class ClientHandshake:
    """The client's half of a handshake. Methods raise ConnectionFaultError where the server breaks the protocol.

    Args:
        key: the token's ASCII bytes; None for a client that has none.
        nonce: 16 random bytes, never used before.
        max_frame: bytes of the largest body that this client takes, from 4,096.
        name: the client's name and version, for who reads the traffic; the server does not use it.
    """

    def __init__(
        self, key: bytes | None, nonce: bytes, max_frame: int, name: str = ""
    ) -> None:
        self._key = key
        offer = {"v": [VERSION, VERSION], "nonce": nonce.hex(), "max_frame": max_frame}
        self.hello = json_frame(
            FrameType.HELLO,
            strict_json.dumps(offer | ({"client": name} if name else {})),
        )
        """The frame to send first."""
        self._hashed = b""

    def answer_challenge(self, frame: Frame) -> bytes:
        """Return the AUTH frame that answers a CHALLENGE."""
        content = _document(frame, FrameType.CHALLENGE, expected=not self._hashed)
        version = _number(content, "v", 0)
        if version != VERSION:
            raise ConnectionFaultError(
                ConnectionFault.UNSUPPORTED_VERSION,
                f"the server chose version {version}, which was not offered",
            )
        _check_nonce(content)
        auth = content.get("auth")
        if auth not in (AUTH_HMAC, AUTH_NONE):
            raise _invalid(f"auth must be {AUTH_HMAC} or {AUTH_NONE}")
        if auth == AUTH_HMAC and self._key is None:
            raise _unauthorized(
                "the server asks for a token (pocketserve token prints it)"
            )
        if (
            auth == AUTH_NONE and self._key is not None
        ):  # a stranger on the server's port would do that
            raise _unauthorized(
                "what listens there does not ask for the token: it is not your server, or it runs with --no-auth; "
                "nothing was sent to it"
            )
        self._hashed = transcript(
            self.hello, json_frame(FrameType.CHALLENGE, bytes(frame.body))
        )
        proof = (
            {}
            if self._key is None
            else {"proof": client_proof(self._key, self._hashed)}
        )
        return json_frame(FrameType.AUTH, strict_json.dumps(proof))

    def accept_ready(self, frame: Frame) -> ConnectionLimits:
        """Return what the server allows, once it has proven that it knows the key."""
        content = _document(frame, FrameType.READY, expected=bool(self._hashed))
        if self._key is not None and not hmac.compare_digest(
            _proof(content), server_proof(self._key, self._hashed)
        ):
            raise _unauthorized(
                "what listens there could not prove that it knows the token: it is not your server, or it has "
                "another token; nothing was sent to it"
            )
        server = content.get("server")
        numbers = {
            name: _number(content, name, 1)
            for name in ConnectionLimits._fields
            if name != "server"
        }
        return ConnectionLimits(
            **numbers, server=server if isinstance(server, str) else ""
        )


def _document(frame: Frame, kind: FrameType, *, expected: bool) -> dict[str, Any]:
    # The decoder checks it already; but a proof over no transcript would be good for every connection.
    if frame.type != kind or not expected:
        raise ConnectionFaultError(
            ConnectionFault.UNEXPECTED_FRAME,
            f"{FrameType(frame.type).name} may not come here",
        )
    try:
        return strict_json.loads_object(bytes(frame.body))
    except ApiError as error:
        raise _invalid(error.message) from None


def _versions(offer: dict[str, Any]) -> tuple[int, int]:
    versions = offer.get("v")
    if (
        isinstance(versions, list)
        and len(versions) == 2
        and all(type(item) is int for item in versions)
    ):
        lowest, highest = versions
        if 0 <= lowest <= highest <= MAX_U32:
            return lowest, highest
    raise _invalid("v must be [lowest, highest]")


def _number(content: dict[str, Any], name: str, least: int) -> int:
    value = content.get(name)
    if type(value) is not int or not least <= value <= MAX_U32:
        raise _invalid(f"{name} must be a whole number from {least} to {MAX_U32}")
    return value


def _check_nonce(content: dict[str, Any]) -> None:
    value = content.get("nonce")
    if not isinstance(value, str) or not _NONCE.fullmatch(value):
        raise _invalid("nonce must be lower-case hexadecimal digits")


def _proof(content: dict[str, Any]) -> str:
    """Return the proof, or an empty text, which is none, for what cannot be compared with one."""
    value = content.get("proof")
    return value if isinstance(value, str) and value.isascii() else ""


def _unauthorized(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.UNAUTHORIZED, message)


def _invalid(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(
        ConnectionFault.BAD_HANDSHAKE, f"the handshake is broken: {message}"
    )
