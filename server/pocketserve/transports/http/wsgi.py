"""The data plane's WSGI callable, and helpers for all callables.

Flask gets every other request.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.api import dispatch
from pocketserve.api.messages import (
    JSON,
    ApiRequest,
    ApiResponse,
    Route,
    error_response,
)
from pocketserve.auth.guard import PAGE, Guard
from pocketserve.service import Service
from pocketserve.transports.http import compression
from pocketserve.transports.http.body import MAX_JOINED
from pocketserve.transports.request_log import read_request_id, read_trace_id
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.oip import parse_json_length

if TYPE_CHECKING:
    from pocketserve.transports.http.event_stream import EventStream

LINE_END = b"\n"
"""Ends JSON, so that a shell's prompt does not follow curl's output on its line."""

OWNER_KEY = "pocketserve.owner"
"""Environ key for the token's owner, if the server has checked it; None for an
invalid token. No header can set it: those keys begin with ``HTTP_``."""

START_RESPONSE = "pocketserve.start_response"
"""Environ key for ``start_response``, where the answer may be sent in parts."""

DATA_PLANE = frozenset({"infer", "prediction", "health"})
"""Values of ``Route.answer`` that are answered without Flask."""

JSON_LENGTH_KEY = "HTTP_INFERENCE_HEADER_CONTENT_LENGTH"
PLAIN_ENCODINGS = ("", "identity")

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class HttpResponse(NamedTuple):
    """A response ready to send.

    Attributes:
        status: empty if the response was sent in parts.
        headers: without the body's length.
        chunks: the body's parts.
    """

    status: str
    headers: dict[str, str]
    chunks: list[bytes | memoryview]


class _DataPlane:
    """The WSGI callable for inference, predictions and health."""

    def __init__(self, service: Service, guard: Guard, fallback: WsgiApp) -> None:
        self._service = service
        self._guard = guard
        self._fallback = fallback

    def __call__(
        self, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if not path.isascii():
            path = path.encode("latin-1").decode("utf-8", errors="replace")
        method = environ["REQUEST_METHOD"]
        if method == "OPTIONS" and environ.get("HTTP_ORIGIN") in self._guard.origins:
            return preflight(self._service, self._guard, environ, start_response)
        try:
            match = dispatch.match(method, path)
        except ApiError:
            return self._fallback(environ, start_response)
        # Browsers request a service worker's script at any path; the page refuses it.
        is_worker = "HTTP_SERVICE_WORKER" in environ
        is_ours = match.route.streams or match.route.answer in DATA_PLANE
        if is_worker or match.head or not is_ours:
            return self._fallback(environ, start_response)
        if match.route.streams:
            environ[START_RESPONSE] = start_response
        response = respond(self._service, self._guard, environ, match)
        if not response.status:  # it was sent in parts
            return []
        return send(response, start_response)


def send(response: HttpResponse, start_response: StartResponse) -> Iterable[bytes]:
    """Start a WSGI response and return its body."""
    size = 0
    for chunk in response.chunks:
        size += len(chunk)
    headers = [*response.headers.items(), ("Content-Length", str(size))]
    start_response(response.status, headers)
    if size <= MAX_JOINED:
        return [b"".join(response.chunks)]
    # Send large parts without a copy. waitress accepts memoryviews, although WSGI does
    # not require that of servers.
    return response.chunks  # type: ignore[return-value]


def create_data_plane(service: Service, guard: Guard, fallback: WsgiApp) -> WsgiApp:
    """Return the callable for inference, predictions and health.

    Args:
        fallback: answers all other requests.
    """
    return _DataPlane(service, guard, fallback)


def preflight(
    service: Service, guard: Guard, environ: Environ, start_response: StartResponse
) -> Iterable[bytes]:
    """Answer a browser's CORS preflight request.

    Such a request carries no token.
    """
    started = time.monotonic()
    origin = environ["HTTP_ORIGIN"]
    is_page = environ["PATH_INFO"].startswith("/web/")
    try:
        guard.check_source(environ.get("HTTP_HOST"), origin, own_page=is_page)
    except ApiError as error:
        answer = error_response(error)
        answer.headers["Content-Type"] = answer.content_type
    else:
        allowed = guard.origins.preflight_headers(origin, environ)
        answer = ApiResponse(204, headers=allowed)
    body = b"".join(answer.chunks)
    service.traffic.count("http", None, answer.status)
    log_answer(service, environ, answer.status, started, len(body))
    headers = list(answer.headers.items())
    if body:
        headers.append(("Content-Length", str(len(body))))
    start_response(status_line(answer.status), headers)
    return [body]


class _CountedAnswer(NamedTuple):
    """A request's answer, with details for log and counters.

    Attributes:
        route: None if the client may not know whether it exists.
        owner: the token's owner; None without a valid token.
        client_id: the request id in the body.
        model: the model that the body names.
    """

    response: ApiResponse
    route: Route | None
    owner: str | None
    client_id: str = ""
    model: str = ""


def respond(
    service: Service, guard: Guard, environ: Environ, match: dispatch.Target | ApiError
) -> HttpResponse:
    """Answer a request, and count and log the answer.

    Args:
        match: the request's route, or the error for its path; clients without access
            do not see this error.
    """
    traffic = service.traffic
    started = 0.0 if traffic.log_request is None else time.monotonic()
    answer = _answer(service, guard, environ, match)
    response = answer.response
    try:
        encoded = _encode_response(response, environ)
    except Exception as error:  # out of memory while compressing
        response = dispatch.failure(error, "encoding an answer")
        encoded = _encode_response(response, {})
    if guard.has_origins or "HTTP_X_REQUEST_ID" in environ:
        _add_headers(encoded.headers, guard, environ)
    traffic.count("http", answer.route, response.status)
    if traffic.log_request is not None:
        model = answer.model
        if not model and not isinstance(match, ApiError):
            model = match.path.get("model", "")
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        size = 0 if is_head else sum(map(len, encoded.chunks))
        log_answer(
            service,
            environ,
            response.status,
            started,
            size,
            model,
            trusted=answer.owner is not None,
            client_id=answer.client_id,
        )
    return encoded


def _add_headers(headers: dict[str, str], guard: Guard, environ: Environ) -> None:
    """Add the request's id, and the headers for pages of listed origins."""
    request_id = read_request_id(environ.get("HTTP_X_REQUEST_ID"))
    if request_id:
        headers["X-Request-Id"] = request_id
    origin, vary = environ.get("HTTP_ORIGIN"), headers.get("Vary", "")
    headers |= guard.origins.response_headers(origin, vary)


