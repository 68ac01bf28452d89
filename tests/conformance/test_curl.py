"""Run curl with the README's calls and with failing ones."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS, Server

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl program"),
]

SAMPLES = MODELS / "digits" / "samples"


def curl(
    server: Server,
    path: str,
    *options: str,
    token: str | None = "",
    send: bytes | None = None,
) -> tuple[int, Any]:
    """Run curl.

    Args:
        token: None sends none; empty sends the right one.
        send: the program's standard input.

    Returns:
        The HTTP status, and the parsed JSON body.
    """
    secret = token
    if token == "":
        secret = server.token
    header = ["-H", f"Authorization: Bearer {secret}"] if secret else []
    # -q ignores the user's own .curlrc.
    command = [
        "curl",
        "-q",
        "--silent",
        "--show-error",
        "--max-time",
        "30",
        "--noproxy",
        "*",
        *header,
        *options,
    ]
    command += ["--write-out", "\n%{http_code}", server.url + path]
    done = subprocess.run(
        command, input=send, capture_output=True, timeout=60, check=True
    )
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(body)


def test_picture_with_upload(server: Server) -> None:
    for number in range(10):
        status, answer = curl(
            server, "/predictions/digits", "-T", str(SAMPLES / f"{number}.png")
        )
        assert status == 200
        assert answer["predictions"][0]["label"] == str(number)
        assert set(answer) == {"model", "version", "task", "predictions", "timing_ms"}


def test_picture_with_data_binary(server: Server) -> None:
    """curl sets application/x-www-form-urlencoded by itself, and the server ignores it."""
    path = "/predictions/digits?top_k=1&version=tflite-int8"
    status, answer = curl(server, path, "--data-binary", f"@{SAMPLES / '7.png'}")
    assert status == 200
    assert answer["version"] == "tflite-int8"
    assert [item["label"] for item in answer["predictions"]] == ["7"]


def test_picture_in_chunks(server: Server) -> None:
    """curl doesn't know a pipe's length, so it sends chunks."""
    status, answer = curl(
        server, "/predictions/digits", "-T", "-", send=(SAMPLES / "3.png").read_bytes()
    )
    assert status == 200
    assert answer["predictions"][0]["label"] == "3"


def test_numbers(server: Server) -> None:
    status, answer = curl(server, "/predictions/petals", "-d", "[5.1, 3.5, 1.4]")
    assert status == 200
    assert answer["task"] == "tabular-regression"
    features = {
        "sepal_length": 5.1,
        "sepal_width": 3.5,
        "petal_length": 1.4,
    }
    assert (
        curl(server, "/predictions/petals", "-d", json.dumps(features))[1][
            "predictions"
        ]
        == answer["predictions"]
    )


def test_array_file(server: Server, digit: npt.NDArray[np.float32]) -> None:
    file = io.BytesIO()
    np.save(file, digit)
    status, answer = curl(
        server, "/predictions/digits", "-T", "-", send=file.getvalue()
    )
    assert status == 200
    assert answer["predictions"][0]["label"] == "0"


def test_protocols(server: Server, digit: npt.NDArray[np.float32]) -> None:
    body = {
        "inputs": [
            {
                "name": "image",
                "shape": [1, 8, 8, 1],
                "datatype": "FP32",
                "data": digit.tolist(),
            }
        ]
    }
    status, answer = curl(server, "/v2/models/digits/infer", "-d", json.dumps(body))
    assert status == 200
    assert int(np.argmax(answer["outputs"][0]["data"])) == 0
    status, answer = curl(
        server,
        "/v1/models/digits:predict",
        "-d",
        json.dumps({"instances": digit.tolist()}),
    )
    assert status == 200
    assert int(np.argmax(answer["predictions"][0])) == 0
    command = [
        "curl",
        "-q",
        "-sS",
        "--max-time",
        "30",
        "--noproxy",
        "*",
        "-H",
        f"Authorization: Bearer {server.token}",
    ]
    command += [
        "-H",
        "Inference-Header-Content-Length: 0",
        "--data-binary",
        "@-",
        "--output",
        "-",
    ]
    command.append(f"{server.url}/v2/models/digits/infer")
    done = subprocess.run(
        command, input=digit.tobytes(), capture_output=True, timeout=60, check=True
    )
    assert int(np.argmax(np.frombuffer(done.stdout[-40:], "<f4"))) == 0
    assert curl(server, "/v2/health/ready", token=None) == (
        200,
        {"live": True, "ready": True},
    )
    assert curl(server, "/v2/repository/index", "-X", "POST")[0] == 200


def test_compressed_body_and_answer(
    server: Server, digit: npt.NDArray[np.float32]
) -> None:
    import gzip

    body = gzip.compress(json.dumps({"instances": digit.tolist()}).encode())
    options = ["-H", "Content-Encoding: gzip", "--data-binary", "@-", "--compressed"]
    status, answer = curl(server, "/v1/models/digits:predict", *options, send=body)
    assert status == 200
    assert int(np.argmax(answer["predictions"][0])) == 0


def test_large_body_waits_for_the_continue(server: Server, tmp_path: Path) -> None:
    """From a megabyte on, curl sends Expect: 100-continue."""
    file = tmp_path / "large.json"
    rows = [[5.1, 3.5, 1.4]] * 100_000
    file.write_text(json.dumps({"instances": rows}))
    assert file.stat().st_size > 1_100_000
    options = [
        "-H",
        "Expect: 100-continue",
        "--expect100-timeout",
        "20",
        "--data-binary",
        f"@{file}",
    ]
    status, answer = curl(server, "/v1/models/petals:predict", *options)
    assert status == 200
    assert len(answer["predictions"]) == len(rows)


def test_token(server: Server) -> None:
    for token in (None, "no"):
        status, answer = curl(server, "/v2/models/digits", token=token)
        assert status == 401
        assert answer["code"] == "UNAUTHORIZED"
        assert "pocketserve token" in answer["error"]
    assert (
        curl(server, "/v2/models/digits", "-u", f"anybody:{server.token}", token=None)[
            0
        ]
        == 200
    )


FAILING_CALLS = [
    ("/nowhere", (), 404, "NOT_FOUND"),
    ("/v2/models/digits/infer", (), 405, "METHOD_NOT_ALLOWED"),
    ("/predictions/nobody", ("-d", "[1]"), 404, "MODEL_NOT_FOUND"),
    ("/predictions/digits?version=9", ("-d", "[1]"), 404, "VERSION_NOT_FOUND"),
    ("/predictions/digits?top=3", ("-d", "[1]"), 400, "INVALID_PARAMETER"),
    ("/predictions/digits", ("-d", "no picture"), 400, "INVALID_INPUT"),
    ("/predictions/digits", ("-X", "POST"), 400, "INVALID_INPUT"),
    ("/predictions/petals", ("-d", "[1, 2]"), 400, "INVALID_INPUT"),
    ("/v2/models/digits/infer", ("-d", "{"), 400, "MALFORMED_JSON"),
    ("/v2/models/digits/infer", ("-d", "{}"), 400, "INVALID_REQUEST"),
    ("/v2/models/digits", ("-H", "Host: evil.example"), 403, "HOST_REFUSED"),
    (
        "/v2/models/digits",
        ("-H", "Origin: http://evil.example"),
        403,
        "ORIGIN_REFUSED",
    ),
    (
        "/v2/models/digits/infer",
        ("-d", "x", "-H", "Content-Encoding: br"),
        415,
        "UNSUPPORTED_ENCODING",
    ),
]


@pytest.mark.parametrize(
    ("path", "options", "status", "code"),
    FAILING_CALLS,
)
def test_errors(
    server: Server, path: str, options: tuple[str, ...], status: int, code: str
) -> None:
    found, answer = curl(server, path, *options)
    assert (found, answer["code"]) == (status, code), answer
    assert set(answer) == {"error", "code"}
    assert len(answer["error"]) > 10


def test_a_file_that_cannot_be_served(odd_server: Server) -> None:
    status, answer = curl(odd_server, "/v2/models/complex")
    assert status == 503
    assert answer["code"] == "MODEL_FAILED"
    assert answer["error"].startswith("failed to load 'complex' version 'tflite': ")
