"""Compare answers of the ARM run, and choose packages for a newer Python.

The runs themselves are ``make test-arm64`` and ``make test-newest``.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tomllib
from types import ModuleType

import pytest

from conftest import ROOT


def load(name: str) -> ModuleType:
    """Import a script of tools, with the modules beside it."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location(
            name, ROOT / "tools" / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return module


@pytest.fixture(scope="module")
def arm64() -> ModuleType:
    return load("arm64")


@pytest.mark.parametrize(
    ("expected", "found", "distance"),
    [
        ({"7": 0.5}, {"7": 0.5}, 0.0),
        ({"7": 0.5}, {"7": 0.25}, 0.25),
        ({"value": 200.0}, {"value": 201.0}, 0.005),
        ({"7": 0.5}, {"1": 0.5}, math.inf),
        ({"7": 0.5}, {}, math.inf),
    ],
)
def test_the_distance_of_two_answers(arm64, expected, found, distance) -> None:
    assert arm64._distance(expected, found) == pytest.approx(distance)


def test_selected_test_files_exist(arm64) -> None:
    """A renamed test file must not be left out silently."""
    assert [name for name in arm64.TESTS if not (ROOT / "tests" / name).exists()] == []


def test_the_newest_python_gets_the_tests_packages() -> None:
    """It gets all of the extra ``dev`` but the checkers."""
    from packaging.requirements import Requirement

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    named = {
        Requirement(text).name
        for extra in ("tflite", "onnx", "image", "qr", "dev")
        for text in extras[extra]
    }
    assert named - set(load("newest_python").WHEELS) == {
        "mypy",
        "ruff",
        "types-requests",
    }
