"""The WSGI callable that answers inference, predictions and health without Flask, which gets every other request."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable

from pocketserve.api import dispatch
from pocketserve.api.messages import ApiResponse, error_response
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http.body import MAX_JOINED
from pocketserve.transports.http.page import create_page
from pocketserve.transports.http.wsgi import (
    Environ,
    StartResponse,
    WsgiApp,
    log_answer,
    respond,
    status_line,
)
from pocketserve_wire import ApiError

DATA_PLANE = frozenset(
    {"infer", "prediction", "health"}
)  # what ``Route.answer`` says where Flask is passed by


def create_on_demand(create: Callable[[], WsgiApp]) -> WsgiApp:
    """Return a WSGI application that is created once, for its first request."""
    created, lock = functools.cache(create), threading.Lock()

    def on_demand(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        with lock:
            app = created()
        return app(environ, start_response)

    return on_demand


def create_server_app(service: Service, guard: Guard) -> WsgiApp:
    """Return the whole HTTP interface. Flask is imported when a request needs it: nothing costs a start more."""

    def create() -> WsgiApp:
        from pocketserve.transports.http.app import create_app

        return create_app(service, guard)

    return create_data_plane(
        service, guard, create_page(service, guard, create_on_demand(create))
    )


def preflight(
    service: Service, guard: Guard, environ: Environ, start_response: StartResponse
) -> Iterable[bytes]:
    """Answer what a browser asks before it sends a request of a listed origin. It carries no token."""
    started = time.monotonic()
    origin = environ["HTTP_ORIGIN"]
    try:
        guard.check_source(
            environ.get("HTTP_HOST"),
            origin,
            own_page=environ["PATH_INFO"].startswith("/web/"),
        )
    except ApiError as error:
        answer = error_response(error)
        answer.headers["Content-Type"] = answer.content_type
    else:
        answer = ApiResponse(
            204, headers=guard.origins.preflight_headers(origin, environ)
        )
    body = b"".join(answer.chunks)
    service.traffic.count("http", None, answer.status)
    log_answer(service, environ, answer.status, started, len(body))
    length = {"Content-Length": str(len(body))} if body else {}
    start_response(
        status_line(answer.status), [*answer.headers.items(), *length.items()]
    )
    return [body]


def create_data_plane(service: Service, guard: Guard, fallback: WsgiApp) -> WsgiApp:
    """Return the callable for inference, predictions and health; ``fallback`` is the Flask application."""

    def data_plane(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if not path.isascii():
            path = path.encode("latin-1").decode("utf-8", errors="replace")
        if (
            environ["REQUEST_METHOD"] == "OPTIONS"
            and environ.get("HTTP_ORIGIN") in guard.origins
        ):
            return preflight(service, guard, environ, start_response)
        try:
            match = dispatch.match(environ["REQUEST_METHOD"], path)
        except ApiError:
            return fallback(environ, start_response)
        # The script of a service worker is asked for at any path: the page's callable refuses it.
        if (
            match.route.answer not in DATA_PLANE
            or match.head
            or "HTTP_SERVICE_WORKER" in environ
        ):
            return fallback(environ, start_response)
        status, headers, chunks = respond(service, guard, environ, match)
        size = sum(map(len, chunks))
        start_response(status, [*headers.items(), ("Content-Length", str(size))])
        # Large parts are sent from where they are; waitress takes any memory, which WSGI does not ask of servers.
        return [b"".join(chunks)] if size <= MAX_JOINED else chunks  # type: ignore[return-value]

    return data_plane
