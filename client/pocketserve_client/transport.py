"""Requests and answers, whichever transport carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

JSON = "application/json"
OCTETS = "application/octet-stream"


class Request(NamedTuple):
    """A request, ready to be sent by either transport.

    Attributes:
        path: with its query string, percent-encoded.
        chunks: the body's parts in order; they are sent from where they lie.
        json_length: bytes of JSON at the body's start; 0 for a raw body.
        wait: seconds that the server may keep the request waiting before its work starts; None leaves it to the server.
        idempotent: sending it twice does no harm, so a broken connection is answered by sending it again.
    """

    method: str
    path: str
    chunks: Sequence[bytes | memoryview] = ()
    json_length: int = 0
    content_type: str = JSON
    wait: float | None = None
    idempotent: bool = True

    @property
    def body_length(self) -> int:
        """Bytes of the body."""
        return sum(len(chunk) for chunk in self.chunks)


class Answer(NamedTuple):
    """A response as it came; ``json_length`` is that of its JSON part when tensors follow it."""

    status: int
    body: bytes | memoryview
    json_length: int | None = None
    content_type: str = JSON
