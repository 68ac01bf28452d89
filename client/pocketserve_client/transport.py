"""Requests and answers, whichever transport carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

JSON = "application/json"
OCTETS = "application/octet-stream"


class Request(NamedTuple):
    """A request, ready to be sent by either transport."""

    method: str
    path: str  # with its query string, percent-encoded
    chunks: Sequence[bytes | memoryview] = ()  # the body's parts in order; they are sent from where they lie
    json_length: int = 0  # bytes of JSON at the body's start; 0 for a raw body
    content_type: str = JSON
    wait: float | None = None  # seconds until its work must start; None leaves it to the server
    idempotent: bool = True  # it may be sent again when its connection was lost

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
