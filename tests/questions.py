"""Send requests of every kind to engines that must answer like the plain server."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

import numpy as np
import requests

from conftest import Server
from places import MODELS

PICTURE = (MODELS / "digits" / "samples" / "7.png").read_bytes()
IMAGE = np.linspace(0, 1, 64, dtype=np.float32)
TENSOR = {
    "name": "image",
    "shape": [1, 8, 8, 1],
    "datatype": "FP32",
}
JSON_BODY = json.dumps({"inputs": [TENSOR | {"data": IMAGE.tolist()}]}).encode()
HEAD = json.dumps(
    {
        "inputs": [TENSOR | {"parameters": {"binary_data_size": IMAGE.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
).encode()
BINARY = {
    "data": HEAD + IMAGE.tobytes(),
    "headers": {"Inference-Header-Content-Length": str(len(HEAD))},
}
QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tensors as JSON": ("POST", "/v2/models/digits/infer", {"data": JSON_BODY}),
    "binary tensors": ("POST", "/v2/models/digits/versions/tflite/infer", BINARY),
    "a body in chunks": (
        "POST",
        "/v2/models/digits/infer",
        {"data": [JSON_BODY[:100], JSON_BODY[100:]]},
    ),
    "a picture": ("PUT", "/predictions/digits", {"data": PICTURE}),
    "numbers": ("POST", "/predictions/petals", {"data": "[5.1, 3.5, 1.4]"}),
    "TensorFlow Serving": (
        "POST",
        "/v1/models/petals:predict",
        {"json": {"instances": [[5.1, 3.5, 1.4]]}},
    ),
    "metadata": ("GET", "/v2/models/digits", {}),
    "a gzip answer": (
        "GET",
        "/v2/models/digits/config",
        {"headers": {"Accept-Encoding": "gzip"}},
    ),
    "only the head": ("HEAD", "/v2/models/digits", {}),
    "an unknown model": ("POST", "/v2/models/nobody/infer", {"data": JSON_BODY}),
    "an unknown path": ("GET", "/nowhere", {}),
    "another method": ("DELETE", "/v2/models/digits", {}),
    "bad JSON": ("POST", "/v2/models/digits/infer", {"data": b"{"}),
    "another host": ("GET", "/v2", {"headers": {"Host": "example.org"}}),
    "no valid token": ("GET", "/v2", {"headers": {"Authorization": "Bearer nonsense"}}),
}


def ask(server: Server, question: str) -> requests.Response:
    """Send one request; a body in pieces is chunked."""
    method, path, options = QUESTIONS[question]
    pieces = {}
    for name, value in options.items():
        if isinstance(value, list):
            pieces[name] = iter(value)
    return server.call(method, path, **{**options, **pieces})


def plain(response: requests.Response) -> bytes:
    """Return an answer's body without times, ports and thread counts."""
    return re.sub(
        rb'"timing_ms":\{[^}]*\}|127\.0\.0\.1:\d+|"threads":\d+', b"", response.content
    )


LOCAL = (
    "/v2/repository/models/digits/load",
    "/v2/repository/models/digits/unload",
    "/pairing/open",
    "/pairing/close",
    "/pairing/begin",
    "/pairing/finish",
    "/web/ticket",
    "/web/session",
)
"""Requests that would change a single arbitrary process."""


def check_same(question: str, plain_server: Server, other: Server) -> None:
    """Compare status, body and headers of each request, twice."""
    expected = ask(plain_server, question)
    for _ in range(2):
        answer = ask(other, question)
        assert (answer.status_code, plain(answer)) == (
            expected.status_code,
            plain(expected),
        )
        for header in (
            "Content-Type",
            "Content-Encoding",
            "Inference-Header-Content-Length",
            "WWW-Authenticate",
        ):
            assert answer.headers.get(header) == expected.headers.get(header), header


def check_large_bodies(server: Any) -> None:
    """Check that unauthenticated and huge bodies are refused before being read."""
    for body in (bytes(5000), iter([bytes(5000)])):
        answer = requests.post(
            f"{server.url}/predictions/digits", data=body, timeout=60
        )
        assert answer.status_code == 401
        assert answer.json()["code"] == "UNAUTHORIZED"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("POST", "/predictions/digits")
    connection.putheader("Authorization", f"Bearer {server.token}")
    connection.putheader("Content-Length", str(2**31))
    connection.endheaders(b"x")
    refusal = connection.getresponse()
    assert refusal.status == 413
    assert json.loads(refusal.read())["code"] == "BODY_TOO_LARGE"
    connection.close()
