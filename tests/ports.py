"""Ports for servers that are started again on the same one, or whose port must be known before they are.

A port that the system gave and that was let go may be given to anybody in between: to another test's server, or to the
near end of a connection. So these lie below those that the system gives by itself, and nobody gets one who did not ask.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST, _USUAL = 10_000, 32_768
_chance = random.SystemRandom()  # processes that share the tests do not draw the same


def free_port() -> int:
    """A TCP port that nobody listens on, and that nobody is given by the system."""
    maximum = _first_given()
    for _ in range(1000):
        port = _chance.randrange(_LEAST, maximum)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port from {_LEAST} to {maximum} is free")


def _first_given() -> int:
    """Where the range begins from which the system gives ports."""
    try:
        first = int(_GIVEN.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL
    return first if first > _LEAST + 1000 else _USUAL
