"""The quality of answers: each against the truth, or against the reference version's answer, by the model's task.

A score lies between 0 and 1 and more is better; a regression's is minus the absolute error.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare import detections
from pocketserve_lab.compare.samples import Classes, read_classes

Answer = Mapping[str, Any]
SAME_VALUE = 0.01
"""Numbers count as the same within this share of the largest one that the reference answers."""

SAME_OVERLAP = 0.9
"""Boxes and masks count as the same from this F1 or IoU on."""

IGNORED = 255
"""Of a mask: pixels that nobody judged."""


class Measure(NamedTuple):
    """A way to judge the answers of one task.

    Attributes:
        name: of the mean score.
        score: of an answer against the truth; the truth may come from :attr:`truth_of`.
        truth_of: makes a truth of the reference's answer.
        same_from: the least score at which two answers count as the same; None compares numbers by their size.
        binary: whether a score is 0 or 1, so that McNemar's test fits.
        overall: further figures over all samples, by name; takes answers and truths.
    """

    name: str
    score: Callable[[Answer, Any], float]
    truth_of: Callable[[Answer], Any]
    same_from: float | None
    binary: bool = False
    overall: Callable[[Sequence[Answer], Sequence[Any]], dict[str, float]] = (
        lambda answers, truths: {}
    )


def measure_for(task: str) -> Measure:
    """Return how the answers of a task are judged; those that nothing fits are compared number by number."""
    if task.endswith("-classification"):
        return CLASSES
    return {
        "tabular-regression": VALUES,
        "object-detection": BOXES,
        "image-segmentation": MASKS,
        "question-answering": TEXTS,
    }.get(task, NUMBERS)


# Classes


def _first(answer: Answer) -> Mapping[str, Any]:
    entries = answer.get("predictions") or [{}]
    first: Mapping[str, Any] = entries[0]
    return first


def classes_of(truths: Sequence[Any], answers: Iterable[Answer]) -> list[Classes]:
    """Return the classes that truths mean, of those that the answers hold; none for one that nobody knows."""
    classes = {
        (_class_of(entry), str(entry.get("label", ""))): None
        for answer in answers
        for entry in answer.get("predictions") or []
    }
    return read_classes(truths, classes)


def _class_of(entry: Mapping[str, Any]) -> Any:
    """Return an entry's index; of a task of somebody's own that has none, its label."""
    return entry.get("index", entry.get("label"))


def _class_figures(
    answers: Sequence[Answer], truths: Sequence[Classes]
) -> dict[str, float]:
    entries = [answer.get("predictions") or [] for answer in answers]
    classes = max((len(each) for each in entries), default=0)
    figures = {}
    if classes > 5:
        within = [
            any(_class_of(e) in truth for e in each[:5])
            for each, truth in zip(entries, truths, strict=True)
        ]
        figures["top-5"] = float(np.mean(within))
    by_index = {index: truth for truth in truths for index in truth}
    predicted = [
        by_index.get(index, frozenset([index]))
        for index in map(_class_of, map(_first, answers))
    ]
    hits = Counter(
        truth for truth, each in zip(truths, predicted, strict=True) if truth == each
    )
    number = Counter(truths) + Counter(predicted)
    figures["F1"] = float(np.mean([2 * hits[each] / number[each] for each in number]))
    return figures


CLASSES = Measure(
    "top-1",
    lambda answer, truth: float(_class_of(_first(answer)) in truth),
    lambda answer: frozenset([_class_of(_first(answer))]),
    same_from=1.0,
    binary=True,
    overall=_class_figures,
)


# Numbers


def numbers_in(answer: Any) -> Array:
    """Return all numbers of an answer in order; of ``predictions`` as of raw tensors."""
    numbers: list[float] = []

    def collect(value: Any) -> None:
        if isinstance(value, bool | str) or value is None:
            return
        if isinstance(value, Mapping):
            for key in value:
                if key not in ("index", "shape", "further"):
                    collect(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item)
        else:
            numbers.append(float(value))

    collect(answer)
    return np.asarray(numbers, np.float64)


def largest_difference(answer: Answer, reference: Answer) -> float:
    """Return how far two answers' numbers are apart; of classes, their scores."""
    entries, expected = answer.get("predictions"), reference.get("predictions")
    if (
        entries
        and expected
        and {"index", "score"} <= entries[0].keys()
        and "box" not in entries[0]
    ):
        by_index = {entry["index"]: entry["score"] for entry in entries}
        scores = [
            (entry["score"], by_index.get(entry["index"], 0.0)) for entry in expected
        ]
        return max(abs(float(score) - float(other)) for score, other in scores)
    return -_distance(answer, numbers_in(reference))


