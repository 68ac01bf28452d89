"""Run the public models' verified cases on gunicorn and Ray Serve."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asset_cases import Case, Engine, all_cases, run_case, serving
from conftest import find_assets
from gunicorn_server import gunicorn
from pocketserve_client import Client
from ray_server import ray_server

pytestmark = [pytest.mark.assets, pytest.mark.live]
FRAMEWORKS = {
    "tflite": [],
    "onnx": [pytest.mark.onnx],
    "torchscript": [pytest.mark.torch],
    "ptl": [pytest.mark.torch],
}
CASES = [case for case in all_cases(find_assets()) if case.format in FRAMEWORKS]


def two_replicas(folder: Path, models: Path) -> Any:
    """Start Ray Serve, which loads every model at the start."""
    return ray_server(folder, models, "--replicas", "2")


ENGINES: dict[str, Engine] = {
    "gunicorn": functools.partial(gunicorn, workers=2),
    "gunicorn, one worker": functools.partial(gunicorn, workers=1),
    "Ray": two_replicas,
}


def parameters(engine: str, cases: list[Case], *needs: Any) -> list[Any]:
    """Return the cases with engine and format.

    Ray's environment has every framework.
    """
    marks = {form: needs or FRAMEWORKS[form] for form in FRAMEWORKS}
    return [
        pytest.param(engine, c.format, c, id=f"{engine}: {c}", marks=marks[c.format])
        for c in cases
    ]


@pytest.fixture(scope="module")
def client(engine: str, form: str, assets: Path) -> Iterator[Client]:
    """Return an engine's client on all models of one format."""
    with serving(assets, form, ENGINES[engine]) as client:
        yield client


@pytest.mark.parametrize(
    ("engine", "form", "case"),
    [
        *parameters("gunicorn", [case for case in CASES if not case.is_sequence]),
        # Several refuse them.
        *parameters(
            "gunicorn, one worker", [case for case in CASES if case.is_sequence]
        ),
        *parameters("Ray", CASES, pytest.mark.ray, pytest.mark.alone),
    ],
    scope="module",
)
def test_a_case_gives_its_outputs(client: Client, case: Case) -> None:
    run_case(client, case)
