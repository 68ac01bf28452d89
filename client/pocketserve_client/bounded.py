"""HTTP connections whose exchanges end: a monotonic deadline and a number of bytes hold for all that a peer sends.

The libraries below time each wait for bytes. A peer that drips, or that says ``100 Continue`` for ever, keeps within
each; and what they read into memory they do not count.
"""

from __future__ import annotations

import io
import math
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from pocketserve_client.errors import NotOurServerError

MAX_HEAD_BYTES: Final = (
    1 << 20
)  # beside the body: status lines, headers, and the sizes of chunks


class ExchangeLimits:
    """Time and bytes that an exchange may still take."""

    deadline = math.inf
    bytes_left = 0

    def begin(self, seconds: float, max_body: int) -> None:
        """Allow so many seconds for all of the next exchange, and so many bytes of its answer's body."""
        self.deadline = time.monotonic() + seconds
        self.bytes_left = max_body + MAX_HEAD_BYTES

    def seconds_left(self) -> float:
        """Return how much of the time is left; TimeoutError if nothing is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for the whole answer is over")
        return left

    def count(self, received: int) -> None:
        """Count bytes that came; NotOurServerError if they are more than an answer may have."""
        self.bytes_left -= received
        if self.bytes_left < 0:
            raise answer_too_large()


def answer_too_large() -> NotOurServerError:
    """Return the error for an answer that is not read to its end."""
    return NotOurServerError(
        "the answer is larger than this client takes (max_answer_bytes), or what answers at this address is not a "
        "pocketserve server"
    )


class BoundedConnection:
    """Keep a connection of ``http.client``, or of what is built on it, within ``exchange``. Name this base first."""

    exchange: ExchangeLimits
    sock: Any

    def connect(self) -> None:
        """Connect, and bound what is sent and read from then on."""
        super().connect()  # type: ignore[misc]
        self.sock = _BoundedSocket(self.sock, self.exchange)


class _BoundedSocket:
    """The part of a socket that ``http.client`` uses; each wait has the time that is left."""

    def __init__(self, connected: socket.socket, exchange: ExchangeLimits) -> None:
        self._socket = connected
        self._exchange = exchange
        self.fileno, self.shutdown, self.close = (
            connected.fileno,
            connected.shutdown,
            connected.close,
        )
        self.pending: Callable[[], int] = getattr(
            connected, "pending", int
        )  # bytes that TLS holds

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(self._exchange.seconds_left())
        self._socket.sendall(data)

    def makefile(self, _mode: str, *_options: object) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._socket, self._exchange))

    def settimeout(self, _seconds: float | None) -> None:
        pass  # each wait has its own


class _BoundedReader(io.RawIOBase):
    """Reads for as long, and as much, as the exchange may take."""

    def __init__(self, connected: socket.socket, exchange: ExchangeLimits) -> None:
        self._socket = connected
        self._raw = connected.makefile(
            "rb", buffering=0
        )  # keeps the connection open, as http.client expects it
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
