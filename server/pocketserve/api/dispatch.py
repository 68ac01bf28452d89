"""Route and answer requests, for both transports.

Flask registers the same table and routes by itself; ``tests/transports`` holds that it finds the same routes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from pocketserve.api.messages import (
    ApiRequest,
    ApiResponse,
    Route,
    error_response,
    load_handler,
)
from pocketserve.api.routes import ROUTES
from pocketserve.auth.guard import PAGE
from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve.engine.scheduling.entries import Job
from pocketserve.inference.call import CallerExecutor, InferenceCall
from pocketserve.service import Service
from pocketserve.tasks.cancellation import SMALL_DOCUMENT, byte_reservation, is_text
from pocketserve_wire import ApiError, ErrorCode, strict_json

log = logging.getLogger(__name__)

OPENAI = "openai"
"""The group of routes whose errors have OpenAI's shape."""

RAW_BODIES = ("raw", "sound_form")
"""Bodies that aren't parsed as a whole."""

REMEMBERED = 256
"""Number of paths whose route is cached."""

LONGEST_REMEMBERED = 512
"""Characters of such a path.

Long ones, perhaps of unauthenticated clients, must not fill the memory."""

_METHOD = re.compile(r"[A-Z]{1,16}")

PathPart = tuple[str, str]
"""One segment of a pattern: a placeholder's name, or nothing, and the text behind it."""


class MethodNotAllowedError(ApiError):
    """The path exists, but not with this method.

    Attributes:
        allowed: the allowed methods, sorted, for the ``Allow`` header.
    """

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        usable = " or ".join(name for name in allowed if name != "HEAD")
        text = f"Method Not Allowed: {method[:16]} is not allowed on this path; use {usable}"
        super().__init__(ErrorCode.METHOD_NOT_ALLOWED, text)
        self.allowed = allowed


class Target(NamedTuple):
    """A route and the path's values.

    Attributes:
        path: values of the route's placeholders, percent-decoded; not to be changed, it is shared.
        head: HEAD was asked: the route is GET's, and the transport leaves the body out.
    """

    route: Route
    path: dict[str, str]
    head: bool = False


def decode_path(raw: str) -> str:
    """Decode a percent-encoded path.

    Invalid UTF-8 becomes U+FFFD, as in WSGI frameworks.
    """
    return unquote_to_bytes(raw).decode("utf-8", errors="replace")


def match(method: str, path: str) -> Target:
    """Find the route.

    Args:
        path: already percent-decoded, see :func:`decode_path`; without the query. Slashes too many at its start,
            and one at its end, are passed over as in Flask.

    Raises:
        ApiError: NOT_FOUND.
        MethodNotAllowedError: the path is known, but not with this method.
    """
    if len(path) > LONGEST_REMEMBERED:
        return _match(method, path)
    return _match_cached(method, path)


def _match(method: str, path: str) -> Target:
    path = f"/{path.lstrip('/')}"
    candidates = _candidates(path)
    if not candidates and path.endswith("/"):
        candidates = _candidates(path[:-1])
    if not candidates:
        raise ApiError(
            ErrorCode.NOT_FOUND,
            "Not Found: no such path; GET /openapi.json lists all of them",
        )
    is_head = method == "HEAD"
    route_method = "GET" if is_head else method
    for route, values in candidates:
        if route.method == route_method:
            return Target(route, values, is_head)
    allowed = {route.method for route, _ in candidates}
    if "GET" in allowed:
        allowed.add("HEAD")
    raise MethodNotAllowedError(method, tuple(sorted(allowed)))


_match_cached = lru_cache(REMEMBERED)(_match)


def _candidates(path: str) -> list[tuple[Route, dict[str, str]]]:
    segments = path.split("/")
    literal: list[tuple[Route, dict[str, str]]] = []
    with_values: list[tuple[Route, dict[str, str]]] = []
    for route, parts in _PATTERNS.get(len(segments), ()):
        values = _values(parts, segments)
        if values is None:
            continue
        if values:
            with_values.append((route, values))
        else:
            literal.append((route, values))
    # No model can be called as a literal segment.
    return literal or with_values


def _values(parts: list[PathPart], segments: list[str]) -> dict[str, str] | None:
    """Return a pattern's placeholder values, None without a match."""
    values: dict[str, str] = {}
    for (name, literal), segment in zip(parts, segments, strict=True):
        if not name:
            if segment != literal:
                return None
            continue
        value = segment.removesuffix(literal)
        # A colon ends a segment, because TF Serving's verbs follow one; regions have the names of tensors, x:0.
        if (
            not value
            or (":" in value and name != "region")
            or not segment.endswith(literal)
        ):
            return None
        values[name] = value
    return values


def _patterns() -> dict[int, list[tuple[Route, list[PathPart]]]]:
    """Return the routes by number of segments.

    Compiling regular expressions would take a hundredth of a start.
    """
    table: dict[int, list[tuple[Route, list[PathPart]]]] = {}
    for route in ROUTES:
        parts: list[PathPart] = []
        for segment in route.pattern.split("/"):
            name, _, literal = segment.rpartition("}")
            parts.append((name.removeprefix("{"), literal))
        table.setdefault(len(parts), []).append((route, parts))
    return table


_PATTERNS = _patterns()


