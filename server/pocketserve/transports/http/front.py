"""The data plane's WSGI callable: inference, predictions and health straight from the dispatch table.

Routing, checks, faults and translation are the ones that Flask's views use; Flask gets every other request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from pocketserve.api import dispatch
from pocketserve.api.messages import ApiRequest, ApiResponse
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http import translation
from pocketserve.transports.http.body import MAX_JOINED, BodyFile
from pocketserve_wire import ApiError

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

FAST = frozenset({"infer", "prediction", "health"})
"""Kinds of answer (``Route.answer``) that do not pass through Flask."""


def create_on_demand(make: Callable[[], WsgiApp]) -> WsgiApp:
    """A WSGI application that is made, once, for the first request that it gets."""
    made: list[WsgiApp] = []
    lock = threading.Lock()

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0](environ, start_response)

    return app


def create_server_app(service: Service, guard: Guard) -> WsgiApp:
    """The whole HTTP interface. Flask is imported when a request needs it: it costs more than all else at start."""

    def make() -> WsgiApp:
        from pocketserve.transports.http.app import create_app

        return create_app(service, guard)

    return create_front(service, guard, create_on_demand(make))


def create_front(service: Service, guard: Guard, fallback: WsgiApp) -> WsgiApp:
    """Build the callable; ``fallback`` is the Flask application."""

    def front(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], _path(environ)
        try:
            target = dispatch.match(method, path)
        except ApiError:
            return fallback(environ, start_response)
        if target.route.answer not in FAST or target.head:
            return fallback(environ, start_response)
        route = None
        try:
            trusted = translation.check_access(
                guard,
                target.route,
                environ.get("HTTP_HOST"),
                environ.get("HTTP_ORIGIN"),
                environ.get("HTTP_AUTHORIZATION"),
            )
            route = target.route
            request = _read_request(environ, target, service.config.max_body_bytes if trusted else 0)
        except Exception as error:
            answer = dispatch.failure(error, f"{method} {path}")
        else:
            answer = dispatch.answer(service, target.route, request)
        translation.count(service.traffic, route, answer.status)
        return _send(answer, environ.get("HTTP_ACCEPT_ENCODING"), start_response)

    return front


def _path(environ: Environ) -> str:
    raw: str = environ["PATH_INFO"]
    return raw if raw.isascii() else raw.encode("latin-1").decode("utf-8", errors="replace")


def _read_request(environ: Environ, target: dispatch.Target, max_inflated: int) -> ApiRequest:
    query: str = environ.get("QUERY_STRING", "")
    return translation.read_request(
        target.route,
        target.path,
        _read_body(environ),
        query.encode("latin-1"),
        environ.get("HTTP_CONTENT_ENCODING", ""),
        environ.get("HTTP_INFERENCE_HEADER_CONTENT_LENGTH"),
        environ.get("CONTENT_TYPE", ""),
        max_inflated,
    )


def _read_body(environ: Environ) -> bytes | memoryview:
    stream = environ["wsgi.input"]
    if isinstance(stream, BodyFile):
        return stream.getbuffer()
    body: bytes = stream.read()  # waitress ends the stream where the body ends
    return body


def _send(answer: ApiResponse, accept_encoding: str | None, start_response: StartResponse) -> list[bytes]:
    headers, chunks = translation.finish(answer, accept_encoding)
    size = sum(map(len, chunks))
    start_response(translation.status_line(answer.status), [*headers.items(), ("Content-Length", str(size))])
    # Large parts are sent from where they are; waitress takes any memory, which WSGI does not ask of servers.
    return [b"".join(chunks)] if size <= MAX_JOINED else chunks  # type: ignore[return-value]
