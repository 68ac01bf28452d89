"""Requests and answers, independent of the transport."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from pocketserve_client.arrays import Array

JSON = "application/json"
OCTETS = "application/octet-stream"
LEAST_S = 1e-3  # of a wait: 0 would mean no wait, or no limit


class Request(NamedTuple):
    """A request that either transport can send."""

    method: str
    path: str
    """With its query string, percent-encoded."""
    chunks: Sequence[bytes | memoryview] = ()
    """The body's parts in order; they are sent without a copy."""
    json_length: int = 0
    """Bytes of JSON at the body's start; 0 for a raw body."""
    content_type: str = JSON
    wait: float | None = None
    """Seconds until its work must start; None leaves the limit to the server."""
    idempotent: bool = True
    """It may be repeated after its connection was lost."""
    may_fall_back: bool = False
    """Another server with the same models may answer it."""
    deadline: float = math.inf
    """Monotonic time at which the client stops waiting for the answer."""
    timeout: float | None = None
    """Seconds, instead of the client's timeout."""

    def seconds_left(self, most: float) -> float:
        """Return the seconds until the deadline, limited by the timeout or ``most``.

        The result is always above 0.
        """
        limit = most if self.timeout is None else self.timeout
        if self.deadline == math.inf:
            return limit
        return max(LEAST_S, min(limit, self.deadline - time.monotonic()))

    def within(self, timeout: float | None) -> Request:
        """Return the request with its own timeout, starting now."""
        if timeout is None:
            return self
        return self._replace(timeout=timeout, deadline=time.monotonic() + timeout)

    @property
    def body_length(self) -> int:
        """Return the number of bytes of the body."""
        return sum(map(len, self.chunks))


class Answer(NamedTuple):
    """A response; ``json_length`` is the length of the JSON if tensors follow it."""

    status: int
    body: bytes | memoryview
    json_length: int | None = None
    content_type: str = JSON
    server: str = ""
    """The URL of the server that sent it, if there is a fallback."""


class Outputs(dict[str, Array]):
    """Arrays by output name.

    With a fallback, ``server`` is the URL of the server that answered; else empty.
    """

    server: str = ""

    def _repr_html_(self) -> str:
        """Return a table of the tensors for a notebook."""
        from pocketserve_client.display.notebook import outputs_html

        return outputs_html(self)


class LabelledAnswer(dict[str, Any]):
    """An answer to raw input, with typed keys; ``server`` as in :class:`Outputs`."""

    server: str = ""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # rejects misspelt keys, unlike dict
        def __getitem__(
            self, key: Literal["model", "version", "task", "picture"]
        ) -> str: ...
        @overload
        def __getitem__(self, key: Literal["predictions"]) -> list[Any]: ...
        @overload
        def __getitem__(self, key: Literal["timing_ms"]) -> dict[str, float]: ...
        def __getitem__(self, key: Any) -> Any: ...

    def _repr_html_(self) -> str:
        """Return the picture and a table of the entries for a notebook."""
        from pocketserve_client.display.notebook import answer_html

        return answer_html(self)


class Picture(bytes):
    """The bytes of a PNG or JPEG file; ``server`` as in :class:`Outputs`."""

    server: str = ""

    def _repr_png_(self) -> bytes | None:
        """Return the file for a notebook, if it is a PNG."""
        return bytes(self) if self.startswith(b"\x89PNG") else None

    def _repr_jpeg_(self) -> bytes | None:
        """Return the file for a notebook, if it is a JPEG."""
        return bytes(self) if self.startswith(b"\xff\xd8") else None
