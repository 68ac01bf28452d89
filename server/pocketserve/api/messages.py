"""Requests, responses and routes, shared by transports and handlers."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.entries import Execute
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import Payload
from pocketserve_wire import ApiError, ErrorCode, strict_json

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.state import VersionRecord
    from pocketserve.service import Service

JSON = "application/json"
MAX_NOTHING = 4096  # bytes that are checked if no body is expected
OCTETS = "application/octet-stream"


class PartSink(Protocol):
    """Takes the parts of an answer while it is being made, on the thread that runs the
    request."""

    def send(self, data: bytes) -> None:
        """Send a part of the body, the header before the first one.

        Raises:
            ApiError: CANCELLED, the client has gone or doesn't read.
        """
        ...

    def check(self) -> None:
        """Raise as :meth:`send` if the client has gone."""
        ...

    def end(self, response: ApiResponse) -> None:
        """Send the response as the last part, if a part was sent; mark it as sent."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class ApiRequest:
    """A checked and decoded request.

    Attributes:
        path: values of the route's placeholders, percent-decoded.
        body: the whole body, inflated.
        json_length: bytes of JSON at the body's start, see :mod:`pocketserve_wire.oip`.
        content_type: the client's claim; a hint, less reliable than the bytes.
        deadline: monotonic time by which the work must have started.
        cancellation: set when the client gives up; None if the transport cannot detect it.
        received: monotonic time of arrival, which orders the requests of a stream.
        owner: identity of the client's token; "" for the installation's own, and if none
            is required.
        execute: has a thread of the transport run a job for this request; set before it is dispatched.
        keeps_thread: that thread may run the next request's model after this one's.
        parts: takes parts of a ``text/event-stream``; None if the transport sends
            complete responses only.
        client_id: the request id in the body, for the log; set by the handler.
        model: the model that the body names, for the log; set by the handler.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: memoryview = field(default_factory=lambda: memoryview(b""))
    json_length: int | None = None
    content_type: str = ""
    deadline: float | None = None
    cancellation: Cancellation | None = None
    received: float | None = None
    owner: str = ""
    execute: Execute | None = None
    keeps_thread: bool = False
    parts: PartSink | None = None
    client_id: str = ""
    model: str = ""

    @property
    def check_parts(self) -> Callable[[], None] | None:
        """Return the check whether the client still takes parts; None without parts."""
        return None if self.parts is None else self.parts.check


@dataclass(slots=True, eq=False, repr=False)
class ApiResponse:
    """A response that any transport can send.

    Attributes:
        chunks: the body's parts in order; they may reference a tensor's own memory.
        json_length: set when binary tensors follow the JSON part.
        compressible: the transport may compress the body when the client asked for it.
        sent: the transport has sent it already, in parts.
        retry_after_s: seconds after which trying again makes sense; for HTTP it is among the headers too.
    """

    status: int = 200
    content_type: str = JSON
    chunks: list[bytes | memoryview] = field(default_factory=list)
    json_length: int | None = None
    compressible: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    sent: bool = False


Handler = Callable[["Service", ApiRequest], ApiResponse | InferenceCall]
"""Answer a request, or name the inference that answers it."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """An entry of the dispatch table, see :mod:`pocketserve.api.routes`.

    Attributes:
        handler_name: the handler, see :func:`load_handler`.
        group: its protocol.
        open: needs no token.
        owner: needs the installation's own token; app tokens are rejected.
        local: concerns one process; a server of several workers rejects it.
        body: the body of a POST, a key of ``openapi.REQUEST_BODIES``.
        answer: the response, a key of ``openapi.ANSWERS``.
        streams: the response may come in parts, as server-sent events, or takes long.
        binary_tensors: tensors' bytes may follow JSON in the body; a socket's reader
            prepares it itself.
    """

    method: str
    pattern: str
    handler_name: str
    group: str
    answer: str
    body: str | None = None
    open: bool = False
    owner: bool = False
    label: str = ""
    streams: bool = False
    binary_tensors: bool = False
    local: bool = False

    @property
    def name(self) -> str:
        """Return a unique name: the operation's id."""
        function = self.handler_name.rpartition(".")[2].removeprefix("v1_")
        tail = "_version" if "{version}" in self.pattern else ""
        slash = "_slash" if self.pattern.endswith("/") and len(self.pattern) > 1 else ""
        return f"{function}{self.label}{tail}{slash}"


