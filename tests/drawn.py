"""Draw people and shapes with known points and boxes, by the training recipe."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from conftest import ROOT


def recipe(name: str) -> Any:
    """Import a module of the recipes that needs neither TensorFlow nor PyTorch."""
    sys.path.append(str(ROOT))
    try:
        return importlib.import_module(f"models.recipes.{name}")
    finally:
        sys.path.remove(str(ROOT))


drawings = recipe("drawings")
scores = recipe("figure_scores")


def person(seed: int, width: int, height: int) -> tuple[Any, Any]:
    """Return a picture, and the points [17, (x, y)] of the person on it."""
    return drawings.person(np.random.default_rng(seed), width, height)


def objects(seed: int, width: int, height: int) -> tuple[Any, Any]:
    """Return a picture, and a list of (class, (left, top, right, bottom))."""
    return drawings.objects(np.random.default_rng(seed), width, height)


def points_of(answer: Any) -> Any:
    """Return the only body of an answer as [17, (x, y)]."""
    (body,) = answer["predictions"]
    return scores.points_of(body)


def check_points(found: Any, truth: Any, size: tuple[int, int]) -> None:
    """Check the distances of points relative to the picture's longer side.

    Half must be within a fiftieth, and nine in ten within a fourteenth.
    """
    away = np.linalg.norm(found - truth, axis=1) / max(size)
    assert np.median(away) < 0.02 and np.quantile(away, 0.9) < 0.07, np.round(away, 3)


def check_boxes(answer: Any, truth: Any) -> None:
    """Check that exactly the drawn objects are found at their positions."""
    found = answer["predictions"]
    assert len(found) == len(truth), found
    for kind, box in truth:
        assert any(
            one["index"] == kind and scores.overlap(one["box"], np.array(box)) > 0.75
            for one in found
        ), box
