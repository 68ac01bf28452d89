"""The front answers what Flask would answer, byte for byte."""

from __future__ import annotations

import gzip
import io
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import MODELS
from pocketserve.config import load_config
from pocketserve.security import Guard
from pocketserve.service import Service
from pocketserve.transports.http.app import create_app
from pocketserve.transports.http.front import create_front

TOKEN = "t" * 43
JSON = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 8, 8, 1], "data": [0] * 64}]}).encode()
RAW = bytes(256)
PATHS = [
    "/v2/health/live", "/v2/health/ready", "/v2/models/digits/infer", "/v2/models/digits/versions/tflite/infer",
    "/v2/models/digits/versions/none/infer", "/predictions/digits", "/predictions/n\xc3\xb6", "/predictions/\xff",
    "//v2/models/digits/infer", "/v2/models/digits/infer/", "/v2/models//infer", "/v2/models/a:b/infer", "/v2", "/no",
    "",
]  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {
        "REQUEST_METHOD": st.sampled_from(["POST", "POST", "GET", "PUT", "HEAD", "OPTIONS", "DELETE"]),
        "PATH_INFO": st.sampled_from(PATHS),
        "QUERY_STRING": st.sampled_from(["", "", "top_k=2", "top_k=1&top_k=1", "x=1", "%FF=1", "\xff", "top_k=x"]),
        "HTTP_HOST": st.sampled_from(["127.0.0.1", "127.0.0.1", "localhost:1", "evil.example", ""]),
    },
    optional={
        "HTTP_ORIGIN": st.sampled_from(["http://evil.example", "http://127.0.0.1"]),
        "HTTP_CONTENT_ENCODING": st.sampled_from(["gzip", "identity", "br", "deflate"]),
        "HTTP_ACCEPT_ENCODING": st.sampled_from(["gzip", "deflate", "gzip, deflate", "gzip;q=0"]),
        "HTTP_INFERENCE_HEADER_CONTENT_LENGTH": st.sampled_from(["0", str(len(JSON)), "-1", "99999", "x"]),
        "CONTENT_TYPE": st.sampled_from(["application/json", "application/x-www-form-urlencoded", "nonsense"]),
    },
)
BODIES = st.sampled_from([b"", JSON, RAW, gzip.compress(JSON), b"{", JSON + RAW]) | st.binary(max_size=40)
AUTHORIZATIONS = st.sampled_from([f"Bearer {TOKEN}", f"Bearer {TOKEN}", f"Bearer {TOKEN}", "Bearer x", None])


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory):
    state = tmp_path_factory.mktemp("state")
    options = {"models_dir": str(MODELS), "state_dir": str(state), "quarantine": False, "max_body_bytes": 4096}
    service = Service(load_config(options))
    guard = Guard(TOKEN)
    flask = create_app(service, guard)
    yield flask, create_front(service, guard, flask)
    service.close()


def call(app: Any, environ: dict[str, str], body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    """One request as waitress would hand it over; timings, which no two answers share, are blanked."""
    surroundings = {
        "SCRIPT_NAME": "", "SERVER_NAME": "x", "SERVER_PORT": "1", "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True,
        "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(), "wsgi.version": (1, 0),
    }  # fmt: skip
    started: list[Any] = []
    chunks = app({**surroundings, **environ}, lambda status, headers, exc_info=None: started.append((status, headers)))
    ((status, headers),) = started
    answer = re.sub(rb'"timing_ms":\{[^}]*\}', b"", b"".join(chunks))
    getattr(chunks, "close", lambda: None)()
    if b'"predictions":' in answer:
        headers = [(name, "?" if name == "Content-Length" else value) for name, value in headers]
    return status, sorted(headers), answer


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(environ=REQUESTS, body=BODIES, authorization=AUTHORIZATIONS)
def test_both_sides_give_the_same_bytes(sides, environ, body, authorization):
    if authorization is not None:
        environ = {**environ, "HTTP_AUTHORIZATION": authorization}
    flask, front = sides
    assert call(front, environ, body) == call(flask, environ, body)
