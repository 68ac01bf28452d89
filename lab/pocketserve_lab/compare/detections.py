"""Score detected boxes against the true ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.tasks.vision.boxes import overlap
from pocketserve.tensors import Array

Entries = Sequence[Mapping[str, Any]]
IOU_STEPS = tuple(np.linspace(0.5, 0.95, 10).tolist())
RECALL_STEPS = np.linspace(0, 1, 101)
MAX_DETECTIONS = 100
"""Detections of one class on one picture that count, best first."""


def f1(entries: Entries, boxes: Entries) -> float:
    """Return a picture's F1 at an IoU of 0.5.

    That is 2 * matches / (detections + boxes), and 1 if there are none of either.
    """
    if not entries and not boxes:
        return 1.0
    matches = sum(_matches(entries, boxes, 0.5))
    return 2 * matches / (len(entries) + len(boxes))


def precision_figures(
    answers: Sequence[Entries], truths: Sequence[Entries]
) -> dict[str, float]:
    """Return the mean average precision over the true classes.

    As COCO defines it: at an IoU of 0.5, and averaged over 0.5 to 0.95.
    """
    labels: set[str] = set()
    for boxes in truths:
        labels.update(box["label"] for box in boxes)
    if not labels:
        return {}
    table = np.zeros((len(IOU_STEPS), len(labels)))
    for row, iou in enumerate(IOU_STEPS):
        for column, label in enumerate(sorted(labels)):
            table[row, column] = _average_precision(answers, truths, label, iou)
    return {"mAP at 0.5": float(table[0].mean()), "mAP": float(table.mean())}


def _average_precision(
    answers: Sequence[Entries], truths: Sequence[Entries], label: str, iou: float
) -> float:
    """Return the interpolated precision, averaged over 101 steps of recall.

    Lin et al., Microsoft COCO, 2014.
    """
    scores: list[float] = []
    hits: list[bool] = []
    number = 0
    for entries, boxes in zip(answers, truths, strict=True):
        detections = _of_class(entries, label)
        detections.sort(key=lambda entry: -entry["score"])
        detections = detections[:MAX_DETECTIONS]
        actual = _of_class(boxes, label)
        number += len(actual)
        scores += [entry["score"] for entry in detections]
        hits += _matches(detections, actual, iou)
    if not hits:
        return 0.0
    order = np.argsort(-np.array(scores, float), kind="stable")
    matches = np.cumsum(np.array(hits, float)[order])
    recall = matches / number
    precision = matches / np.arange(1, len(hits) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    indices = np.searchsorted(recall, RECALL_STEPS)
    return float(np.mean(np.append(envelope, 0.0)[indices]))


def _of_class(entries: Entries, label: str) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry["label"] == label]


def _matches(entries: Entries, boxes: Entries, iou: float) -> list[bool]:
    """Match detections, best first, to free true boxes."""
    corners = _corners(boxes)
    free = np.array([box["label"] for box in boxes], object)
    matched = []
    for entry in entries:
        overlaps = overlap(_corners([entry["box"]])[0], corners)
        overlaps = np.where(free == entry["label"], overlaps, 0.0)
        is_match = len(overlaps) > 0 and float(overlaps.max()) >= iou
        if is_match:
            free[overlaps.argmax()] = None
        matched.append(is_match)
    return matched


def _corners(boxes: Entries) -> Array:
    """Return [n, (x0, y0, x1, y1)]."""
    corners = np.zeros((len(boxes), 4))
    for row, box in enumerate(boxes):
        x, y = box["x"], box["y"]
        corners[row] = x, y, x + box["width"], y + box["height"]
    return corners
