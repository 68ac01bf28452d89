"""Exchange a ten-digit code for the access token: both halves, without sockets.

``android_bridge/PAIRING.md`` specifies them. The code is never sent, the token only
encrypted. An impostor on the server's port gets one guess per attempt.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

from pocketserve_wire.srp import Srp, SrpError, private_number

# 30,000 guesses succeed with a probability of 3 in a million. Older servers show 6.
CODE_DIGITS: Final = 10
SALT_BYTES: Final = 16
EXCHANGE_BYTES: Final = 16
PROOF_BYTES: Final = 32
MAX_TOKEN_BYTES: Final = 256
USER: Final = b"pocketserve"
SRP: Final = Srp()
PUBLIC_BYTES: Final = SRP.size
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{32,256}")


class PairingError(Exception):
    """The exchange failed; the message is one sentence with a way out."""


def new_code() -> str:
    """Return a random code of ten digits."""
    return f"{secrets.randbelow(10**CODE_DIGITS):0{CODE_DIGITS}d}"


def clean_code(text: str) -> str:
    """Return the digits of a typed code, which may contain spaces and hyphens.

    Raises:
        PairingError: it does not have ten or six digits.
    """
    code = re.sub(r"[\s-]", "", text)
    if not re.fullmatch(r"[0-9]{10}|[0-9]{6}", code):
        raise PairingError(
            "a pairing code has 10 digits, that of an older server 6 digits"
        )
    return code


class ServerSecret:
    """The numbers derived from a code, computed once.

    ``docs/adr/0009-pairing.md`` explains why all exchanges of a code may share the exponent.
    """

    def __init__(self, code: str, salt: bytes, exponent: int | None = None) -> None:
        self.salt = salt
        self.exponent = exponent or private_number()
        self.verifier = SRP.verifier(SRP.password_key(salt, USER, code.encode("ascii")))
        self.public = SRP.server_public(self.exponent, self.verifier)


class ServerExchange:
    """The server's half of one attempt.

    Methods raise PairingError if the client's public number is invalid.
    """

    def __init__(self, secret: ServerSecret) -> None:
        self._secret = secret
        self.identifier = secrets.token_bytes(EXCHANGE_BYTES)
        self._client_public = 0

    def begin(self, client_public: bytes) -> bytes:
        """Accept the client's public number and return the server's, 256 bytes each."""
        self._client_public = int.from_bytes(client_public, "big")
        try:
            SRP.scrambler(self._client_public, self._secret.public)
        except SrpError as error:
            raise PairingError(
                f"{error}; use a client that knows this exchange"
            ) from None
        return SRP.pad(self._secret.public)

    def finish(self, proof: bytes, token: str) -> tuple[bytes, bytes] | None:
        """Return the server's 32-byte proof and the encrypted token.

        None means that the client does not know the code.
        """
        secret = self._secret
        shared = SRP.server_secret(
            secret.exponent, secret.verifier, self._client_public, secret.public
        )
        keys = _Keys(shared, secret.salt, self._client_public, secret.public)
        if not hmac.compare_digest(proof, keys.client_proof()):
            return None
        sealed = keys.seal(token.encode("ascii"))
        return keys.server_proof(proof, sealed), sealed


class ClientExchange:
    """The client's half of an exchange.

    Methods raise PairingError if the code is malformed or the server does not know it.
    """

    def __init__(self, code: str, exponent: int | None = None) -> None:
        self._code = clean_code(code).encode("ascii")
        self._exponent = exponent or private_number()
        self._public = SRP.client_public(self._exponent)
        self._keys: _Keys | None = None
        self._proof = b""

    def begin(self) -> bytes:
        """Return the client's public number (256 bytes)."""
        return SRP.pad(self._public)

    def prove(self, salt: bytes, server_public: bytes) -> bytes:
        """Return the 32-byte proof that the client knows the code."""
        number = int.from_bytes(server_public, "big")
        password_key = SRP.password_key(salt, USER, self._code)
        try:
            secret = SRP.client_secret(self._exponent, password_key, number)
        except SrpError as error:
            raise PairingError(f"{error}; this is not our server") from None
        self._keys = _Keys(secret, salt, self._public, number)
        self._proof = self._keys.client_proof()
        return self._proof

    def open(self, server_proof: bytes, sealed: bytes) -> str:
        """Return the token, after the server has proven that it knows the code."""
        assert self._keys is not None, "prove() comes first"
        expected = self._keys.server_proof(self._proof, sealed)
        if not hmac.compare_digest(server_proof, expected):
            raise PairingError(
                "the server does not know the code, so it is not our server; "
                "do not use its answers"
            )
        token = self._keys.seal(sealed)
        if not _TOKEN.fullmatch(token):
            raise PairingError(
                "the server sent something that is not a token; update both sides"
            )
        return token.decode("ascii")


class _Keys:
    """Proofs and encryption with the shared secret; each use has its own label."""

    def __init__(
        self, secret: int, salt: bytes, client_public: int, server_public: int
    ) -> None:
        self._key = hashlib.sha256(SRP.pad(secret)).digest()
        self._transcript = salt + SRP.pad(client_public) + SRP.pad(server_public)

    def _mac(self, label: bytes, data: bytes) -> bytes:
        return hmac.digest(
            self._key, b"pocketserve pairing 1 " + label + b"\0" + data, "sha256"
        )

    def client_proof(self) -> bytes:
        return self._mac(b"client", self._transcript)

    def server_proof(self, client_proof: bytes, sealed: bytes) -> bytes:
        return self._mac(b"server", self._transcript + client_proof + sealed)

    def seal(self, data: bytes) -> bytes:
        """Encrypt or decrypt by XOR with a key stream.

        The stream is used once only, because each exchange has its own key.
        """
        blocks = (len(data) + PROOF_BYTES - 1) // PROOF_BYTES
        stream = b""
        for number in range(blocks):
            stream += self._mac(b"token", number.to_bytes(4, "big"))
        return bytes(byte ^ mask for byte, mask in zip(data, stream, strict=False))