def parse_query(query: str) -> dict[str, str]:
    """Parse a query string; a name without ``=`` has an empty value.

    Raises:
        ApiError: INVALID_PARAMETER for one that comes twice.
    """
    if not query:
        return {}
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in values:
            raise ApiError(
                ErrorCode.INVALID_PARAMETER,
                f"query parameter {name[:64]!r} is given twice",
            )
        values[name] = value
    return values


def split_target(target: bytes) -> tuple[str, str, str]:
    """Return method, decoded path and query of a target.

    For example ``b"POST /predictions/digits?top_k=3"``.

    Raises:
        ApiError: INVALID_REQUEST unless it is a method, one space, and an ASCII path that begins with a slash.
    """
    method, space, rest = target.decode("latin-1").partition(" ")
    printable = (
        rest.isascii() and rest.isprintable() and " " not in rest and "#" not in rest
    )
    if not (space and _METHOD.fullmatch(method) and rest.startswith("/") and printable):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "the target must be a method, one space and a percent-encoded path, such as 'GET /v2/models'",
        )
    path, _, query = rest.partition("?")
    return method, decode_path(path), query


def check_owner(route: Route | None, app: str | None) -> None:
    """Reject app and page tokens on owner-only routes.

    They may expire sooner than the installation's token.

    Args:
        app: whose token was shown, see :meth:`Guard.check_token <pocketserve.auth.guard.Guard.check_token>`.

    Raises:
        ApiError: UNAUTHORIZED to an app, SESSION_REFUSED to a page.
    """
    if app is not None and route is not None and route.owner:
        if app == PAGE:
            raise ApiError(
                ErrorCode.SESSION_REFUSED,
                "this requires the installation's token, not a page's session",
            )
        raise ApiError(
            ErrorCode.UNAUTHORIZED,
            "this requires the installation's token, not an app's",
        )


def answer_request(service: Service, route: Route, request: ApiRequest) -> ApiResponse:
    """Answer a request on this thread; faults become responses."""
    executor = CallerExecutor()
    request.execute = executor.execute
    response = _open(service, route, request)
    if isinstance(response, ApiResponse):
        return response
    job = service.submit(response, executor.done)
    return _encode(route, response.respond, executor.wait(job))


def start_request(
    service: Service,
    route: Route,
    request: ApiRequest,
    on_response: Callable[[ApiResponse], None],
) -> Job | None:
    """Answer a request without waiting; faults become responses.

    Args:
        on_response: called once with the response, on any thread, perhaps before this
            returns.

    Returns:
        A job for the calling thread, as :meth:`Service.submit`.
    """
    response = _open(service, route, request)
    if isinstance(response, ApiResponse):
        on_response(response)
        return None
    encode = response.respond

    # This must not reference the call: a cycle would keep the request's body.
    def on_outcome(outcome: Any) -> None:
        on_response(_encode(route, encode, outcome))

    return service.submit(response, on_outcome)


def _open(
    service: Service, route: Route, request: ApiRequest
) -> ApiResponse | InferenceCall:
    """Return the handler's response, or the call to run."""
    try:
        if request.cancellation is not None and request.cancellation.cancelled:
            raise cancelled()
        if route.local and service.replica is not None:
            raise ApiError(
                ErrorCode.NOT_IMPLEMENTED,
                "this would reach only one of several workers; change the files or "
                "settings and restart the server instead",
            )
        handler = load_handler(route.handler_name)
        text_size = request.json_length
        if text_size is None:
            text_size = len(request.body)
        # A task parses raw input itself, and reserves memory for it.
        if text_size <= SMALL_DOCUMENT or route.body in RAW_BODIES:
            return handler(service, request)
        with _room_to_parse(service, request):
            return handler(service, request)
    except Exception as error:
        return failure(error, _name(route), route)


def _encode(
    route: Route, encode: Callable[[Any], ApiResponse] | None, outcome: Any
) -> ApiResponse:
    """Return the response to a call's outcome."""
    assert encode is not None
    if isinstance(outcome, BaseException):
        return failure(outcome, _name(route), route)
    try:
        return encode(outcome)
    except Exception as error:
        return failure(error, _name(route), route)


def _name(route: Route) -> str:
    return f"{route.method} {route.pattern}"


def _room_to_parse(
    service: Service, request: ApiRequest
) -> AbstractContextManager[None]:
    """Reserve memory for parsing a request's JSON or CSV.

    Raises:
        ApiError: CANCELLED, DEADLINE_EXCEEDED.
    """
    text = bytes(request.body[: request.json_length])
    if not is_text(text):
        return nullcontext()
    options = service.request_options(
        {}, request.deadline, request.cancellation, request.received
    )
    return byte_reservation(
        service.decode_budget, strict_json.parsed_bytes(text), options.check
    )


def failure(
    error: BaseException, action: str, route: Route | None = None
) -> ApiResponse:
    """Return the response to an error.

    Unexpected errors are logged and become INTERNAL.

    Args:
        action: for the log.
        route: determines the response's shape; None for the usual one.
    """
    if route is not None and route.group == OPENAI:
        from pocketserve.api.openai.errors import openai_error

        return openai_error(failure(error, action), error, route.pattern)
    if isinstance(error, MethodNotAllowedError):
        refusal = error_response(error)
        refusal.headers["Allow"] = ", ".join(error.allowed)
        return refusal
    if isinstance(error, ApiError):
        return error_response(error)
    log.error("unexpected error in %s", action, exc_info=error)
    text = f"the server failed unexpectedly ({type(error).__name__}); see its log"
    return error_response(ApiError(ErrorCode.INTERNAL, text))
