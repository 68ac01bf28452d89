"""The mutual authentication of the socket protocol, without sending the key.

Four frames: HELLO, CHALLENGE, AUTH, READY. Both proofs are HMAC-SHA256 over a hash of
the first two frames. A proof is therefore useless on another connection, and nobody can
change an offer in transit. The construction follows SCRAM (RFC 5802) without its
password stretching, which a random 256-bit key does not need.
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
LEAST_MAX_FRAME: Final = 4096  # every client must accept this many bytes, as all errors

_CLIENT = b"OI1 client\0"
_SERVER = b"OI1 server\0"
_NONCE = re.compile(r"[0-9a-f]{32}")


class ConnectionLimits(NamedTuple):
    """Limits that a server announces in READY."""

    max_frame: int  # bytes of the largest body
    max_inflight: int  # unanswered requests of one connection
    max_bytes_inflight: int  # total bytes of their bodies
    idle_ms: int  # a connection without frames is closed after this time
    server: str  # name and version


def transcript(hello: bytes, challenge: bytes) -> bytes:
    """Return the SHA-256 of both frames, headers included."""
    return hashlib.sha256(hello + challenge).digest()


def client_proof(key: bytes, hashed: bytes) -> str:
    """Return the client's proof for AUTH: 64 hexadecimal digits."""
    return hmac.new(key, _CLIENT + hashed, hashlib.sha256).hexdigest()


def server_proof(key: bytes, hashed: bytes) -> str:
    """Return the server's proof for READY: 64 hexadecimal digits."""
    return hmac.new(key, _SERVER + hashed, hashlib.sha256).hexdigest()


class ServerHandshake:
    """The server's half of a handshake.

    Methods raise ConnectionFaultError if the client breaks the protocol.

    Args:
        key: the token's ASCII bytes; None on a server without a token.
        nonce: 16 random bytes, never used before.
        further: returns the valid keys of other tokens by owner.
    """

    def __init__(
        self,
        key: bytes | None,
        nonce: bytes,
        limits: ConnectionLimits,
        further: Callable[[], Mapping[Any, bytes]] = dict,
    ) -> None:
        self._key = key
        self._further = further
        self._nonce = nonce
        self._limits = limits
        self._hashed = b""
        self.owner: Any = None
        """Owner of the additional token that the client used; None for ``key``."""
        self.client_max_frame = 0
        """Bytes of the largest body that the client accepts; set by HELLO."""
        self.client_takes_parts = False
        """Whether the client accepts PART frames; set by HELLO."""

    def answer_hello(self, frame: Frame) -> bytes:
        """Check a HELLO and return the CHALLENGE frame."""
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
        self.client_takes_parts = offer.get("parts") is True
        auth = AUTH_HMAC if self._key is not None else AUTH_NONE
        body = strict_json.dumps(
            {"v": VERSION, "nonce": self._nonce.hex(), "auth": auth}
        )
        challenge = json_frame(FrameType.CHALLENGE, body)
        hello = json_frame(FrameType.HELLO, bytes(frame.body))
        self._hashed = transcript(hello, challenge)
        return challenge

    def answer_auth(self, frame: Frame) -> bytes:
        """Check an AUTH and return the READY frame."""
        proof = _proof(_document(frame, FrameType.AUTH, expected=bool(self._hashed)))
        ready: dict[str, Any] = {}
        if self._key is not None:
            ready["proof"] = self._verify(proof, self._key)
        ready |= self._limits._asdict()
        return json_frame(FrameType.READY, strict_json.dumps(ready))

    def _verify(self, proof: str, first_key: bytes) -> str:
        """Find the key that the client has proven, and return the server's proof."""
        answer = ""
        # Compare with every key: the duration must not reveal which one matches.
        for owner, key in ((None, first_key), *self._further().items()):
            if hmac.compare_digest(proof, client_proof(key, self._hashed)):
                answer = server_proof(key, self._hashed)
                self.owner = owner
        if not answer:
            raise _unauthorized(
                "this is not the token of this server (pocketserve token prints it)"
            )
        return answer


