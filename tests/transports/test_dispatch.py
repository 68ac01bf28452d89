"""Compare the dispatch table with Flask's router for every path and method."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from conftest import MODELS
from pocketserve.api import dispatch
from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.service import Service
from pocketserve.transports.http.app import create_app
from pocketserve.transports.socket.requests import _read_target
from pocketserve_wire import ApiError

WORDS = "/v2 /v1 /models /a /stats /versions /b /ready /infer /health /live /predictions /repository /index /load "
WORDS += "/unload /metrics /config / // : :predict /a:predict /a:b /%C3%A9 /%0A /%2F /%zz / /openapi.json"
METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"]


@pytest.fixture(scope="module")
def flask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapAdapter]:
    """Return Flask's own router."""
    service = Service(
        Config(models_dir=MODELS, state_dir=tmp_path_factory.mktemp("state"))
    )
    yield create_app(service, Guard(None)).url_map.bind("127.0.0.1")
    service.close()


def routed(flask: MapAdapter, method: str, path: str) -> tuple[object, ...]:
    """Return Flask's route for a path."""
    try:
        endpoint, values = flask.match(path, method)
    except HTTPException as error:
        return error.code, sorted(getattr(error, "valid_methods", None) or ())
    return endpoint.partition(".")[2], values


def dispatched(method: str, path: str) -> tuple[object, ...]:
    """Return the table's route for a path."""
    try:
        target = dispatch.match(method, path)
    except ApiError as error:
        return error.status, list(getattr(error, "allowed", ()))
    assert target.head == (method == "HEAD")
    return f"{target.route.name}_{target.route.method}", target.path


def bytes_kept_of(calls: Callable[[int], object]) -> int:
    """Return the bytes still allocated after 300 calls."""
    tracemalloc.start()
    try:
        for number in range(300):
            calls(number)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_long_paths_are_not_cached():
    """This includes unauthenticated HTTP paths and targets on the socket."""
    assert (
        bytes_kept_of(
            lambda number: dispatch.match("GET", f"/v2/models/{'a' * 30_000}{number}")
        )
        < 500_000
    )
    assert (
        bytes_kept_of(
            lambda number: dispatch.match("GET", f"{'/' * (30_000 + number)}v2")
        )
        < 500_000
    )
    assert (
        bytes_kept_of(
            lambda number: _read_target(
                f"GET /v2/models/{'a' * 30_000}{number}".encode()
            )
        )
        < 500_000
    )
    assert dispatch.match("GET", "/v2/models/a") is dispatch.match(
        "GET", "/v2/models/a"
    )


def test_spellings_of_a_version_are_not_cached(tmp_path):
    """1, 01, 001 and digits of other scripts are one version."""
    models = tmp_path / "models"
    (models / "petals" / "1").mkdir(parents=True)
    shutil.copy(MODELS / "petals" / "petals.tflite", models / "petals" / "1")
    service = Service(Config(models_dir=models, state_dir=tmp_path / "state"))
    for spelling in (
        None,
        "1",
        "01",
        "0001",
        "\N{FULLWIDTH DIGIT ONE}",
        "\N{BENGALI DIGIT ZERO}1",
    ):
        assert service.status("petals", spelling).version == "1"
        assert service._find("petals", spelling) is service.engine.record("petals", "1")
    assert set(service._targets[1]) == {("petals", None), ("petals", "1")}
    service.close()


@given(
    words=st.lists(st.sampled_from(WORDS.split()), max_size=7),
    method=st.sampled_from(METHODS),
)
def test_both_routers_agree(flask, words, method):
    path = dispatch.decode_path("".join(words)) or "/"
    assert dispatched(method, path) == routed(flask, method, path)


@pytest.mark.parametrize(
    "route", dispatch.ROUTES, ids=lambda route: f"{route.method} {route.pattern}"
)
def test_every_route_is_found(flask, route):
    path = route.pattern.replace("{model}", "m").replace("{version}", "v")
    assert dispatch.match(route.method, path).route is route
    assert dispatched(route.method, path) == routed(flask, route.method, path)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"GET /v2", ("GET", "/v2", "")),
        (
            b"POST /predictions/a%20b?top_k=3&x",
            ("POST", "/predictions/a b", "top_k=3&x"),
        ),
        (b"GET /a%3Fb?c?d", ("GET", "/a?b", "c?d")),
        (b"GET /%ff", ("GET", "/\ufffd", "")),
    ],
)
def test_targets_are_parsed(target, parts):
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
def test_invalid_targets_are_refused(target):
    with pytest.raises(ApiError) as caught:
        dispatch.split_target(target)
    assert caught.value.code.name == "INVALID_REQUEST"


def test_queries_are_parsed():
    assert dispatch.parse_query("") == {}
    assert dispatch.parse_query("a=1&b=&c&d=%20+%C3%A9") == {
        "a": "1",
        "b": "",
        "c": "",
        "d": "  é",
    }
    with pytest.raises(ApiError, match="'a' is given twice"):
        dispatch.parse_query("a=1&b=2&a=1")
