"""How the ARM run compares answers; the run itself is ``make test-arm64``."""

from __future__ import annotations

import importlib.util
import math
import sys
from types import ModuleType

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def arm64() -> ModuleType:
    """The script, whose neighbour it imports."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location("arm64", ROOT / "tools" / "arm64.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return module


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


def test_what_is_run_exists(arm64) -> None:
    """A renamed test file is not silently left out."""
    assert [name for name in arm64.TESTS if not (ROOT / "tests" / name).exists()] == []
