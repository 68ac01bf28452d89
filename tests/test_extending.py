"""Do the exercises of ``docs/extending.md`` on a copy of the server.

They must only change the files that the page names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT, Server, start_server

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
TIMEOUT_S = 120.0


def blocks(kind: str) -> list[tuple[str, str]]:
    """Return the file and the text of each block that begins like this."""
    return re.findall(rf"^```{kind} (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources with all exercises done."""
    copy = tmp_path_factory.mktemp("extended")
    for root in ("server", "client"):
        shutil.copytree(
            ROOT / root, copy / root, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, text in blocks("python add"):
        file = copy / name
        assert not file.exists()
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for name, text in blocks("diff"):
        lines = text.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] == "-")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] == "+")
        source = (copy / name).read_text(encoding="utf-8")
        assert source.count(before) == 1, name
        (copy / name).write_text(source.replace(before, after), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def environment(extended: Path) -> dict[str, str]:
    """Return the environment in which Python finds the copy."""
    folders = [str(extended / root) for root in ("server", "client")]
    folders.append(os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


@pytest.fixture(scope="module")
def server(extended: Path, environment: dict[str, str]) -> Iterator[Server]:
    """Start the copy's server with two linear models: one bare, one with the new task."""
    models = extended / "my-models"
    (models / "alarm").mkdir(parents=True)
    arrays = {
        "weights": np.array([[1.0, 0.0], [0.0, 2.0]]),
        "bias": np.array([0.5, 0.0]),
    }
    np.savez(models / "linear.npz", **arrays)
    np.savez(models / "alarm" / "m.npz", **arrays)
    (models / "alarm" / "model.toml").write_text(
        'task = "limit-alarm"\n[alarm]\nlimit = 4.0\n'
    )
    started = start_server(extended, models, environment=environment)
    yield started
    assert started.stop() == 0


def pocketserve(environment: dict[str, str], *words: str) -> str:
    """Return the output of the copy's command."""
    command = [sys.executable, "-m", "pocketserve", *words]
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_exercise_changes_one_line_besides_new_files() -> None:
    for name, text in blocks("diff"):
        lines = text.splitlines()
        assert (
            sum(line[0] == "+" for line in lines) <= 2
            and sum(line[0] == "-" for line in lines) == 1
        ), name
    assert len(blocks("diff")) == len(re.findall(r"^## ", PAGE, re.MULTILINE))


def test_a_format_is_listed_and_run(server: Server) -> None:
    """Both transports answer tensors and raw input."""
    index = server.call("POST", "/v2/repository/index").json()
    assert {
        (
            entry["name"],
            entry["version"],
            entry["state"],
        )
        for entry in index
    } == {
        ("linear", "npz", "READY"),
        ("alarm", "npz", "READY"),
    }
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 2],
        "data": [3.0, 4.0],
    }
    answer = server.call(
        "POST", "/v2/models/linear/infer", json={"inputs": [tensor]}
    ).json()
    assert answer["outputs"][0]["data"] == [3.5, 8.0]
    assert server.call("GET", "/v2/models/linear").json()["platform"] == "numpy_npz"
    with server.connect() as framed:
        body = json.dumps([[3.0, 4.0]]).encode()
        assert framed.call("POST /predictions/linear", body).document["predictions"][0][
            "data"
        ] == [3.5, 8.0]


def test_a_damaged_file_of_a_format_is_explained(
    server: Server, extended: Path
) -> None:
    (extended / "my-models" / "broken.npz").write_bytes(b"no archive")
    assert server.call("POST", "/v2/repository/index").status_code == 200
    answer = server.call("POST", "/predictions/broken", data=b"[[1, 2]]")
    assert answer.status_code == 503
    assert "holds no arrays named weights and bias" in answer.json()["error"]
    (extended / "my-models" / "broken.npz").unlink()


def test_a_task_answers_and_is_described(
    server: Server, environment: dict[str, str], extended: Path
) -> None:
    low, high = (
        server.call("POST", "/predictions/alarm", data=body).json()
        for body in ("[[3, 4]]", "[[9, 4]]")
    )
    assert low["predictions"] == [{"label": "low", "value": 3.5}]
    assert high["predictions"] == [{"label": "high", "value": 9.5}]
    printed = pocketserve(environment, "inspect", str(extended / "my-models" / "alarm"))
    assert "limit-alarm" in printed
    assert "high above 4, else low" in printed
    card = server.call("GET", "/v2/models/alarm").json()["card"]
    assert card["accepts"] == ["tensors"]


def test_a_route_is_served_and_described(server: Server) -> None:
    assert server.call("POST", "/predictions/alarm", data="[[3, 4]]").status_code == 200
    assert "alarm" in server.call("GET", "/v2/loaded").json()["models"]
    assert "/v2/loaded" in server.call("GET", "/openapi.json").json()["paths"]
    with server.connect() as framed:
        assert "alarm" in framed.call("GET /v2/loaded").document["models"]


def test_a_command_is_found(environment: dict[str, str]) -> None:
    assert re.search(
        r"^npz +is there$", pocketserve(environment, "formats"), re.MULTILINE
    )
    assert "list the formats and what they need" in pocketserve(environment, "--help")


def test_a_setting_is_an_option_and_a_variable(environment: dict[str, str]) -> None:
    assert "--slow-load" in pocketserve(environment, "serve", "--help")
    code = (
        "from pocketserve.config import load_config; print(load_config({}).slow_load)"
    )
    variable = re.search(r"POCKETSERVE_\w+", PAGE)
    assert variable is not None
    settings = os.environ | environment | {variable[0]: "2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=settings,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2.0\n"
