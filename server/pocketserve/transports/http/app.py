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


def create_app(service: Service, guard: Guard) -> Flask:
    """Build the WSGI application."""
    app = Flask("pocketserve", static_folder=None)
    app.url_map.converters["segment"] = _SegmentConverter
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False  # a redirect would lose the body of a POST
    app.url_map.redirect_defaults = False

    def respond(match: dispatch.Target | ApiError) -> Response:
        status, headers, chunks = wsgi.respond(service, guard, request.environ, match)
        return Response(b"".join(chunks), status=status, headers=headers)

    def view(route: Route) -> Callable[..., Response]:
        return lambda **path: respond(dispatch.Target(route, path))

    for route in ROUTES:
        app.add_url_rule(
            route.pattern.replace("{region}", "<region>")
            .replace("{", "<segment:")
            .replace("}", ">"),
            endpoint=f"{route.group}.{route.name}_{route.method}",
            view_func=view(route),
            methods=[route.method],
            provide_automatic_options=False,
        )

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        try:
            dispatch.match(request.method, request.path)
        except ApiError as fault:
            return respond(fault)
        code = (
            ErrorCode.INTERNAL
            if (error.code or 500) >= 500
            else ErrorCode.INVALID_REQUEST
        )
        return respond(ApiError(code, f"{error.name}: {error.description}"))

    return app
