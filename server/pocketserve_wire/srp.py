"""SRP-6a, a password-authenticated key exchange: two sides that share a short secret get a long one.

Who listens learns nothing, and who takes one side's part can test one guess of the secret per exchange. The formulas,
the 2048-bit group and the padding are those of RFC 5054; the hash is a parameter, SHA-256 where nothing else is said.
Numbers are unsigned and big-endian when they are hashed; :meth:`Group.pad` makes them as long as the modulus.

Python's ``pow`` does not take the same time for all numbers. Each secret here is used for one code only, and each
use costs its guesser a proof.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SECRET_BITS: Final = 256
Hash = Callable[[bytes], bytes]


class SrpError(Exception):
    """The other side sent a number that would give the secret away."""


@dataclass(frozen=True, slots=True)
class Group:
    """A safe prime and its generator."""

    modulus: int
    generator: int

    @property
    def size(self) -> int:
        """Length of the modulus in bytes."""
        return (self.modulus.bit_length() + 7) // 8

    def pad(self, number: int) -> bytes:
        """A number as bytes, as long as the modulus."""
        return number.to_bytes(self.size, "big")


RFC5054_2048: Final = Group(
    int(
        "AC6BDB41324A9A9BF166DE5E1389582FAF72B6651987EE07FC3192943DB56050A37329CBB4A099ED8193E0757767A13D"
        "D52312AB4B03310DCD7F48A9DA04FD50E8083969EDB767B0CF6095179A163AB3661A05FBD5FAAAE82918A9962F0B93B8"
        "55F97993EC975EEAA80D740ADBF4FF747359D041D5C33EA71D281E446B14773BCA97B43A23FB801676BD207A436C6481"
        "F1D2B9078717461A5B9D32E688F87748544523B524B0D57D5EA77A2775D2ECFA032CFBDBF52FB3786160279004E57AE6"
        "AF874E7303CE53299CCC041C7BC308D82A5698F3A8D0C38271AE35F8E9DBFBB694B5C803D89F7AE435DE236D525F5475"
        "9B65E372FCD68EF20FA7111F9E4AFF73",
        16,
    ),
    2,
)


def sha256(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def private_number() -> int:
    """A fresh secret exponent."""
    return secrets.randbits(SECRET_BITS) | 1 << (SECRET_BITS - 1)


@dataclass(frozen=True, slots=True)
class Srp:
    """The formulas for one group and hash; a number is named as in the RFC."""

    group: Group = RFC5054_2048
    hash: Hash = sha256

    def number(self, *parts: bytes) -> int:
        """A hash as a number."""
        return int.from_bytes(self.hash(b"".join(parts)), "big")

    def multiplier(self) -> int:
        """``k``."""
        return self.number(self.group.pad(self.group.modulus), self.group.pad(self.group.generator))

    def password_key(self, salt: bytes, user: bytes, password: bytes) -> int:
        """``x``."""
        return self.number(salt, self.hash(user + b":" + password))

    def verifier(self, x: int) -> int:
        """``v``."""
        return pow(self.group.generator, x, self.group.modulus)

    def client_public(self, a: int) -> int:
        """``A``."""
        return pow(self.group.generator, a, self.group.modulus)

    def server_public(self, b: int, v: int) -> int:
        """``B``."""
        return (self.multiplier() * v + pow(self.group.generator, b, self.group.modulus)) % self.group.modulus

    def scrambler(self, client_public: int, server_public: int) -> int:
        """``u``.

        Raises:
            SrpError: either number is out of range, or ``u`` is zero.
        """
        for number in (client_public, server_public):
            if not 0 < number < self.group.modulus:
                raise SrpError("a public number is out of range")
        u = self.number(self.group.pad(client_public), self.group.pad(server_public))
        if u == 0:
            raise SrpError("the public numbers do not fit together")
        return u

    def client_secret(self, a: int, x: int, server_public: int) -> int:
        """``S`` as the client computes it.

        Raises:
            SrpError: see :meth:`scrambler`.
        """
        u = self.scrambler(self.client_public(a), server_public)
        base = (server_public - self.multiplier() * self.verifier(x)) % self.group.modulus
        return pow(base, a + u * x, self.group.modulus)

    def server_secret(self, b: int, v: int, client_public: int, server_public: int) -> int:
        """Return ``S`` as the server computes it; ``server_public`` is what :meth:`server_public` gave for b and v.

        Raises:
            SrpError: see :meth:`scrambler`.
        """
        u = self.scrambler(client_public, server_public)
        return pow(client_public * pow(v, u, self.group.modulus), b, self.group.modulus)
