"""The dispatch table finds what Flask finds, for every path and method."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from conftest import MODELS
from pocketserve.api import dispatch
from pocketserve.config import Config
from pocketserve.security import Guard
from pocketserve.service import Service
from pocketserve.transports.http.app import create_app
from pocketserve_wire import ApiError

WORDS = "/v2 /v1 /models /a /stats /versions /b /ready /infer /health /live /predictions /repository /index /load "
WORDS += "/unload /metrics /config / // : :predict /a:predict /a:b /%C3%A9 /%0A /%2F /%zz / /openapi.json"
METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"]


@pytest.fixture(scope="module")
def flask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapAdapter]:
    """Flask's own router."""
    service = Service(Config(models_dir=MODELS, state_dir=tmp_path_factory.mktemp("state")))
    yield create_app(service, Guard(None)).url_map.bind("127.0.0.1")
    service.close()


def routed(flask: MapAdapter, method: str, path: str) -> tuple[object, ...]:
    """What Flask says of a path."""
    try:
        endpoint, values = flask.match(path, method)
    except HTTPException as error:
        return error.code, sorted(getattr(error, "valid_methods", None) or ())
    return endpoint.partition(".")[2], values


def dispatched(method: str, path: str) -> tuple[object, ...]:
    """What the table says of a path."""
    try:
        target = dispatch.match(method, path)
    except ApiError as error:
        return error.status, list(getattr(error, "allowed", ()))
    assert target.head == (method == "HEAD")
    return f"{target.route.name}_{target.route.method}", target.path


@given(words=st.lists(st.sampled_from(WORDS.split()), max_size=7), method=st.sampled_from(METHODS))
def test_both_routers_agree(flask, words, method):
    path = dispatch.decode_path("".join(words)) or "/"
    assert dispatched(method, path) == routed(flask, method, path)


@pytest.mark.parametrize("route", dispatch.ROUTES, ids=lambda route: f"{route.method} {route.pattern}")
def test_every_route_is_found(flask, route):
    path = route.pattern.replace("{model}", "m").replace("{version}", "v")
    assert dispatch.match(route.method, path).route is route
    assert dispatched(route.method, path) == routed(flask, route.method, path)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"GET /v2", ("GET", "/v2", "")),
        (b"POST /predictions/a%20b?top_k=3&x", ("POST", "/predictions/a b", "top_k=3&x")),
        (b"GET /a%3Fb?c?d", ("GET", "/a?b", "c?d")),
        (b"GET /%ff", ("GET", "/\ufffd", "")),
    ],
)
def test_targets(target, parts):
    assert dispatch.split_target(target) == parts


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b" ",
        b"GET",
        b"GET ",
        b"GET v2",
        b"get /v2",
        b"GET  /v2",
        b"GET /v2 ",
        b"GET /v2 HTTP/1.1",
        b"GET\t/v2",
        b"GET /a\x00",
        b"GET /\xc3\xa9",
        b"GET /a#b",
        b"GET http://127.0.0.1/v2",
        b"G" * 17 + b" /v2",
        b"GET /v2\r\n",
    ],
)
def test_targets_that_are_none(target):
    with pytest.raises(ApiError) as caught:
        dispatch.split_target(target)
    assert caught.value.code.name == "INVALID_REQUEST"


def test_queries():
    assert dispatch.parse_query("") == {}
    assert dispatch.parse_query("a=1&b=&c&d=%20+%C3%A9") == {"a": "1", "b": "", "c": "", "d": "  é"}
    with pytest.raises(ApiError, match="'a' is given twice"):
        dispatch.parse_query("a=1&b=2&a=1")
