"""Let Schemathesis test a server by its /openapi.json."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODELS, StartServer
from pocketserve.api.routes import ROUTES

pytestmark = pytest.mark.conformance

CONFIG = """
seed = 7
workers = 1
request-timeout = 900.0
continue-on-failure = true
warnings = false

[generation]
deterministic = true
no-shrink = true
database = "none"
max-examples = 25

# Without names that exist, every answer would be "unknown model".
[dictionaries]
models = { values = ["digits", "diabetes", "numbers", "petals"] }
versions = { values = ["tflite", "tflite-int8", "0"] }

[parameters]
"path.model" = { dictionary = "models", probability = 0.8 }
"path.version" = { dictionary = "versions", probability = 0.8 }

[checks]
# No time is asserted: on a busy machine, the first load of a framework takes what it takes.
max_response_time = 900.0
# 501: configurations over the network. 503: models that were unloaded or have no runtime. 504: a timeout of nothing.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 503, 504]
"""


def test_the_server_conforms_to_its_openapi_document(
    new_server: StartServer, tmp_path: Path
) -> None:
    server = new_server(
        MODELS,
        "--log-level",
        "error",
        "--request-timeout",
        "600",
        "--trial-timeout",
        "600",
    )
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "--config-file",
        str(config),
        "run",
    ]
    command += [
        f"{server.url}/openapi.json",
        "--header",
        f"Authorization: Bearer {server.token}",
        "--no-color",
    ]
    # The schema doesn't say which numbers fit a model: the server may refuse more than
    # the schema does.
    command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    command += ["--phases", "examples,coverage,fuzzing,stateful"]
    environment = {
        **os.environ,
        "NO_PROXY": "*",
        "no_proxy": "*",
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, timeout=1800
    )
    report = done.stdout.decode(errors="replace")
    assert done.returncode == 0, report + done.stderr.decode(errors="replace")
    # It takes /v2 and /v2/ for one route.
    operations = {(route.method, route.pattern.rstrip("/")) for route in ROUTES}
    assert f"Tested: {len(operations)}" in report
    assert "No issues found" in report
    # The server is unchanged afterwards, and logged no unexpected error.
    assert server.process.poll() is None
    assert server.call("GET", "/v2/health/ready").status_code == 200
    assert b"Traceback" not in server.log.read_bytes()
