"""Between HTTP's values and the interface's messages: shared by Flask's views and the front."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pocketserve.api import dispatch
from pocketserve.api.messages import ApiRequest, ApiResponse, Route
from pocketserve.auth.guard import Guard
from pocketserve.engine.statistics import Traffic
from pocketserve.transports.http import compression
from pocketserve_wire import ApiError
from pocketserve_wire.oip import parse_json_length


def check_access(
    guard: Guard, route: Route | None, host: str | None, origin: str | None, authorization: str | None
) -> bool:
    """Decide from the headers whether a request may pass; returns whether it has a token.

    Raises:
        ApiError: HOST_REFUSED, ORIGIN_REFUSED or UNAUTHORIZED.
    """
    guard.check_source(host, origin)
    try:
        app = guard.check_token(authorization)
    except ApiError:
        if route is None or not route.open:
            raise
        return False
    dispatch.check_owner(route, app)
    return True


def count(traffic: Traffic, route: Route | None, status: int) -> None:
    """Count an answer; ``route`` is None for a request that reached none, or was not let in."""
    if route is None:
        traffic.count("http", "", "", status)
    else:
        traffic.count("http", route.method, route.pattern, status)


def read_request(
    route: Route,
    path: Mapping[str, str],
    body: bytes | memoryview,
    query: bytes,
    encoding: str,
    json_length: str | None,
    content_type: str,
    max_inflated: int,
) -> ApiRequest:
    """Check and decode what came; header values are as they were sent.

    Args:
        max_inflated: bytes of an inflated body at most; 0 where the token is missing, and nothing is inflated.

    Raises:
        ApiError: a fault of the encoding, the query or the JSON length, looked for in this order.
    """
    whole = memoryview(compression.inflate(body, encoding, max_inflated))
    return ApiRequest(
        path=path,
        query=dispatch.parse_query(query.decode(errors="replace")),
        body=whole,
        # Only there: tritonclient leaves the header in its caller's dict, which then comes with every later call.
        json_length=parse_json_length(json_length if route.answer == "infer" else None, len(whole)),
        content_type=content_type,
    )


@cache
def status_line(status: int) -> str:
    """A status with its phrase, such as ``404 Not Found``."""
    if status == 200:
        return "200 OK"
    from http import HTTPStatus  # late: what is well needs no list of sixty phrases

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def finish(answer: ApiResponse, accept_encoding: str | None) -> tuple[dict[str, str], list[bytes | memoryview]]:
    """An answer's headers, without its length, and its body's parts, compressed where the client demands it."""
    headers = dict(answer.headers)
    chunks = answer.chunks
    if answer.json_length is not None:
        headers["Inference-Header-Content-Length"] = str(answer.json_length)
    if answer.compressible:
        headers["Vary"] = "Accept-Encoding"
        coding = compression.choose_coding(accept_encoding)
        if coding is not None:
            chunks = [compression.deflate(b"".join(chunks), coding)]
            headers["Content-Encoding"] = coding
    # Exactly this value: the kserve client reads an error only if the type has no charset behind it.
    headers["Content-Type"] = answer.content_type
    return headers, chunks
