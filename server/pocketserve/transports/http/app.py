"""The Flask application, for requests that the data plane does not answer."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from pocketserve.api import dispatch
from pocketserve.api.messages import Route
from pocketserve.api.routes import ROUTES
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http import wsgi
from pocketserve_wire import ApiError, ErrorCode


class _SegmentConverter(BaseConverter):
    """Match one path segment.

    A colon ends it: TF Serving's verbs follow one.
    """

    regex = "[^/:]+"
    part_isolating = True


class _Views:
    """The view functions of the Flask application."""

    def __init__(self, service: Service, guard: Guard) -> None:
        self._service = service
        self._guard = guard

    def view(self, route: Route) -> Callable[..., Response]:
        """Return the view function of a route."""

        def answer(**path: str) -> Response:
            return self._respond(dispatch.Target(route, path))

        return answer

    def refuse(self, error: HTTPException) -> Response:
        """Answer a request that Flask cannot route."""
        try:
            dispatch.match(request.method, request.path)
        except ApiError as fault:
            return self._respond(fault)
        code = ErrorCode.INVALID_REQUEST
        if (error.code or 500) >= 500:
            code = ErrorCode.INTERNAL
        return self._respond(ApiError(code, f"{error.name}: {error.description}"))

    def _respond(self, match: dispatch.Target | ApiError) -> Response:
        status, headers, chunks = wsgi.respond(
            self._service, self._guard, request.environ, match
        )
        return Response(b"".join(chunks), status=status, headers=headers)


def create_app(service: Service, guard: Guard) -> Flask:
    """Build the WSGI application."""
    app = Flask("pocketserve", static_folder=None)
    app.url_map.converters["segment"] = _SegmentConverter
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False  # a redirect would lose the body of a POST
    app.url_map.redirect_defaults = False
    views = _Views(service, guard)
    for route in ROUTES:
        app.add_url_rule(
            _flask_rule(route.pattern),
            endpoint=f"{route.group}.{route.name}_{route.method}",
            view_func=views.view(route),
            methods=[route.method],
            provide_automatic_options=False,
        )
    app.register_error_handler(HTTPException, views.refuse)
    return app


def _flask_rule(pattern: str) -> str:
    """Return a route's pattern in Flask's syntax."""
    rule = pattern.replace("{region}", "<region>")
    return rule.replace("{", "<segment:").replace("}", ">")
