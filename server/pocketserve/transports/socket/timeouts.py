"""The socket transport's timeouts, in seconds."""

from __future__ import annotations

import struct
from typing import NamedTuple


class Timeouts(NamedTuple):
    """The protocol's timeouts, and this server's own.

    Attributes:
        handshake: from connecting to AUTH, as the protocol says.
        frame: from a frame's first byte to its last, as the protocol says; also for those that are written.
        stall: without one byte taken while something is sent; then the peer is given up.
        quiet: how long a thread waits in a quiet connection before it leaves it to the event loop.
        lingering: how long what a refused peer still sends is read, so that it hears why.
        wrong_proof: how late a wrong proof is answered. A random key of 256 bits needs no protection from guessing;
            this keeps an app with an old token, which tries again and again, from using up the phone.
    """

    handshake: float = 5.0
    frame: float = 30.0
    stall: float = 10.0
    quiet: float = 2.0
    lingering: float = 1.0
    wrong_proof: float = 0.1

    @property
    def receive_timeout(self) -> bytes:
        """Return ``quiet`` as a C ``struct timeval`` for ``SO_RCVTIMEO``."""
        return struct.pack("ll", int(self.quiet), int(self.quiet % 1 * 1e6))
