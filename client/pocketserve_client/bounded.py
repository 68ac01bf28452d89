"""HTTP connections whose exchanges end: a monotonic deadline and a number of bytes hold for all that a peer sends.

``http.client`` times each wait for bytes. A peer that drips, or that says ``100 Continue`` for ever, keeps within each;
and what it reads into memory it does not count.
"""

from __future__ import annotations

import io
import math
import select
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Final
from urllib.parse import SplitResult

from pocketserve_client.errors import NotOurServerError, UnprovenPortError
from pocketserve_wire.files.run_file import Run

MAX_HEAD_BYTES: Final = 1 << 20
"""Beside the body: status lines, headers, and the sizes of chunks."""

Owner = Callable[[], Run | None]
"""Tells which server of this user has the port now."""


def answer_too_large() -> NotOurServerError:
    """Return the error for an answer that is not read to its end."""
    return NotOurServerError(
        "the answer is larger than this client takes (max_answer_bytes), or what answers at this address is not a "
        "pocketserve server"
    )


class BoundedConnection(HTTPConnection):
    """A connection that is opened with its first exchange, and again where the server has closed it.

    Args:
        owner: where given, nothing is sent to the port unless a server of this user has it.

    Raises:
        ValueError: the address is not one of HTTP.
    """

    def __init__(self, address: SplitResult, owner: Owner | None) -> None:
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError("an address begins with http://")
        self._secure = address.scheme == "https"
        self.default_port = 443 if self._secure else 80
        super().__init__(address.hostname, address.port or self.default_port)
        self._owner = owner
        self._ends = math.inf
        self._bytes_left = 0
        self.response_class = self._bounded_response  # type: ignore[assignment]

    def begin(self, seconds: float, max_body: int) -> None:
        """Allow so many seconds for all of the next exchange, and so many bytes of its answer's body."""
        self._ends = time.monotonic() + seconds
        self._bytes_left = max_body + MAX_HEAD_BYTES
        self.timeout = seconds
        if self.sock is not None:
            poller = select.poll()
            poller.register(self.sock, select.POLLIN)
            if poller.poll(0):  # the server has closed it, or said what nobody asked for
                self.close()

    def seconds_left(self) -> float:
        """Return how much of the time is left; TimeoutError if nothing is."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for the whole answer is over")
        return left

    def count(self, received: int) -> None:
        """Count bytes that came; NotOurServerError if they are more than an answer may have."""
        self._bytes_left -= received
        if self._bytes_left < 0:
            raise answer_too_large()

    def connect(self) -> None:
        """Connect, and make sure of the port's owner before anything is sent.

        The owner before and the owner after must be the same run of a server: then it had the port in between, too.
        One that only came afterwards may have taken over from whoever took this connection.
        """
        before = self._owner() if self._owner is not None else None
        super().connect()
        if self._owner is not None and (before is None or self._owner() != before):
            address = f"{self.host}:{self.port}"
            raise UnprovenPortError(
                f"nobody listens for the socket protocol, and nothing shows that who listens at {address} is your "
                "server, so it was told nothing; start the server with: pocketserve serve, or name the address "
                f"(--url, POCKETSERVE_URL or Client('http://{address}')) if you know who listens there"
            )
        if self._secure:
            import ssl

            self.sock.settimeout(self.seconds_left())
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def send(self, data: Any) -> None:
        """Send bytes within the time that is left."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.seconds_left())
        super().send(data)

    def _bounded_response(self, sock: Any, **options: Any) -> HTTPResponse:
        response = HTTPResponse(sock, **options)
        response.fp = io.BufferedReader(_BoundedReader(response.fp.detach(), sock, self))
        return response


class _BoundedReader(io.RawIOBase):
    """Reads for as long, and as much, as the exchange may take."""

    def __init__(self, raw: io.RawIOBase, sock: Any, connection: BoundedConnection) -> None:
        self._raw, self._sock, self._connection = raw, sock, connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._connection.seconds_left())
        count: int | None = self._raw.readinto(buffer)
        self._connection.count(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