def _open_stream(environ: Environ, guard: Guard) -> EventStream:
    """Return the sink for parts of an answer."""
    # Imported late: few requests are answered in parts.
    from pocketserve.transports.http.event_stream import EventStream

    headers: dict[str, str] = {}
    _add_headers(headers, guard, environ)
    return EventStream(environ, environ[START_RESPONSE], headers)


def _answer(
    service: Service, guard: Guard, environ: Environ, match: dispatch.Target | ApiError
) -> _CountedAnswer:
    """Check access, decode the request and answer it."""
    route = owner = None
    try:
        target_route = None if isinstance(match, ApiError) else match.route
        owner = _check_access(guard, target_route, environ)
        if isinstance(match, ApiError):
            raise match
        route = match.route
        max_inflated = 0 if owner is None else service.config.max_body_bytes
        request = _read_request(environ, route, match.path, max_inflated)
        request.owner = owner or ""
        if START_RESPONSE in environ:
            request.parts = _open_stream(environ, guard)
    except Exception as error:
        action = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        return _CountedAnswer(
            dispatch.failure(error, action, target_route), route, owner
        )
    response = dispatch.answer_request(service, route, request)
    if request.parts is not None:
        request.parts.end(response)
    return _CountedAnswer(response, route, owner, request.client_id, request.model)


def log_answer(
    service: Service,
    environ: Environ,
    status: int,
    started: float,
    size: int,
    model: str = "",
    *,
    trusted: bool = False,
    client_id: str = "",
) -> None:
    """Log a request, if requests are logged.

    Args:
        started: monotonic time of the request's arrival.
        size: bytes of the response's body.
        trusted: the request had a valid token.
        client_id: the request id in the body.
    """
    if service.traffic.log_request is not None:
        service.traffic.log_request(
            "http",
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            model,
            status,
            started=started,
            bytes_in=len(environ["wsgi.input"].getbuffer()),
            bytes_out=size,
            trusted=trusted,
            ids={
                "request_id": read_request_id(environ.get("HTTP_X_REQUEST_ID")),
                "trace_id": read_trace_id(environ.get("HTTP_TRACEPARENT")),
                "id": client_id,
            },
            trace={
                "traceparent": environ.get("HTTP_TRACEPARENT", ""),
                "tracestate": environ.get("HTTP_TRACESTATE", ""),
            },
        )


