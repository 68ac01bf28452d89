"""The data plane answers exactly like Flask."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import MODELS
from pocketserve.auth.guard import Guard
from pocketserve.config import load_config
from pocketserve.service import Service
from pocketserve.transports.http import compression
from pocketserve.transports.http.app import create_app
from pocketserve.transports.http.data_plane import create_on_demand
from pocketserve.transports.http.wsgi import create_data_plane

TOKEN = "t" * 43
JSON = json.dumps(
    {
        "inputs": [
            {
                "name": "image",
                "datatype": "FP32",
                "shape": [1, 8, 8, 1],
                "data": [0] * 64,
            }
        ]
    }
).encode()
RAW = bytes(256)
PATHS = [
    "/v2/health/live", "/v2/health/ready", "/v2/models/digits/infer", "/v2/models/digits/versions/tflite/infer",
    "/v2/models/digits/versions/none/infer", "/predictions/digits", "/predictions/n\xc3\xb6", "/predictions/\xff",
    "//v2/models/digits/infer", "/v2/models/digits/infer/", "/v2/models//infer", "/v2/models/a:b/infer", "/v2", "/no",
    "",
]  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {
        "REQUEST_METHOD": st.sampled_from(
            ["POST", "POST", "GET", "PUT", "HEAD", "OPTIONS", "DELETE"]
        ),
        "PATH_INFO": st.sampled_from(PATHS),
        "QUERY_STRING": st.sampled_from(
            ["", "", "top_k=2", "top_k=1&top_k=1", "x=1", "%FF=1", "\xff", "top_k=x"]
        ),
        "HTTP_HOST": st.sampled_from(
            ["127.0.0.1", "127.0.0.1", "localhost:1", "evil.example", ""]
        ),
    },
    optional={
        "HTTP_ORIGIN": st.sampled_from(["http://evil.example", "http://127.0.0.1"]),
        "HTTP_CONTENT_ENCODING": st.sampled_from(["gzip", "identity", "br", "deflate"]),
        "HTTP_ACCEPT_ENCODING": st.sampled_from(
            ["gzip", "deflate", "gzip, deflate", "gzip;q=0"]
        ),
        "HTTP_INFERENCE_HEADER_CONTENT_LENGTH": st.sampled_from(
            ["0", str(len(JSON)), "-1", "99999", "x"]
        ),
        "CONTENT_TYPE": st.sampled_from(
            ["application/json", "application/x-www-form-urlencoded", "nonsense"]
        ),
    },
)
BODIES = st.sampled_from(
    [b"", JSON, RAW, gzip.compress(JSON), b"{", JSON + RAW]
) | st.binary(max_size=40)
AUTHORIZATIONS = st.sampled_from(
    [
        f"Bearer {TOKEN}",
        f"Bearer {TOKEN}",
        f"Bearer {TOKEN}",
        "Bearer x",
        None,
    ]
)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory):
    state = tmp_path_factory.mktemp("state")
    options = {
        "models_dir": str(MODELS),
        "state_dir": str(state),
        "quarantine": False,
        "max_body_bytes": 4096,
    }
    service = Service(load_config(options))
    guard = Guard(TOKEN)
    flask = create_app(service, guard)
    yield flask, create_data_plane(service, guard, flask), service
    service.close()


def call(
    app: Any, environ: dict[str, str], body: bytes
) -> tuple[str, list[tuple[str, str]], bytes]:
    """Send one request as waitress would.

    Timings, which always differ, are blanked.
    """
    surroundings = {
        "SCRIPT_NAME": "", "SERVER_NAME": "x", "SERVER_PORT": "1", "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True,
        "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(), "wsgi.version": (1, 0),
    }  # fmt: skip
    started: list[Any] = []
    chunks = app(
        {**surroundings, **environ},
        lambda status, headers, exc_info=None: started.append((status, headers)),
    )
    ((status, headers),) = started
    answer = re.sub(rb'"timing_ms":\{[^}]*\}', b"", b"".join(chunks))
    getattr(chunks, "close", lambda: None)()
    if b'"predictions":' in answer:
        headers = [
            (name, "?" if name == "Content-Length" else value)
            for name, value in headers
        ]
    return status, sorted(headers), answer


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(environ=REQUESTS, body=BODIES, authorization=AUTHORIZATIONS)
def test_the_data_plane_and_flask_give_the_same_bytes(
    sides, environ, body, authorization
):
    if authorization is not None:
        environ = {**environ, "HTTP_AUTHORIZATION": authorization}
    flask, front, _ = sides
    assert call(front, environ, body) == call(flask, environ, body)


@pytest.mark.parametrize(
    "path", ["/v2/models/petals/infer", "/v1/models/petals:predict"]
)
def test_an_error_during_compression_is_internal_and_counted_once(
    sides, monkeypatch, path
):
    def starve(*_: object) -> bytes:
        raise MemoryError

    app = sides[1]
    service = sides[2]
    monkeypatch.setattr(compression, "deflate", starve)
    environ = {
        "REQUEST_METHOD": "POST", "PATH_INFO": path, "HTTP_HOST": "127.0.0.1", "HTTP_ACCEPT_ENCODING": "gzip",
        "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
    }  # fmt: skip
    tensor = {
        "name": "features",
        "datatype": "FP32",
        "shape": [1, 3],
        "data": [5.8, 3.0, 4.3],
    }
    body = (
        {"inputs": [tensor]}
        if path.startswith("/v2")
        else {"instances": [tensor["data"]]}
    )
    before = dict(service.traffic.answers())
    status, _, answer = call(app, environ, json.dumps(body).encode())
    counted = {}
    for key, count in service.traffic.answers():
        counted[key] = count - before.get(key, 0)
    assert status.startswith("500")
    assert json.loads(answer)["code"] == "INTERNAL"
    assert [key[3] for key, count in counted.items() if count] == [500]
    assert sum(counted.values()) == 1


def test_the_application_is_created_once_on_demand():
    made = []
    together = threading.Barrier(8, timeout=120)

    def make():
        made.append(1)
        return lambda environ, start_response: [environ["PATH_INFO"].encode()]

    def ask(path: str) -> None:
        together.wait()
        answers.append(app({"PATH_INFO": path}, lambda status, headers: None))

    app = create_on_demand(make)
    answers = []
    assert made == []
    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=ask, args=(f"/{number}",)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert made == [1]
    assert sorted(answers) == [[b"/%d" % number] for number in range(8)]


def test_a_failed_application_is_created_again():
    outcomes = [OSError("no memory for it"), lambda environ, start_response: [b"made"]]

    def make():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    app = create_on_demand(make)
    with pytest.raises(OSError, match="no memory"):
        app({}, lambda status, headers: None)
    assert app({}, lambda status, headers: None) == [b"made"]


LATE = """
import io, sys
from pocketserve.config import load_config
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http.data_plane import create_server_app

service = Service(load_config({"models_dir": sys.argv[1], "state_dir": sys.argv[2], "quarantine": False}))
app = create_server_app(service, Guard(None))

def ask(method, path, body):
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": "127.0.0.1", "CONTENT_LENGTH": str(len(body)),
               "SERVER_NAME": "x", "SERVER_PORT": "1", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body)}
    said = []
    list(app(environ, lambda status, headers, exc_info=None: said.append(status)))
    print(said[0], "flask" in sys.modules)

ask("GET", "/v2/health/ready", b"")
ask("POST", "/predictions/petals", b"[5.1,3.5,1.4]")
ask("POST", "/v2/models/none/infer", b"")
ask("GET", "/v2", b"")
service.close()
"""


def test_the_data_plane_does_not_import_flask(tmp_path):
    command = [sys.executable, "-c", LATE, str(MODELS), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "200 OK False",
        "200 OK False",
        "404 Not Found False",
        "200 OK True",
    ]
