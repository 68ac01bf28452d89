"""Between WSGI's environ and the interface's messages: for Flask's views and the data plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from pocketserve.api import dispatch
from pocketserve.api.messages import JSON, ApiRequest, ApiResponse, Route
from pocketserve.auth.guard import PAGE, Guard
from pocketserve.service import Service
from pocketserve.transports.http import compression
from pocketserve.transports.request_log import read_request_id, read_trace_id
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.oip import parse_json_length

LINE_END = b"\n"
"""Stands behind JSON, so that a shell's prompt does not stand behind curl's answer."""

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]


def respond(
    service: Service, guard: Guard, environ: Environ, match: dispatch.Target | ApiError
) -> tuple[str, dict[str, str], list[bytes | memoryview]]:
    """Answer a request, and count the answer.

    Args:
        match: its route, or why there is none; only those who may pass hear of it.

    Returns:
        Status line, headers without the body's length, and the body's parts.
    """
    log_request = service.traffic.log_request
    started = 0.0 if log_request is None else time.monotonic()
    route = None if isinstance(match, ApiError) else match.route
    admitted = owner = None
    client_id = ""
    try:
        owner = _check_access(guard, route, environ)
        if isinstance(match, ApiError):
            raise match
        admitted = match.route
        request = _read_request(
            environ,
            admitted,
            match.path,
            0 if owner is None else service.config.max_body_bytes,
        )
        request.owner = owner or ""
    except Exception as error:
        answer = dispatch.failure(
            error, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        )
    else:
        answer = dispatch.answer_request(service, admitted, request)
        client_id = request.client_id
    try:
        headers, chunks = _encode_response(answer, environ)
    except Exception as error:  # there was no memory to compress it
        answer = dispatch.failure(error, "encoding an answer")
        headers, chunks = _encode_response(answer, {})
    if request_id := read_request_id(environ.get("HTTP_X_REQUEST_ID")):
        headers["X-Request-Id"] = request_id
    if guard.origins:
        headers |= guard.origins.response_headers(
            environ.get("HTTP_ORIGIN"), headers.get("Vary", "")
        )
    service.traffic.count("http", admitted, answer.status)
    if log_request is not None:
        model = "" if isinstance(match, ApiError) else match.path.get("model", "")
        size = 0 if environ["REQUEST_METHOD"] == "HEAD" else sum(map(len, chunks))
        log_answer(
            service,
            environ,
            answer.status,
            started,
            size,
            model,
            trusted=owner is not None,
            client_id=client_id,
        )
    return status_line(answer.status), headers, chunks


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
    """Write a request's line, where they are written.

    Args:
        started: the monotonic clock's time of the request's arrival.
        size: bytes of the answer's body.
        trusted: it came with the token.
        client_id: that of the body.
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
        )


def _check_access(guard: Guard, route: Route | None, environ: Environ) -> str | None:
    """Return the identity of a request's token, None without one; raise ApiError if it may not pass."""
    host, origin = environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN")
    guard.check_source(
        host, origin, own_page=route is not None and route.group == "web"
    )
    try:
        app = guard.check_token(environ.get("HTTP_AUTHORIZATION"))
    except ApiError:
        if route is None or not route.open:
            raise
        return None
    if app == PAGE and origin is not None and not guard.is_own_origin(host, origin):
        raise ApiError(
            ErrorCode.ORIGIN_REFUSED,
            "a session is for the server's own page only; send the token",
        )
    dispatch.check_owner(route, app)
    return app or ""


def _read_request(
    environ: Environ, route: Route, path: Mapping[str, str], max_inflated: int
) -> ApiRequest:
    """Check and decode a request; ApiError for a fault of the encoding, the query or the JSON length, in this order.

    Args:
        max_inflated: bytes of an inflated body at most; 0 where the token is missing, and nothing is inflated.
    """
    sent = environ[
        "wsgi.input"
    ].getbuffer()  # of a Body, or of a BytesIO where there is none
    body = memoryview(
        compression.inflate(
            sent, environ.get("HTTP_CONTENT_ENCODING", ""), max_inflated
        )
    )
    query = environ.get("QUERY_STRING", "").encode("latin-1").decode(errors="replace")
    # Only there: tritonclient leaves the header in its caller's dict, which then comes with every later call.
    length = (
        environ.get("HTTP_INFERENCE_HEADER_CONTENT_LENGTH")
        if route.binary_tensors
        else None
    )
    # In CloudEvents' binary mode the type is the data's.
    is_event = route.answer == "v1_predict" and "HTTP_CE_SPECVERSION" in environ
    return ApiRequest(
        path=path,
        query=dispatch.parse_query(query),
        body=body,
        json_length=parse_json_length(length, len(body)),
        content_type="application/cloudevents"
        if is_event
        else environ.get("CONTENT_TYPE", ""),
    )


@cache
def status_line(status: int) -> str:
    """Return a status with its phrase, such as ``404 Not Found``."""
    if status == 200:
        return "200 OK"
    from http import HTTPStatus  # late: most answers do not need it

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def _encode_response(
    answer: ApiResponse, environ: Environ
) -> tuple[dict[str, str], list[bytes | memoryview]]:
    """Return an answer's headers, without its length, and its body's parts, compressed if the client asks for it."""
    headers = dict(answer.headers)
    chunks = answer.chunks
    if answer.json_length is not None:
        headers["Inference-Header-Content-Length"] = str(answer.json_length)
    elif answer.content_type == JSON:
        chunks = [*chunks, LINE_END]
    if answer.compressible:
        headers["Vary"] = "Accept-Encoding"
        coding = compression.choose_coding(environ.get("HTTP_ACCEPT_ENCODING"))
        if coding is not None:
            chunks = [compression.deflate(b"".join(chunks), coding)]
            headers["Content-Encoding"] = coding
    # Exactly this value: the kserve client reads an error only if the type has no charset behind it.
    headers["Content-Type"] = answer.content_type
    return headers, chunks
