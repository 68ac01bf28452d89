"""Assemble the HTTP interface: data plane, page, and Flask."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable

from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http.page import create_page
from pocketserve.transports.http.wsgi import (
    Environ,
    StartResponse,
    WsgiApp,
    create_data_plane,
)


def create_on_demand(create: Callable[[], WsgiApp]) -> WsgiApp:
    """Return a WSGI application that is created on first use."""
    created, lock = functools.cache(create), threading.Lock()

    def on_demand(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        with lock:
            app = created()
        return app(environ, start_response)

    return on_demand


def create_server_app(service: Service, guard: Guard) -> WsgiApp:
    """Return the whole HTTP interface.

    Flask is imported for the first request that needs it: it is the slowest import.
    """

    def create_flask() -> WsgiApp:
        from pocketserve.transports.http.app import create_app

        return create_app(service, guard)

    page = create_page(service, guard, create_on_demand(create_flask))
    return create_data_plane(service, guard, page)