class ClientHandshake:
    """The client's half of a handshake.

    Methods raise ConnectionFaultError if the server breaks the protocol.

    Args:
        key: the token's ASCII bytes; None for a client without a token.
        nonce: 16 random bytes, never used before.
        max_frame: bytes of the largest body that this client accepts, from 4,096.
        name: the client's name and version, for traffic dumps; the server ignores it.
        takes_parts: accept answers in PART frames.
    """

    def __init__(
        self,
        key: bytes | None,
        nonce: bytes,
        max_frame: int,
        name: str = "",
        *,
        takes_parts: bool = False,
    ) -> None:
        self._key = key
        offer = {"v": [VERSION, VERSION], "nonce": nonce.hex(), "max_frame": max_frame}
        if name:
            offer["client"] = name
        if takes_parts:
            offer["parts"] = True
        self.hello = json_frame(FrameType.HELLO, strict_json.dumps(offer))
        """The frame to send first."""
        self._hashed = b""

    def answer_challenge(self, frame: Frame) -> bytes:
        """Check a CHALLENGE and return the AUTH frame."""
        content = _document(frame, FrameType.CHALLENGE, expected=not self._hashed)
        version = _number(content, "v", 0)
        if version != VERSION:
            raise ConnectionFaultError(
                ConnectionFault.UNSUPPORTED_VERSION,
                f"the server chose version {version}, which was not offered",
            )
        _check_nonce(content)
        self._check_auth(content.get("auth"))
        challenge = json_frame(FrameType.CHALLENGE, bytes(frame.body))
        self._hashed = transcript(self.hello, challenge)
        auth: dict[str, Any] = {}
        if self._key is not None:
            auth["proof"] = client_proof(self._key, self._hashed)
        return json_frame(FrameType.AUTH, strict_json.dumps(auth))

    def _check_auth(self, auth: object) -> None:
        """Raise unless client and server agree on whether there is a token."""
        if auth not in (AUTH_HMAC, AUTH_NONE):
            raise _invalid(f"auth must be {AUTH_HMAC} or {AUTH_NONE}")
        if auth == AUTH_HMAC and self._key is None:
            raise _unauthorized(
                "the server requires a token (pocketserve token prints it)"
            )
        # Another program that took over the server's port would ask for no proof.
        if auth == AUTH_NONE and self._key is not None:
            raise _unauthorized(
                "the server does not require the token: it is not your server, or it "
                "runs with --no-auth; nothing was sent to it"
            )

    def accept_ready(self, frame: Frame) -> ConnectionLimits:
        """Verify the server's proof and return its limits."""
        content = _document(frame, FrameType.READY, expected=bool(self._hashed))
        if self._key is not None:
            expected = server_proof(self._key, self._hashed)
            if not hmac.compare_digest(_proof(content), expected):
                raise _unauthorized(
                    "the server could not prove that it knows the token: it is not "
                    "your server, or it has another token; nothing was sent to it"
                )
        server = content.get("server")
        return ConnectionLimits(
            max_frame=_number(content, "max_frame", 1),
            max_inflight=_number(content, "max_inflight", 1),
            max_bytes_inflight=_number(content, "max_bytes_inflight", 1),
            idle_ms=_number(content, "idle_ms", 1),
            server=server if isinstance(server, str) else "",
        )


def _document(frame: Frame, kind: FrameType, *, expected: bool) -> dict[str, Any]:
    # The decoder checks the order, too, but a proof over an empty transcript would be
    # valid on every connection.
    if frame.type != kind or not expected:
        raise ConnectionFaultError(
            ConnectionFault.UNEXPECTED_FRAME,
            f"{FrameType(frame.type).name} is not allowed here",
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
    """Return the proof, or an empty string if it is missing or not comparable."""
    value = content.get("proof")
    return value if isinstance(value, str) and value.isascii() else ""


def _unauthorized(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.UNAUTHORIZED, message)


def _invalid(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(
        ConnectionFault.BAD_HANDSHAKE, f"the handshake is invalid: {message}"
    )