def _distance(answer: Answer, truth: Array) -> float:
    numbers = numbers_in(answer)
    if len(numbers) != len(truth):
        return -np.inf
    return -float(np.max(np.abs(numbers - truth), initial=0.0))


def _value_error(answer: Answer, truth: Any) -> float:
    return -abs(float(_first(answer)["value"]) - float(truth))


def _value_figures(
    answers: Sequence[Answer], truths: Sequence[Any]
) -> dict[str, float]:
    errors = np.array(
        [
            _value_error(answer, truth)
            for answer, truth in zip(answers, truths, strict=True)
        ]
    )
    return {"root mean square error": float(np.sqrt(np.mean(errors**2)))}


NUMBERS = Measure("largest difference", _distance, numbers_in, same_from=None)
VALUES = Measure(
    "mean absolute error",
    _value_error,
    lambda answer: _first(answer)["value"],
    same_from=None,
    overall=_value_figures,
)


# Boxes


BOXES = Measure(
    "F1 at IoU 0.5",
    lambda answer, truth: detections.f1(answer.get("predictions") or [], truth),
    lambda answer: [
        {"label": e["label"], **e["box"]} for e in answer.get("predictions") or []
    ],
    same_from=SAME_OVERLAP,
    overall=lambda answers, truths: detections.precision_figures(
        [
            [*(answer.get("predictions") or []), *(answer.get("further") or [])]
            for answer in answers
        ],
        truths,
    ),
)


# Masks


def _mask_of(answer: Answer) -> Array:
    """Return the class numbers [height, width] of an answer's mask."""
    import PIL.Image

    with PIL.Image.open(io.BytesIO(base64.b64decode(answer["mask"]))) as picture:
        return np.array(picture)


def _true_mask(truth: Any) -> Array:
    import PIL.Image

    if isinstance(truth, np.ndarray):
        return truth
    with PIL.Image.open(truth) as picture:
        return np.array(
            picture if picture.mode in ("P", "L", "I;16", "I") else picture.convert("L")
        )


def _intersections(answer: Answer, truth: Any) -> tuple[Array, Array]:
    """Return the pixels in both masks and in either, by class."""
    import PIL.Image

    predicted, actual = _mask_of(answer), _true_mask(truth)
    if predicted.shape != actual.shape:
        size = actual.shape[1], actual.shape[0]
        predicted = np.array(
            PIL.Image.fromarray(predicted).resize(size, PIL.Image.Resampling.NEAREST)
        )
    judged = actual != IGNORED
    classes = (
        int(max(predicted[judged].max(initial=0), actual[judged].max(initial=0))) + 1
    )
    pairs = predicted[judged].astype(np.int64) * classes + actual[judged]
    table = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    shared = np.diagonal(table)
    return shared, table.sum(axis=0) + table.sum(axis=1) - shared


def _mask_iou(answer: Answer, truth: Any) -> float:
    shared, union = _intersections(answer, truth)
    return float(np.mean(shared[union > 0] / union[union > 0])) if union.any() else 1.0


def _mask_figures(answers: Sequence[Answer], truths: Sequence[Any]) -> dict[str, float]:
    counts = np.zeros((2, 65536))
    for answer, truth in zip(answers, truths, strict=True):
        for total, part in zip(counts, _intersections(answer, truth), strict=True):
            total[: len(part)] += part
    shared, union = counts
    return {
        "IoU over all pixels": float(np.mean(shared[union > 0] / union[union > 0]))
        if union.any()
        else 1.0
    }


MASKS = Measure(
    "IoU", _mask_iou, _mask_of, same_from=SAME_OVERLAP, overall=_mask_figures
)


# Texts


def _words(text: Any) -> list[str]:
    return "".join(
        char if char.isalnum() else " " for char in str(text).casefold()
    ).split()


def _text_f1(answer: Answer, truth: Any) -> float:
    """Return the F1 of the words in common (Rajpurkar et al., SQuAD, 2016, section 6.1)."""
    answered, actual = _words(_first(answer).get("answer", "")), _words(truth)
    common = sum((Counter(answered) & Counter(actual)).values())
    return 2 * common / (len(answered) + len(actual)) if answered or actual else 1.0


def _text_figures(answers: Sequence[Answer], truths: Sequence[Any]) -> dict[str, float]:
    pairs = zip(answers, truths, strict=True)
    return {
        "exact": float(
            np.mean(
                [_words(_first(a).get("answer", "")) == _words(t) for a, t in pairs]
            )
        )
    }


TEXTS = Measure(
    "F1",
    _text_f1,
    lambda answer: _first(answer).get("answer", ""),
    same_from=1.0,
    overall=_text_figures,
)
