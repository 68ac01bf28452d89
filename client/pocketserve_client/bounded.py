"""HTTP connections with a deadline and a size limit for each exchange.

``http.client`` limits only the time of each wait for bytes, and not the memory it uses.
A server that sends one byte at a time, or ``100 Continue`` for ever, would never end.
"""

from __future__ import annotations

import io
import math
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from pocketserve_client.errors import NotOurServerError

MAX_HEAD_BYTES: Final = 1 << 20
"""Bytes besides the body: status lines, headers, and the sizes of chunks."""


class ExchangeLimits:
    """The remaining time and bytes of an exchange."""

    deadline = math.inf
    bytes_left = 0

    def begin(self, seconds: float, max_body: int) -> None:
        """Start an exchange, limited in seconds and in bytes of the answer's body."""
        self.deadline = time.monotonic() + seconds
        self.bytes_left = max_body + MAX_HEAD_BYTES

    def seconds_left(self) -> float:
        """Return the remaining seconds; raise TimeoutError if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the whole answer did not arrive in time")
        return left

    def count(self, received: int) -> None:
        """Count received bytes; raise NotOurServerError if they exceed the limit."""
        self.bytes_left -= received
        if self.bytes_left < 0:
            raise answer_too_large()


def answer_too_large() -> NotOurServerError:
    """Return the error for an answer that exceeds the limit."""
    return NotOurServerError(
        "the answer is larger than this client accepts (max_answer_bytes), or this "
        "address is not a pocketserve server"
    )


class BoundedConnection:
    """Mixin that limits an ``http.client`` connection. List it before that class."""

    exchange: ExchangeLimits
    sock: Any

    def connect(self) -> None:
        """Connect, and limit everything sent and received afterwards."""
        super().connect()  # type: ignore[misc]
        self.sock = _BoundedSocket(self.sock, self.exchange)


class _BoundedSocket:
    """The part of a socket that ``http.client`` uses, limited by an exchange."""

    def __init__(self, connected: socket.socket, exchange: ExchangeLimits) -> None:
        self._socket = connected
        self._exchange = exchange
        self.fileno = connected.fileno
        self.shutdown = connected.shutdown
        self.close = connected.close
        # Bytes that TLS has decrypted already; a plain socket has none.
        self.pending: Callable[[], int] = getattr(connected, "pending", int)

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(self._exchange.seconds_left())
        self._socket.sendall(data)

    def makefile(self, _mode: str, *_options: object) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._socket, self._exchange))

    def settimeout(self, _seconds: float | None) -> None:
        pass  # every operation sets its own timeout


class _BoundedReader(io.RawIOBase):
    """Reads within the limits of an exchange."""

    def __init__(self, connected: socket.socket, exchange: ExchangeLimits) -> None:
        self._socket = connected
        # Like http.client's own file, it keeps the connection open.
        self._raw = connected.makefile("rb", buffering=0)
        self._exchange = exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._exchange.seconds_left())
        count = self._raw.readinto(buffer)
        self._exchange.count(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
