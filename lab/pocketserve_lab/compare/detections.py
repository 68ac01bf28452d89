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
    labels = _labels_of(truths)
    if not labels:
        return {}
    table = np.zeros((len(IOU_STEPS), len(labels)))
    for row, iou in enumerate(IOU_STEPS):
        for column, label in enumerate(labels):
            table[row, column] = _average_precision(answers, truths, label, iou)
    return {"mAP at 0.5": float(table[0].mean()), "mAP": float(table.mean())}


def _labels_of(truths: Sequence[Entries]) -> list[str]:
    labels = set()
    for boxes in truths:
        for box in boxes:
            labels.add(box["label"])
    return sorted(labels)


def _average_precision(
    answers: Sequence[Entries], truths: Sequence[Entries], label: str, iou: float
) -> float:
    """Return the interpolated precision, averaged over 101 steps of recall.

    Lin et al., Microsoft COCO, 2014.
    """
    ranked: list[tuple[float, bool]] = []
    number = 0
    for entries, boxes in zip(answers, truths, strict=True):
        actual = _of_class(boxes, label)
        number += len(actual)
        ranked += _judge_detections(_of_class(entries, label), actual, iou)
    if not ranked:
        return 0.0
    ranked.sort(key=lambda pair: -pair[0])
    hits = np.array([hit for _, hit in ranked], float)
    matches = np.cumsum(hits)
    recall = matches / number
    precision = matches / np.arange(1, len(ranked) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    indices = np.searchsorted(recall, RECALL_STEPS)
    return float(np.mean(np.append(envelope, 0.0)[indices]))


def _judge_detections(
    detections: list[Mapping[str, Any]], boxes: Entries, iou: float
) -> list[tuple[float, bool]]:
    """Return the score of each of the best detections, and whether it is right."""
    detections.sort(key=lambda entry: -entry["score"])
    best = detections[:MAX_DETECTIONS]
    scores = [entry["score"] for entry in best]
    return list(zip(scores, _matches(best, boxes, iou), strict=True))


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
