"""From a REQUEST frame to its RESPONSE."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from pocketserve.api import dispatch
from pocketserve.api.messages import (
    JSON,
    OCTETS,
    ApiRequest,
    ApiResponse,
    Route,
    error_response,
)
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.frames import (
    CRITICAL,
    HEADER,
    HEADER_BYTES,
    MARK,
    Extension,
    Frame,
    FrameType,
    encode_ext,
    encode_retry_after,
)

if TYPE_CHECKING:
    from pocketserve.engine.scheduling.entries import Job
    from pocketserve.transports.socket.connection import Connection
    from pocketserve.transports.socket.part_sink import SocketParts

RESPONSE: Final = int(FrameType.RESPONSE)
Chunk = bytes | memoryview

SHORT_JSON: Final = 4096
"""Bytes of JSON that are parsed in less time than it takes to have another thread read the connection."""


class Exchange(ApiRequest):
    """A request of a connection, and its answer.

    Args:
        frame: whole; its body must not be changed any more.
        received: when its header was read, by the monotonic clock.

    Attributes:
        reads: its thread is the connection's reader. At first that is so where :meth:`start` takes less time
            than to have another thread read.
    """

    __slots__ = ("_connection", "_fault", "_head", "_route", "frame", "reads", "thread")

    cancellation: Cancellation
    parts: SocketParts | None
    received: float
    _route: Route | None

    def __init__(
        self, connection: Connection, frame: Frame, received: float, thread: int
    ) -> None:
        # Not super().__init__(): one is made for every request.
        self._connection = connection
        self.frame = frame
        self.thread = thread
        self.received = received
        self.client_id = self.model = ""
        self.parts = None
        self.cancellation = Cancellation()
        self.execute, self.keeps_thread = connection.execute, True
        self.owner = ""
        try:
            self._route, self.path, self._head, self.query = _read_target(frame.target)
        except ApiError as fault:
            self._route, self._head, self._fault = None, False, fault
        self.reads = frame.json_length <= SHORT_JSON and (
            self._route is None or self._route.binary_tensors
        )

    def start(self) -> Job | None:
        """Begin to answer; never raises.

        Returns:
            As :func:`pocketserve.api.dispatch.start_request`.
        """
        frame, connection, route = self.frame, self._connection, self._route
        try:
            if route is None:
                raise self._fault
            if connection.app is not None:
                dispatch.check_owner(route, connection.app.name)
                self.owner = connection.app.name
            self.content_type = _read_ext(frame.ext) if frame.ext else ""
        except Exception as error:
            self.done(dispatch.failure(error, "reading a request"))
            return None
        self.body = body = memoryview(frame.body)
        # As in HTTP, where the header that says so counts on these routes only.
        self.json_length = (
            frame.json_length
            if route.binary_tensors and frame.json_length != len(body)
            else None
        )
        if route.streams:
            connection.watch_end()
        if route.streams and connection.takes_parts:
            self.parts = self._open_parts()
        self.deadline = self.received + frame.arg / 1000 if frame.arg else None
        return dispatch.start_request(connection.service, route, self, self.done)

    def _open_parts(self) -> SocketParts:
        """Return the sink for parts of the answer."""
        # Imported late: few requests are answered in parts.
        from pocketserve.transports.socket.part_sink import SocketParts

        return SocketParts(self._connection, self.frame.request_id, self.cancellation)

    def done(self, answer: ApiResponse) -> None:
        """Count the answer, and send it."""
        if self._head:
            answer.chunks = []
        self._count(answer)
        self._connection.answer(self, answer)

    def refuse(self, error: ApiError) -> ApiResponse:
        """Return and count the response to a rejected request."""
        answer = error_response(error)
        self._count(answer)
        return answer

    def _count(self, answer: ApiResponse) -> None:
        size = sum(map(len, answer.chunks))
        if self.parts is not None:
            size += self.parts.size
        traffic = self._connection.service.traffic
        traffic.count("socket", self._route, answer.status)
        if traffic.log_request is not None:
            method, path = _target_parts(self.frame.target)
            model = self.model
            if not model and self._route is not None:
                model = self.path.get("model", "")
            traffic.log_request(
                "socket",
                method,
                path,
                model,
                answer.status,
                started=self.received,
                bytes_in=len(self.frame.body),
                bytes_out=size,
                ids={"id": self.client_id},
            )


def _target_parts(target: bytes) -> tuple[str, str]:
    """Return a target's method and path for the log.

    The query is omitted. Both are empty for an invalid target.
    """
    method, _, path = re.split("[?#]", target.decode("latin-1"), maxsplit=1)[
        0
    ].partition(" ")
    return (
        (method, unquote_to_bytes(path).decode("latin-1"))
        if path.startswith("/")
        else ("", "")
    )


SocketTarget = tuple[Route, dict[str, str], bool, dict[str, str]]
"""A route, the path's values, whether HEAD was asked for, and the query parameters; shared, not to be changed."""


def _read_target(target: bytes) -> SocketTarget:
    return (
        _cached_target(target)
        if len(target) <= dispatch.LONGEST_REMEMBERED
        else _split(target)
    )


def _split(target: bytes) -> SocketTarget:
    method, path, query = dispatch.split_target(target)
    return (*dispatch.match(method, path), dispatch.parse_query(query))


_cached_target = lru_cache(dispatch.REMEMBERED)(_split)


def _read_ext(ext: object) -> str:
    assert isinstance(ext, dict)
    for tag in ext:
        if tag & CRITICAL:
            raise ApiError(
                ErrorCode.NOT_IMPLEMENTED,
                f"extension {tag} is critical, and this server does not know it",
            )
    content_type = ext.get(Extension.CONTENT_TYPE, b"")
    return bytes(content_type).decode("ascii")


def encode(
    request_id: int, answer: ApiResponse, maximum: int
) -> tuple[list[Chunk], int]:
    """Return a RESPONSE's pieces and their total length.

    Args:
        maximum: bytes of the largest body that the client takes.
    """
    size = 0
    # As with sum() and map(), for two thirds of the cost.
    for chunk in answer.chunks:
        size += len(chunk)
    if size > maximum:
        return encode(request_id, _too_large(size, maximum), max(maximum, size))
    json_length = answer.json_length
    if json_length is None:
        json_length = size if answer.content_type == JSON else 0
    whole_json = json_length == size
    ext = b""
    if whole_json or answer.content_type != OCTETS or answer.retry_after_s is not None:
        ext = _write_ext(answer, whole_json=whole_json)
    head = HEADER.pack(
        MARK, RESPONSE, 0, request_id, answer.status, 0, len(ext), json_length, size
    )
    return [head + ext, *answer.chunks], HEADER_BYTES + len(ext) + size


def _write_ext(answer: ApiResponse, *, whole_json: bool) -> bytes:
    ext: dict[int, bytes] = {}
    if answer.content_type != (JSON if whole_json else OCTETS):
        ext[Extension.CONTENT_TYPE] = answer.content_type.encode("ascii")
    if answer.retry_after_s is not None:
        ext[Extension.RETRY_AFTER_MS] = encode_retry_after(
            int(1000 * answer.retry_after_s)
        )
    return encode_ext(ext) if ext else b""


def _too_large(size: int, maximum: int) -> ApiResponse:
    text = (
        f"the answer has {size} bytes, more than the {maximum} that the client accepts "
        "(its max_frame)"
    )
    answer = error_response(ApiError(ErrorCode.BODY_TOO_LARGE, text))
    if sum(map(len, answer.chunks)) > maximum:
        answer.chunks = []  # its status still says it
    return answer