def _check_access(guard: Guard, route: Route | None, environ: Environ) -> str | None:
    """Return the token's owner, None without a valid token.

    Raises:
        ApiError: the client has no access to the route.
    """
    host = environ.get("HTTP_HOST")
    origin = environ.get("HTTP_ORIGIN")
    is_page = route is not None and route.group == "web"
    guard.check_source(host, origin, own_page=is_page)
    if OWNER_KEY in environ:
        owner: str | None = environ[OWNER_KEY]
    else:
        owner = guard.identify(environ.get("HTTP_AUTHORIZATION"))
    if owner is None:
        if route is None or not route.open:
            raise guard.unauthorized()
        return None
    if owner == PAGE and origin is not None and not guard.is_own_origin(host, origin):
        raise ApiError(
            ErrorCode.ORIGIN_REFUSED,
            "a session is for the server's own page only; send the token",
        )
    if owner:
        dispatch.check_owner(route, owner)
    return owner


def _read_request(
    environ: Environ, route: Route, path: Mapping[str, str], max_inflated: int
) -> ApiRequest:
    """Check and decode a request.

    Args:
        max_inflated: limit for the size of an inflated body; 0 without the token,
            where nothing is inflated.

    Raises:
        ApiError: for an invalid encoding, query or JSON length, in this order.
    """
    received = environ["wsgi.input"]
    # Without a body it is a BytesIO. No view of that is kept: Python 3.14 logs an
    # error if the garbage collector frees the object before the view.
    is_view = not isinstance(received, io.BytesIO)
    body = received.getbuffer() if is_view else memoryview(received.getvalue())
    encoding = environ.get("HTTP_CONTENT_ENCODING")
    if encoding is not None:
        body = memoryview(compression.inflate(body, encoding, max_inflated))
    query: Mapping[str, str] = {}
    if environ.get("QUERY_STRING"):
        text = environ["QUERY_STRING"].encode("latin-1").decode(errors="replace")
        query = dispatch.parse_query(text)
    json_length = None
    # On other routes tritonclient may send the header by mistake: it leaves it in its
    # caller's dict, which then goes with every later call.
    if route.binary_tensors and JSON_LENGTH_KEY in environ:
        json_length = parse_json_length(environ[JSON_LENGTH_KEY], len(body))
    content_type = environ.get("CONTENT_TYPE", "")
    if route.answer == "v1_predict" and "HTTP_CE_SPECVERSION" in environ:
        # In CloudEvents' binary mode, the type is that of the data.
        content_type = "application/cloudevents"
    return ApiRequest(path, query, body, json_length, content_type)


@cache
def status_line(status: int) -> str:
    """Return a status line such as ``404 Not Found``."""
    if status == 200:
        return "200 OK"
    # Imported late: most responses have status 200.
    from http import HTTPStatus

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def _encode_response(response: ApiResponse, environ: Environ) -> HttpResponse:
    """Return status, headers and body, compressed if requested."""
    headers = dict(response.headers)
    chunks = response.chunks
    if response.json_length is not None:
        headers["Inference-Header-Content-Length"] = str(response.json_length)
    elif response.content_type == JSON:
        chunks = [*chunks, LINE_END]
    if response.compressible:
        headers["Vary"] = "Accept-Encoding"
        accepted = environ.get("HTTP_ACCEPT_ENCODING", "")
        coding = None
        if accepted not in PLAIN_ENCODINGS:
            coding = compression.choose_coding(accepted)
        if coding is not None:
            chunks = [compression.deflate(b"".join(chunks), coding)]
            headers["Content-Encoding"] = coding
    # The kserve client reads errors only if the type has no charset parameter.
    headers["Content-Type"] = response.content_type
    status = "" if response.sent else status_line(response.status)
    return HttpResponse(status, headers, chunks)
