"""A request's deadline, priority and stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from pocketserve.engine.scheduling.cancellation import Cancellation, cancelled
from pocketserve_wire import ApiError, ErrorCode

MAX_TIMEOUT_US = 86_400_000_000
MAX_STREAM_CHARS = 128
MAX_PRIORITY = 2**32 - 1

DEFAULT_PRIORITY = 5
"""The rank of priority 0: 1 to 4 are more urgent, 6 and above are background work."""


class RequestOptions:
    """The options of one request.

    Slots make creation cheap: every request has one.

    Attributes:
        deadline: monotonic seconds after which the model is not started on it any more.
        arrived: monotonic seconds; of two requests of a stream the later one is the newer.
        rank: lower goes first, see :data:`DEFAULT_PRIORITY`.
        stream: the stream whose newest request is the only one worth answering, by client and name; "" is none.
        cancellation: set when the client gives up; None if the transport cannot detect it.
        owner: identity of the client's token; names that clients choose hold for one owner.
    """

    __slots__ = ("arrived", "cancellation", "deadline", "owner", "rank", "stream")

    def __init__(
        self,
        deadline: float,
        arrived: float = 0.0,
        rank: int = DEFAULT_PRIORITY,
        stream: Hashable = "",
        cancellation: Cancellation | None = None,
        owner: str = "",
    ) -> None:
        self.deadline = deadline
        self.arrived = arrived
        self.rank = rank
        self.stream = stream
        self.cancellation = cancellation
        self.owner = owner

    def check(self) -> None:
        """Raise if the request was cancelled or its deadline has passed.

        Raises:
            ApiError: CANCELLED, DEADLINE_EXCEEDED.
        """
        if self.cancellation is not None and self.cancellation.cancelled:
            raise cancelled()
        if time.monotonic() > self.deadline:
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                "the request's timeout passed while its input was being prepared; send less of it at once",
            )


def read_options(
    parameters: Mapping[str, Any],
    deadline: float | None = None,
    cancellation: Cancellation | None = None,
    received: float | None = None,
    owner: str = "",
    *,
    longest_wait: float,
    clock: Callable[[], float] = time.monotonic,
) -> RequestOptions:
    """Parse the parameters ``timeout``, ``priority`` and ``stream``.

    The timeout is in microseconds.

    Args:
        deadline: monotonic seconds, from the transport; the earliest limit counts.
        received: monotonic seconds, when it came; None is now.
        owner: identity of the client's token.
        longest_wait: seconds that no request may wait longer than.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    now = clock()
    ends = now + longest_wait
    arrived = now if received is None else received
    if deadline is not None and deadline < ends:
        ends = deadline
    if not parameters:
        return RequestOptions(ends, arrived, DEFAULT_PRIORITY, "", cancellation, owner)
    timeout = _whole(parameters, "timeout", MAX_TIMEOUT_US, "microseconds")
    if timeout:
        ends = min(ends, now + timeout / 1e6)
    priority = _whole(parameters, "priority", MAX_PRIORITY, "a whole number")
    name = _stream(parameters)
    stream = (owner, name) if name else ""
    return RequestOptions(
        ends, arrived, priority or DEFAULT_PRIORITY, stream, cancellation, owner
    )


def _whole(parameters: Mapping[str, Any], name: str, maximum: int, unit: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= maximum:
        raise ApiError(
            ErrorCode.INVALID_PARAMETER,
            f"parameters.{name} must be {unit} from 0 to {maximum}",
        )
    return value


def _stream(parameters: Mapping[str, Any]) -> str:
    value = parameters.get("stream", "")
    if not isinstance(value, str):
        return ""  # such as true, by which others ask for an answer in parts
    if len(value) > MAX_STREAM_CHARS:
        raise ApiError(
            ErrorCode.INVALID_PARAMETER,
            f"parameters.stream must be a text of at most {MAX_STREAM_CHARS} characters",
        )
    return value