@functools.cache
def load_handler(name: str) -> Handler:
    """Import and return the handler MODULE.FUNCTION.

    Modules are imported on first use.
    """
    module, _, function = name.rpartition(".")
    return cast(
        Handler, getattr(importlib.import_module(f"pocketserve.api.{module}"), function)
    )


def json_response(value: Any) -> ApiResponse:
    """Return a JSON answer with status 200."""
    return ApiResponse(chunks=[strict_json.dumps(value)])


def error_response(error: ApiError) -> ApiResponse:
    """Return the answer to a fault."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="pocketserve"'
    return ApiResponse(
        status=error.status,
        chunks=[error.body()],
        headers=headers,
        retry_after_s=error.retry_after_s,
    )


def query_number(request: ApiRequest, name: str, high: float) -> float:
    """Return a number of the query string, 0 if missing.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    text = request.query.get(name)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= high:
        raise ApiError(
            ErrorCode.INVALID_PARAMETER,
            f"query parameter {name} must be a number from 0 to {high:g}",
            field=name,
        )
    return value


def inference_call(
    service: Service,
    request: ApiRequest,
    payload: Payload,
    parameters: Mapping[str, Any],
    respond: Callable[[Any], ApiResponse] | None,
    *,
    version: str | None = None,
    explain: Callable[[ApiError], ApiError] | None = None,
    record: VersionRecord | None = None,
) -> InferenceCall:
    """Return the call of a request.

    Args:
        parameters: the protocol's, which say how it waits.
        version: by default the path's.
        respond, explain, record: see
            :class:`~pocketserve.inference.call.InferenceCall`.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    options = service.request_options(
        parameters,
        request.deadline,
        request.cancellation,
        request.received,
        request.owner,
    )
    if version is None:
        version = request.path.get("version")
    return InferenceCall(
        request.path["model"],
        version,
        payload,
        options,
        request.execute,
        respond,
        explain,
        request.keeps_thread,
        record,
    )


FLAGS = {"true": True, "false": False}
WAITING_QUERY = ("timeout_ms", "priority", "stream")
"""Query parameters that say how a request waits."""


def waiting_parameters(request: ApiRequest) -> dict[str, Any]:
    """Return the query's timeout, priority and stream as parameters.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    if not request.query:
        return {}
    timeout_us = int(1000 * query_number(request, "timeout_ms", 86_400_000))
    priority = request.query.get("priority", "0")
    if not (priority.isascii() and priority.isdigit()) or len(priority) > 10:
        raise ApiError(
            ErrorCode.INVALID_PARAMETER,
            "query parameter priority must be a whole number from 0",
            field="priority",
        )
    values = {
        "timeout": timeout_us,
        "priority": int(priority),
        "stream": request.query.get("stream"),
    }
    return {name: value for name, value in values.items() if value or value == ""}


SEQUENCE_QUERY = ("sequence_id", "sequence_start", "sequence_end")
"""Query parameters of a step of a sequence. An id of digits is a number, as in JSON."""


def sequence_parameters(request: ApiRequest) -> dict[str, Any]:
    """Return the query's sequence parameters, unchecked."""
    values: dict[str, Any] = {}
    for name in SEQUENCE_QUERY:
        text = request.query.get(name)
        if text is None:
            continue
        values[name] = text
        if name == "sequence_id":
            if re.fullmatch(r"[0-9]{1,20}", text):
                values[name] = int(text)
        elif text in FLAGS:
            values[name] = FLAGS[text]
    return values


def refuse_unknown_query(request: ApiRequest, *names: str) -> None:
    """Refuse misspelt query parameters instead of passing over them.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    for name in request.query:
        if name not in names:
            text = (
                f"unknown query parameter {name[:64]!r}; known are {', '.join(names)}"
            )
            raise ApiError(ErrorCode.INVALID_PARAMETER, text, field=name[:64])


def expect_nothing(request: ApiRequest) -> None:
    """Reject any query, and any body but an empty JSON object.

    Raises:
        ApiError: INVALID_PARAMETER, INVALID_REQUEST, MALFORMED_JSON.
    """
    refuse_unknown_query(request)
    if len(request.body) and strict_json.loads(request.body[:MAX_NOTHING]) != {}:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "this takes no body, or an empty JSON object"
        )


def not_offered(text: str, summary: str = "Not offered.") -> Handler:
    """Return a handler that rejects a feature of other servers.

    ``text`` says what to do instead.
    """

    def handler(service: Service, request: ApiRequest) -> ApiResponse:
        raise ApiError(ErrorCode.NOT_IMPLEMENTED, text)

    handler.__doc__ = summary
    return handler
