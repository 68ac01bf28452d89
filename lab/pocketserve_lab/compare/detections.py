"""Detected boxes against the true ones: matches, F1 of a picture, and average precision over all pictures."""

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
"""Of a class on a picture: the best ones count."""


def f1(entries: Entries, boxes: Entries) -> float:
    """Return 2 * matches / (detections + boxes) of one picture, at an IoU of 0.5; 1 where there is nothing in both."""
    if not entries and not boxes:
        return 1.0
    return 2 * sum(_matches(entries, boxes, 0.5)) / (len(entries) + len(boxes))


def precision_figures(
    answers: Sequence[Entries], truths: Sequence[Entries]
) -> dict[str, float]:
    """Return the mean average precision over the true classes as COCO has it: at an IoU of 0.5, and of 0.5 to 0.95."""
    labels = sorted({box["label"] for boxes in truths for box in boxes})
    if not labels:
        return {}
    table = np.array(
        [
            [_average_precision(answers, truths, label, iou) for label in labels]
            for iou in IOU_STEPS
        ]
    )
    return {"mAP at 0.5": float(table[0].mean()), "mAP": float(table.mean())}


def _average_precision(
    answers: Sequence[Entries], truths: Sequence[Entries], label: str, iou: float
) -> float:
    """Return the mean over 101 steps of recall of the best precision from there on (Lin et al., COCO, 2014)."""
    ranked: list[tuple[float, bool]] = []
    number = 0
    for entries, boxes in zip(answers, truths, strict=True):
        of_class = [entry for entry in entries if entry["label"] == label]
        actual = [box for box in boxes if box["label"] == label]
        number += len(actual)
        order = sorted(of_class, key=lambda entry: -entry["score"])[:MAX_DETECTIONS]
        ranked += zip(
            (entry["score"] for entry in order),
            _matches(order, actual, iou),
            strict=True,
        )
    if not ranked:
        return 0.0
    hits = np.array(
        [hit for _, hit in sorted(ranked, key=lambda pair: -pair[0])], float
    )
    recall = np.cumsum(hits) / number
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(recall, RECALL_STEPS)
    return float(np.mean(np.append(envelope, 0.0)[places]))


def _matches(entries: Entries, boxes: Entries, iou: float) -> list[bool]:
    """Return for each detection, best first, whether it takes a true box of its label that no better one has."""
    corners, free = _corners(boxes), np.array([box["label"] for box in boxes], object)
    matched = []
    for entry in entries:
        overlaps = np.where(
            free == entry["label"], overlap(_corners([entry["box"]])[0], corners), 0.0
        )
        matched.append(bool(len(overlaps)) and float(overlaps.max()) >= iou)
        if matched[-1]:
            free[overlaps.argmax()] = None
    return matched


def _corners(boxes: Entries) -> Array:
    """Return [n, (x0, y0, x1, y1)]."""
    corners = [
        (box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"])
        for box in boxes
    ]
    return np.array(corners, np.float64).reshape(-1, 4)
