"""SRP-6a, a password-authenticated key exchange.

Two sides that share a short secret agree on a long one. An eavesdropper learns nothing,
and an impostor can test one guess of the secret per exchange. The formulas, the
2048-bit group, the padding and the names are those of RFC 5054; the hash is a
parameter. Numbers are hashed as unsigned big-endian bytes. A public number out of
range, or a scrambler of zero, raises SrpError.

Python's ``pow`` does not run in constant time. Each secret here belongs to one code
only, and each use costs an attacker one of the limited attempts.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

SECRET_BITS: Final = 256
MODULUS_2048: Final = int(
    "AC6BDB41324A9A9BF166DE5E1389582FAF72B6651987EE07FC3192943DB56050A37329CBB4A099ED8193E0757767A13D"
    "D52312AB4B03310DCD7F48A9DA04FD50E8083969EDB767B0CF6095179A163AB3661A05FBD5FAAAE82918A9962F0B93B8"
    "55F97993EC975EEAA80D740ADBF4FF747359D041D5C33EA71D281E446B14773BCA97B43A23FB801676BD207A436C6481"
    "F1D2B9078717461A5B9D32E688F87748544523B524B0D57D5EA77A2775D2ECFA032CFBDBF52FB3786160279004E57AE6"
    "AF874E7303CE53299CCC041C7BC308D82A5698F3A8D0C38271AE35F8E9DBFBB694B5C803D89F7AE435DE236D525F5475"
    "9B65E372FCD68EF20FA7111F9E4AFF73",
    16,
)


class SrpError(Exception):
    """The peer sent a number that would reveal the secret."""


def private_number() -> int:
    """Return a fresh secret exponent."""
    return secrets.randbits(SECRET_BITS) | 1 << (SECRET_BITS - 1)


class Srp(NamedTuple):
    """The formulas for one group (a safe prime and its generator) and one hash."""

    modulus: int = MODULUS_2048
    generator: int = 2
    hash: Callable[[bytes], bytes] = lambda data: hashlib.sha256(data).digest()

    @property
    def size(self) -> int:
        """Return the length of the modulus in bytes."""
        return (self.modulus.bit_length() + 7) // 8

    def pad(self, number: int) -> bytes:
        """Encode a number with the modulus's length."""
        return number.to_bytes(self.size, "big")

    def _number(self, *parts: bytes) -> int:
        return int.from_bytes(self.hash(b"".join(parts)), "big")

    def multiplier(self) -> int:
        """Return ``k``."""
        return self._number(self.pad(self.modulus), self.pad(self.generator))

    def password_key(self, salt: bytes, user: bytes, password: bytes) -> int:
        """Return ``x``."""
        return self._number(salt, self.hash(user + b":" + password))

    def verifier(self, x: int) -> int:
        """Return ``v``."""
        return pow(self.generator, x, self.modulus)

    def client_public(self, a: int) -> int:
        """Return ``A``."""
        return pow(self.generator, a, self.modulus)

    def server_public(self, b: int, v: int) -> int:
        """Return ``B``."""
        return (
            self.multiplier() * v + pow(self.generator, b, self.modulus)
        ) % self.modulus

    def scrambler(self, client_public: int, server_public: int) -> int:
        """Return ``u``."""
        if not (0 < client_public < self.modulus and 0 < server_public < self.modulus):
            raise SrpError("a public number is out of range")
        u = self._number(self.pad(client_public), self.pad(server_public))
        if u == 0:
            raise SrpError("the public numbers do not fit together")
        return u

    def client_secret(self, a: int, x: int, server_public: int) -> int:
        """Return ``S`` as the client computes it."""
        u = self.scrambler(self.client_public(a), server_public)
        base = (server_public - self.multiplier() * self.verifier(x)) % self.modulus
        return pow(base, a + u * x, self.modulus)

    def server_secret(
        self, b: int, v: int, client_public: int, server_public: int
    ) -> int:
        """Return ``S`` as the server computes it.

        ``server_public`` is the result of :meth:`server_public` for b and v.
        """
        u = self.scrambler(client_public, server_public)
        return pow(client_public * pow(v, u, self.modulus), b, self.modulus)
