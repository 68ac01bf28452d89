"""How good the models on drawings are: drawings that no model was trained on, and the usual two measures.

Needs numpy and Pillow only, so that a test can measure the models again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from models.recipes import drawings

SEED = 1
HELD_OUT = 300
OVERLAP = 0.5

Found = list[dict[str, Any]]
"""The entries of an answer."""


def any_size(rng: np.random.Generator, longest: int) -> tuple[int, int]:
    """Width and height of a picture whose longer side is ``longest``, upright or wide up to 2 : 1."""
    shorter = round(longest * rng.uniform(0.5, 1.0))
    return (longest, shorter) if rng.random() < 0.5 else (shorter, longest)


def people(size: tuple[int, int] | None = None) -> Iterator[tuple[bytes, np.ndarray]]:
    """PNG files, and the points of the person on each."""
    rng = np.random.default_rng(SEED)
    for _ in range(HELD_OUT):
        picture, points = drawings.person(rng, *(size or any_size(rng, 256)))
        yield as_png(picture), points


def objects() -> Iterator[tuple[bytes, list[tuple[int, tuple]]]]:
    """PNG files, and what is on each."""
    rng = np.random.default_rng(SEED)
    for _ in range(HELD_OUT):
        picture, truth = drawings.objects(rng, *any_size(rng, 256))
        yield as_png(picture), truth


def as_png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def points_of(entry: dict[str, Any]) -> np.ndarray:
    """A body of an answer as [k, (x, y)]."""
    return np.array([[point["x"], point["y"]] for point in entry["keypoints"]])


def close(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Which points lie within a fifth of the distance from left shoulder to right hip (PCK@0.2)."""
    return np.linalg.norm(found - truth, axis=1) < 0.2 * np.linalg.norm(truth[5] - truth[12])


def average_pose() -> float:
    """The score of somebody who sees the average person in the middle of every picture."""
    size = (256, 192)
    truths = [points for _, points in people(size)]
    return float(np.mean([close(np.mean(truths, axis=0), points) for points in truths]))


def mean_precision(answers: list[tuple[Found, list[tuple[int, tuple]]]]) -> float:
    """Average precision of every class (the area below its curve of precision over recall), and their mean.

    Args:
        answers: what was answered, of any score, and what is there, picture by picture.
    """
    kinds = range(len(drawings.SHAPES))
    return float(np.mean([_precision(answers, kind) for kind in kinds]))


def _precision(answers: list[tuple[Found, list[tuple[int, tuple]]]], kind: int) -> float:
    hits: list[tuple[float, bool]] = []
    there = 0
    for found, truth in answers:
        boxes = [np.array(box) for one, box in truth if one == kind]
        there += len(boxes)
        for entry in (one for one in found if one["index"] == kind):
            match = next((i for i, box in enumerate(boxes) if overlap(entry["box"], box) >= OVERLAP), None)
            hits.append((entry["score"], match is not None))
            if match is not None:
                del boxes[match]
    right = np.array([hit for _, hit in sorted(hits, reverse=True)])
    recall, precision = right.cumsum() / there, right.cumsum() / (np.arange(len(right)) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0) * best))


def overlap(found: dict[str, float], box: np.ndarray) -> float:
    """Intersection over union of an answered box and (left, top, right, bottom)."""
    low = np.array([found["x"], found["y"]])
    high = low + [found["width"], found["height"]]
    shared = np.clip(np.minimum(high, box[2:]) - np.maximum(low, box[:2]), 0, None).prod()
    return float(shared / ((high - low).prod() + (box[2:] - box[:2]).prod() - shared))
