"""The Flask application: it registers the dispatch table, checks each request, and translates both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flask import Blueprint, Flask, Response, g, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from pocketserve.api import dispatch
from pocketserve.api.messages import ApiRequest, ApiResponse, Route, error_response
from pocketserve.api.routes import ROUTES
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http import translation
from pocketserve_wire import ApiError, ErrorCode

_FRAMEWORK_CODES = {
    400: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.BODY_TOO_LARGE,
}


class _SegmentConverter(BaseConverter):
    """One path segment; a colon ends it, because TF Serving's verbs follow one."""

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

    @app.before_request
    def check() -> None:
        headers, route = request.headers, routes.get(request.endpoint or "")
        g.trusted = translation.check_access(
            guard, route, headers.get("Host"), headers.get("Origin"), headers.get("Authorization")
        )

    @app.after_request
    def count(response: Response) -> Response:
        let_in = "trusted" in g
        translation.count(service.traffic, routes.get(request.endpoint or "") if let_in else None, response.status_code)
        return response

    _register_routes(app, service)
    _register_errors(app)
    return app


def _register_routes(app: Flask, service: Service) -> None:
    blueprints: dict[str, Blueprint] = {}
    for route in ROUTES:
        blueprint = blueprints.setdefault(route.group, Blueprint(route.group, __name__))
        blueprint.add_url_rule(
            route.pattern.replace("{region}", "<region>").replace("{", "<segment:").replace("}", ">"),
            endpoint=f"{route.name}_{route.method}",
            view_func=_view(route, service),
            methods=[route.method],
            provide_automatic_options=False,
        )
    for blueprint in blueprints.values():
        app.register_blueprint(blueprint)


def _view(route: Route, service: Service) -> Callable[..., Response]:
    def view(**path: str) -> Response:
        # A fault in reading is raised to the handlers below; the framework's own are among them.
        answer = dispatch.answer(
            service, route, _read_request(route, path, service.config.max_body_bytes if g.trusted else 0)
        )
        return _write_response(answer)

    return view


def _read_request(route: Route, path: Mapping[str, str], max_inflated: int) -> ApiRequest:
    headers = request.headers
    return translation.read_request(
        route,
        path,
        # The body is read whole whatever its Content-Type: clients send the wrong one, or none.
        request.get_data(cache=False),
        request.query_string,
        headers.get("Content-Encoding", ""),
        headers.get("Inference-Header-Content-Length"),
        # Of what is sent as CloudEvents in binary mode, the type is the data's.
        "application/cloudevents" if "ce-specversion" in headers else headers.get("Content-Type", ""),
        max_inflated,
    )


def _write_response(answer: ApiResponse) -> Response:
    headers, chunks = translation.finish(answer, request.headers.get("Accept-Encoding"))
    return Response(b"".join(chunks), status=translation.status_line(answer.status), headers=headers)


def _register_errors(app: Flask) -> None:
    @app.errorhandler(HTTPException)
    def framework_error(error: HTTPException) -> Response:
        return _write_response(_translate(error))

    @app.errorhandler(Exception)
    def fault(error: Exception) -> Response:
        return _write_response(dispatch.failure(error, f"{request.method} {request.path}"))


def _translate(error: HTTPException) -> ApiResponse:
    status = error.code or 500
    if status in (404, 405):
        try:
            dispatch.match(request.method, request.path)
        except ApiError as refusal:
            return dispatch.failure(refusal, "")
    code = _FRAMEWORK_CODES.get(status, ErrorCode.INVALID_REQUEST if status < 500 else ErrorCode.INTERNAL)
    return error_response(ApiError(code, f"{error.name}: {error.description}"))
