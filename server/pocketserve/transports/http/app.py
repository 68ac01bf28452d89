"""The Flask application: it registers the dispatch table and answers what the data plane leaves to it."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from pocketserve.api import dispatch
from pocketserve.api.messages import ApiResponse, Route, error_response
from pocketserve.api.routes import ROUTES
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http import wsgi
from pocketserve_wire import ApiError, ErrorCode


class _SegmentConverter(BaseConverter):
    """Match one path segment; a colon ends it, because TF Serving's verbs follow one."""

    regex = "[^/:]+"
    part_isolating = True


def create_app(service: Service, guard: Guard) -> Flask:
    """Build the WSGI application."""
    app = Flask("pocketserve", static_folder=None)
    app.url_map.converters["segment"] = _SegmentConverter
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False  # a redirect would lose the body of a POST
    app.url_map.redirect_defaults = False
    routes = {f"{route.group}.{route.name}_{route.method}": route for route in ROUTES}
    for endpoint, route in routes.items():
        app.add_url_rule(
            route.pattern.replace("{region}", "<region>").replace("{", "<segment:").replace("}", ">"),
            endpoint=endpoint,
            view_func=_view(route, service),
            methods=[route.method],
            provide_automatic_options=False,
        )

    @app.before_request
    def check() -> None:
        g.trusted = wsgi.check_access(guard, routes.get(request.endpoint or ""), request.environ)

    @app.after_request
    def count(response: Response) -> Response:
        route = routes.get(request.endpoint or "") if "trusted" in g else None
        wsgi.count_answer(service.traffic, route, response.status_code)
        return response

    @app.errorhandler(HTTPException)
    def framework_error(error: HTTPException) -> Response:
        return _write_response(_translate(error))

    @app.errorhandler(Exception)
    def fault(error: Exception) -> Response:
        return _write_response(dispatch.failure(error, f"{request.method} {request.path}"))

    return app


def _view(route: Route, service: Service) -> Callable[..., Response]:
    def view(**path: str) -> Response:
        # A fault in reading is raised to the error handlers.
        message = wsgi.read_request(request.environ, route, path, service.config.max_body_bytes if g.trusted else 0)
        return _write_response(dispatch.answer_request(service, route, message))

    return view


def _write_response(answer: ApiResponse) -> Response:
    headers, chunks = wsgi.encode_response(answer, request.environ)
    return Response(b"".join(chunks), status=wsgi.status_line(answer.status), headers=headers)


def _translate(error: HTTPException) -> ApiResponse:
    status = error.code or 500
    if status in (404, 405):
        try:
            dispatch.match(request.method, request.path)
        except ApiError as refusal:
            return dispatch.failure(refusal, "")
    code = ErrorCode.INVALID_REQUEST if status < 500 else ErrorCode.INTERNAL
    return error_response(ApiError(code, f"{error.name}: {error.description}"))
