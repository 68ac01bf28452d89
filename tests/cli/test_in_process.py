"""Tests of ``pocketserve.load`` and ``pocketserve.testing``."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import pocketserve
from conftest import MODELS
from pocketserve.local.opening import ModelPathError
from pocketserve.local.own_server import OwnServerError
from pocketserve.testing import running_server
from pocketserve_client import ServerError
from pocketserve_wire import ApiError, ErrorCode

SEVEN = MODELS / "digits" / "samples" / "7.png"
FLOWER = [5.1, 3.5, 1.4]


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("POCKETSERVE_MODELS_DIR", raising=False)


@pytest.mark.parametrize(
    "model",
    [
        "digits",
        MODELS / "digits",
        MODELS / "digits" / "digits.tflite",
    ],
    ids=str,
)
def test_load_by_name_folder_and_file(model: str | Path) -> None:
    with pocketserve.load(
        model, models_dir=MODELS if isinstance(model, str) else None
    ) as opened:
        assert opened.name == "digits"
        assert "tflite" in opened.versions
        answer = opened(SEVEN, top_k=1)
        assert answer["model"] == "digits"
        assert answer["task"] == "image-classification"
        assert answer["predictions"][0]["label"] == "7"


def test_a_loaded_model_answers_like_the_command() -> None:
    words = ["predict", "--local", str(MODELS / "petals"), *map(str, FLOWER), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "pocketserve", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    with pocketserve.load(MODELS / "petals") as petals:
        answer = petals.predict(FLOWER)
        assert answer["predictions"] == json.loads(done.stdout)["predictions"]
        assert (
            petals.predict(np.array(FLOWER, np.float32))["predictions"]
            == answer["predictions"]
        )


def test_pictures_and_parameters() -> None:
    with pocketserve.load(MODELS / "digits", version="tflite-int8") as digits:
        assert digits.predict(SEVEN, annotate="png").startswith(b"\x89PNG")
        assert digits.predict(SEVEN, annotate="jpeg").startswith(b"\xff\xd8")
        both = digits.predict(SEVEN, annotate="both", parameters={"top_k": 1})
        assert both["version"] == "tflite-int8"
        assert both["picture"]
        assert len(both["predictions"]) == 1
        assert repr(digits) == "<model 'digits', version 'tflite-int8'>"


def test_threads_share_a_model() -> None:
    with pocketserve.load(MODELS / "petals") as petals, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: petals(FLOWER)["predictions"], range(20)))
    assert answers == [answers[0]] * 20


@pytest.mark.parametrize(
    "model",
    [
        "no-such",
        "./no-such.tflite",
        Path("no-such.tflite"),
        "",
    ],
)
def test_load_a_missing_model(model: str | Path) -> None:
    with pytest.raises(ModelPathError):
        pocketserve.load(model, models_dir=MODELS)


def test_invalid_requests_raise() -> None:
    with pocketserve.load(MODELS / "digits") as digits:
        with pytest.raises(ApiError) as error:
            digits(b"no picture")
        assert error.value.code is ErrorCode.INVALID_INPUT
        with pytest.raises(ApiError, match="no_such"):
            digits(SEVEN, parameters={"no_such": 1})
    with (
        pocketserve.load(MODELS / "digits", version="none") as digits,
        pytest.raises(ApiError) as error,
    ):
        digits(SEVEN)
    assert error.value.code is ErrorCode.VERSION_NOT_FOUND


def test_load_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "damaged.tflite").write_bytes(
        (MODELS / "digits" / "digits.tflite").read_bytes()[:500]
    )
    with (
        pocketserve.load(tmp_path / "damaged.tflite") as damaged,
        pytest.raises(ApiError, match="failed to load"),
    ):
        damaged(b"x")


@pytest.mark.live
def test_start_a_server_for_tests() -> None:
    with running_server(MODELS) as server:
        with server.client() as client:
            assert client.predict("petals", FLOWER)["predictions"]
        with server.client(url=server.http) as client:
            assert "digits" in client.models()
        with server.client() as client, pytest.raises(ServerError):
            client.predict("no-such", FLOWER)
        assert server.token_file.stat().st_mode & 0o077 == 0


@pytest.mark.live
def test_a_server_that_fails_to_start(tmp_path: Path) -> None:
    with (
        pytest.raises(OwnServerError, match="ended before it was ready"),
        running_server(tmp_path / "no-such"),
    ):
        pass
