"""Requests and answers, whichever transport carries them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from pocketserve_client.arrays import Array

JSON = "application/json"
OCTETS = "application/octet-stream"
LEAST_S = 1e-3  # of a wait: 0 would mean none, or for ever


class Request(NamedTuple):
    """A request, ready to be sent by either transport."""

    method: str
    path: str  # with its query string, percent-encoded
    chunks: Sequence[
        bytes | memoryview
    ] = ()  # the body's parts in order; they are sent from where they lie
    json_length: int = 0  # bytes of JSON at the body's start; 0 for a raw body
    content_type: str = JSON
    wait: float | None = (
        None  # seconds until its work must start; None leaves it to the server
    )
    idempotent: bool = True  # it may be sent again when its connection was lost
    may_fall_back: bool = False  # another server with the same models may answer it
    deadline: float = (
        math.inf
    )  # monotonic time by which its answer is no longer waited for
    timeout: float | None = None  # seconds, in place of the client's

    def seconds_left(self, most: float) -> float:
        """Return the seconds until its deadline, up to its timeout or so many; a little above 0 when it is over."""
        limit = most if self.timeout is None else self.timeout
        if self.deadline == math.inf:
            return limit
        return max(LEAST_S, min(limit, self.deadline - time.monotonic()))

    def within(self, timeout: float | None) -> Request:
        """Return the request with a timeout of its own, which begins now; None leaves it to the client."""
        if timeout is None:
            return self
        return self._replace(timeout=timeout, deadline=time.monotonic() + timeout)

    @property
    def body_length(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.chunks))


class Answer(NamedTuple):
    """A response as it came; ``json_length`` is that of its JSON part when tensors follow it."""

    status: int
    body: bytes | memoryview
    json_length: int | None = None
    content_type: str = JSON
    server: str = ""  # the URL of the server that gave it, where there are two


class Outputs(dict[str, Array]):
    """Arrays by output name. With a fallback, ``server`` is the URL of the server that answered; else empty."""

    server: str = ""


class LabelledAnswer(dict[str, Any]):
    """An answer to raw input; ``server`` as in :class:`Outputs`. Type checkers know its keys."""

    server: str = ""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # a dict takes any key; a misspelt one is a fault here
        def __getitem__(
            self, key: Literal["model", "version", "task", "picture"]
        ) -> str: ...
        @overload
        def __getitem__(self, key: Literal["predictions"]) -> list[Any]: ...
        @overload
        def __getitem__(self, key: Literal["timing_ms"]) -> dict[str, float]: ...
        def __getitem__(self, key: Any) -> Any: ...


class Picture(bytes):
    """The bytes of a PNG or JPEG file; ``server`` as in :class:`Outputs`."""

    server: str = ""
