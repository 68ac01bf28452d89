"""One REQUEST to one RESPONSE: the socket's counterpart of what Flask and the WSGI front do for HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pocketserve.api import dispatch, oip
from pocketserve.api.messages import JSON, OCTETS, ApiRequest, ApiResponse, error_response
from pocketserve.engine.scheduling import options as terms
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.inference.queued import QueuedRequest, Sender
from pocketserve.service import EARLY_HEAD_BYTES, Service
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
    from pocketserve.auth.app_tokens import AppToken

RESPONSE: Final = int(FrameType.RESPONSE)
Chunk = bytes | memoryview


def _read_target(target: bytes) -> tuple[dispatch.Target, dict[str, str]]:
    """The route and the query parameters; both are shared between requests and must not be changed."""
    return _remembered(target) if len(target) <= dispatch.LONGEST_REMEMBERED else _split(target)


def _split(target: bytes) -> tuple[dispatch.Target, dict[str, str]]:
    method, path, query = dispatch.split_target(target)
    return dispatch.match(method, path), dispatch.parse_query(query)


_remembered = lru_cache(dispatch.REMEMBERED)(_split)


def handle(
    service: Service, frame: Frame, received: float, cancellation: Cancellation, app: AppToken | None = None
) -> ApiResponse:
    """Answer a REQUEST; never raises.

    Args:
        frame: whole; its body must not be changed any more.
        received: when its header was read, by the monotonic clock.
        app: the app's token that the connection was opened with; None for the installation's own.
    """
    try:
        target, query = _read_target(frame.target)
        dispatch.check_owner(target.route, app.name if app is not None else None)
        content_type = _read_ext(frame.ext) if frame.ext else ""
    except Exception as error:
        return dispatch.failure(error, "reading a request")
    request = _request(frame, target, query, content_type, received, cancellation)
    answer = dispatch.answer(service, target.route, request)
    if target.head:
        answer.chunks = []
    return answer


def _request(
    frame: Frame,
    target: dispatch.Target,
    query: dict[str, str],
    content_type: str,
    received: float,
    cancellation: Cancellation,
) -> ApiRequest:
    # As in HTTP, where the header that says so counts on these routes only.
    body = memoryview(frame.body)
    split = target.route.answer == "infer" and frame.json_length != len(body)
    json_length = frame.json_length if split else None
    deadline = received + frame.arg / 1000 if frame.arg else None
    return ApiRequest(target.path, query, body, json_length, content_type, deadline, cancellation, received, True)


def wait(
    service: Service, frame: Frame, received: float, cancellation: Cancellation, sender: Sender
) -> QueuedRequest | ApiResponse | None:
    """Let an inference request wait for its model without a thread, where it would have to wait; never raises.

    Args:
        frame, received, cancellation: as for :func:`handle`.
        sender: begins and answers what waits.

    Returns:
        What waits; or the answer to what may not; or None, where nothing was done and :func:`handle` answers it.
    """
    target = _plain_inference(frame)
    if target is None:
        return None
    try:
        return oip.infer_later(service, _request(frame, target, {}, "", received, cancellation), sender)
    except Exception as error:
        return dispatch.failure(error, "waiting for a model")


def finish(queued: QueuedRequest) -> ApiResponse:
    """The answer to what has waited; never raises."""
    try:
        return oip.finish(queued)
    except Exception as error:
        return dispatch.failure(error, "running what has waited")


def reject_early(service: Service, frame: Frame, follower: tuple[bytes, memoryview] | None) -> ApiResponse | None:
    """The answer to a request that its model cannot take now, on the thread that has read it; None to go on as usual.

    Handing the right to read over and reading the request costs several times as much as this.

    Args:
        follower: target and JSON part of the next request on the connection, if it is there.
    """
    target = _plain_inference(frame)
    if target is None:
        return None
    after = follower[1] if follower is not None and follower[0] == frame.target else None
    head = memoryview(frame.body)[: frame.json_length]
    error = service.refusal(target.path["model"], target.path.get("version"), head, after)
    return _refused(error.code, error.message, error.retry_after_s) if error is not None else None


def _plain_inference(frame: Frame) -> dispatch.Target | None:
    """Return what an inference request without query and extensions asks; None for every other request."""
    try:
        target, query = _read_target(frame.target)
    except ApiError:
        return None
    return None if target.route.answer != "infer" or query or frame.ext else target


def stream_of(frame: Frame) -> str:
    """The stream that an inference request belongs to; "" where that is not seen at once."""
    if frame.ext or frame.json_length > EARLY_HEAD_BYTES:
        return ""
    head = bytes(memoryview(frame.body)[: frame.json_length])
    if b'"stream"' not in head:
        return ""
    return terms.stream_of(head) if _plain_inference(frame) is not None else ""


def queue_of(service: Service, frame: Frame) -> ModelQueue | None:
    """Return where an inference request would wait; None if its model is not loaded."""
    path = _read_target(frame.target)[0].path
    return service.lane(path["model"], path.get("version"))


def reject(service: Service, frame: Frame, reason: ApiError) -> ApiResponse:
    """The answer to an inference request that is not run and that its model never heard of; counted."""
    path = _read_target(frame.target)[0].path
    error = service.reject(path["model"], path.get("version"), reason)
    return _refused(error.code, error.message, error.retry_after_s)


@lru_cache(dispatch.REMEMBERED)
def _refused(code: ErrorCode, message: str, retry_after_s: float | None) -> ApiResponse:
    """The answer, which is shared between requests: under overload it is nearly always the same."""
    return error_response(ApiError(code, message, retry_after_s=retry_after_s))


def _read_ext(ext: object) -> str:
    assert isinstance(ext, dict)
    for tag in ext:
        if tag & CRITICAL:
            raise ApiError(
                ErrorCode.NOT_IMPLEMENTED, f"extension {tag} must be understood, and this server does not know it"
            )
    content_type = ext.get(Extension.CONTENT_TYPE, b"")
    return bytes(content_type).decode("ascii")


def respond(service: Service, frame: Frame, answer: ApiResponse, maximum: int) -> tuple[list[Chunk], int]:
    """Count the answer to a REQUEST, and encode it; as :func:`encode`."""
    try:
        route = _read_target(frame.target)[0].route
    except ApiError:
        service.traffic.count("socket", "", "", answer.status)
    else:
        service.traffic.count("socket", route.method, route.pattern, answer.status)
    return encode(frame.request_id, answer, maximum)


def encode(request_id: int, answer: ApiResponse, maximum: int) -> tuple[list[Chunk], int]:
    """A RESPONSE's pieces, to be sent from where they lie, and their length together.

    Args:
        maximum: bytes of the largest body that the client takes.
    """
    size = 0
    for chunk in answer.chunks:  # as sum() with map() has it, for two thirds of what they cost
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
    head = HEADER.pack(MARK, RESPONSE, 0, request_id, answer.status, 0, len(ext), json_length, size)
    return [head + ext, *answer.chunks], HEADER_BYTES + len(ext) + size


def _write_ext(answer: ApiResponse, *, whole_json: bool) -> bytes:
    ext: dict[int, bytes] = {}
    if answer.content_type != (JSON if whole_json else OCTETS):
        ext[Extension.CONTENT_TYPE] = answer.content_type.encode("ascii")
    if answer.retry_after_s is not None:
        ext[Extension.RETRY_AFTER_MS] = encode_retry_after(int(1000 * answer.retry_after_s))
    return encode_ext(ext) if ext else b""


def _too_large(size: int, maximum: int) -> ApiResponse:
    text = f"the answer has {size} bytes, more than the {maximum} that the client takes (its max_frame)"
    answer = error_response(ApiError(ErrorCode.BODY_TOO_LARGE, text))
    if sum(map(len, answer.chunks)) > maximum:
        answer.chunks = []  # its status still says it
    return answer


class Admission:
    """Counts what one connection has under way, and says no to what is too much. Not thread-safe.

    Args:
        max_body: bytes of one body.
        maximum: requests under way.
        max_bytes: bytes of their bodies together.
        access: whether the token that the connection was opened with is good still; None for one that stays so.

    Attributes:
        refusal: why the request whose header was read last is not taken; its body is thrown away.
        received: when that header was read, by the monotonic clock.
    """

    def __init__(self, max_body: int, maximum: int, max_bytes: int, access: Callable[[], bool] | None = None) -> None:
        self._access = access
        self._max_body = max_body
        self._most = maximum
        self._max_bytes = max_bytes
        self.count = 0
        self.bytes = 0
        self.refusal: ApiError | None = None
        self.received = 0.0

    def admit(self, body_length: int) -> bool:
        """Look at a request's header: is its body to be kept?"""
        self.received = time.monotonic()
        self.refusal = None
        if self._access is not None and not self._access():
            text = "the token that this connection was opened with has expired or was taken back"
            self.refusal = ApiError(ErrorCode.UNAUTHORIZED, text)
        elif body_length > self._max_body:
            text = f"the body exceeds {self._max_body} bytes (max_body_bytes)"
            self.refusal = ApiError(ErrorCode.BODY_TOO_LARGE, f"Request Entity Too Large: {text}")
        elif self.count >= self._most:
            self.refusal = _full(f"{self.count} requests are under way on this connection (socket_inflight)")
        elif self.bytes + body_length > self._max_bytes and self.count:
            self.refusal = _full(f"bodies of {self.bytes} bytes are under way on this connection (socket_bytes)")
        return self.refusal is None

    def refuse(self, why: str) -> None:
        """Do not take the request whose header was read last."""
        self.refusal = _full(why)


def _full(what: str) -> ApiError:
    return ApiError(ErrorCode.QUEUE_FULL, f"{what}; try again later", retry_after_s=0.1)
