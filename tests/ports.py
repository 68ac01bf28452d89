"""Reserve ports for servers that restart on the same one.

A port that the system assigned and that was closed may be assigned again in between: to
another test's server, or to a client's end of a connection. So these ports are below
the range that the system assigns from.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 10_000
_USUAL = 32_768
_chance = random.SystemRandom()  # processes that share the tests draw different ones


def free_port() -> int:
    """Return an unused TCP port that the system doesn't assign to others."""
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
    """Return the start of the range from which the system assigns ports."""
    try:
        first = int(_GIVEN.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL
    if first > _LEAST + 1000:
        return first
    return _USUAL
