"""The quality of answers, by the model's task.

Each answer is scored against the truth, or against the reference version's answer.
A score lies between 0 and 1, and more is better; a regression's is minus the absolute
error.
"""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare import detections
from pocketserve_lab.compare.samples import Classes, read_classes
from pocketserve_lab.compare.speech import transcripts

Answer = Mapping[str, Any]
SAME_VALUE = 0.01
"""Numbers within this share of the reference's largest number count as the same."""

SAME_OVERLAP = 0.9
"""Boxes and masks count as the same from this F1 or IoU on."""

NO_RESULTS = ("index", "shape", "further", transcripts.RUN_SECONDS)
"""Keys of an answer whose numbers are not compared."""

IGNORED = 255
"""The class number of mask pixels that are not judged."""


class Measure(NamedTuple):
    """A way to judge the answers of one task.

    Attributes:
        name: of the mean score.
        score: of an answer against the truth, or against the value of :attr:`truth_of`.
        truth_of: turns the reference's answer into a truth.
        same_from: the least score at which two answers count as the same; None compares
            numbers by their size.
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
    """Return the measure of a task.

    Without a special one, numbers are compared.
    """
    if task.endswith("-classification"):
        return CLASSES
    return {
        "tabular-regression": VALUES,
        "object-detection": BOXES,
        "image-segmentation": MASKS,
        "question-answering": TEXTS,
        transcripts.TASK: TRANSCRIPTS,
    }.get(task, NUMBERS)


# Classes


def _first(answer: Answer) -> Mapping[str, Any]:
    entries = answer.get("predictions") or [{}]
    first: Mapping[str, Any] = entries[0]
    return first


def classes_of(truths: Sequence[Any], answers: Iterable[Answer]) -> list[Classes]:
    """Return the classes that truths name, among those in the answers.

    The set is empty for a truth that names no class.
    """
    classes: dict[tuple[Any, str], None] = {}
    for answer in answers:
        for entry in answer.get("predictions") or []:
            classes[_class_of(entry), str(entry.get("label", ""))] = None
    return read_classes(truths, classes)


def _class_of(entry: Mapping[str, Any]) -> Any:
    """Return an entry's index, or its label without one."""
    return entry.get("index", entry.get("label"))


def _class_figures(
    answers: Sequence[Answer], truths: Sequence[Classes]
) -> dict[str, float]:
    entries = [answer.get("predictions") or [] for answer in answers]
    figures = {}
    if any(len(each) > 5 for each in entries):
        figures["top-5"] = _top5(entries, truths)
    figures["F1"] = _macro_f1(answers, truths)
    return figures


def _top5(
    entries: Sequence[Sequence[Mapping[str, Any]]], truths: Sequence[Classes]
) -> float:
    """Return the share of truths among the first five entries."""
    hits = 0
    for each, truth in zip(entries, truths, strict=True):
        hits += any(_class_of(entry) in truth for entry in each[:5])
    return hits / len(truths)


def _macro_f1(answers: Sequence[Answer], truths: Sequence[Classes]) -> float:
    """Return the mean F1 over true and predicted classes."""
    classes = _classes_by_index(truths)
    hits: Counter[Classes] = Counter()
    number: Counter[Classes] = Counter(truths)
    for answer, truth in zip(answers, truths, strict=True):
        index = _class_of(_first(answer))
        predicted = classes.get(index, frozenset([index]))
        number[predicted] += 1
        if predicted == truth:
            hits[truth] += 1
    return float(np.mean([2 * hits[each] / number[each] for each in number]))


def _classes_by_index(truths: Sequence[Classes]) -> dict[Any, Classes]:
    classes = {}
    for truth in truths:
        for index in truth:
            classes[index] = truth
    return classes


def _is_hit(answer: Answer, truth: Classes) -> float:
    return float(_class_of(_first(answer)) in truth)


def _first_class(answer: Answer) -> Classes:
    return frozenset([_class_of(_first(answer))])


CLASSES = Measure(
    "top-1",
    _is_hit,
    _first_class,
    same_from=1.0,
    binary=True,
    overall=_class_figures,
)


# Numbers


def numbers_in(answer: Any) -> Array:
    """Return all numbers of an answer, in order."""
    numbers: list[float] = []

    def collect(value: Any) -> None:
        if isinstance(value, bool | str) or value is None:
            return
        if isinstance(value, Mapping):
            for key in value:
                if key not in NO_RESULTS:
                    collect(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item)
        else:
            numbers.append(float(value))

    collect(answer)
    return np.asarray(numbers, np.float64)


def largest_difference(answer: Answer, reference: Answer) -> float:
    """Return the largest difference of two answers' numbers."""
    entries, expected = answer.get("predictions"), reference.get("predictions")
    if not entries or not expected or not _has_classes(entries[0]):
        return -_distance(answer, numbers_in(reference))
    scores = {entry["index"]: entry["score"] for entry in entries}
    largest = 0.0
    for entry in expected:
        score = scores.get(entry["index"], 0.0)
        largest = max(largest, abs(float(entry["score"]) - float(score)))
    return largest


def _has_classes(entry: Mapping[str, Any]) -> bool:
    return "index" in entry and "score" in entry and "box" not in entry


def _distance(answer: Answer, truth: Array) -> float:
    numbers = numbers_in(answer)
    if len(numbers) != len(truth):
        return -np.inf
    return -float(np.max(np.abs(numbers - truth), initial=0.0))


def _value_error(answer: Answer, truth: Any) -> float:
    return -abs(float(_value(answer)) - float(truth))


def _value_figures(
    answers: Sequence[Answer], truths: Sequence[Any]
) -> dict[str, float]:
    errors = np.array(list(map(_value_error, answers, truths)))
    return {"root mean square error": float(np.sqrt(np.mean(errors**2)))}


def _value(answer: Answer) -> Any:
    return _first(answer)["value"]


NUMBERS = Measure("largest difference", _distance, numbers_in, same_from=None)
VALUES = Measure(
    "mean absolute error",
    _value_error,
    _value,
    same_from=None,
    overall=_value_figures,
)


# Boxes


def _box_f1(answer: Answer, truth: Any) -> float:
    return detections.f1(answer.get("predictions") or [], truth)


def _boxes_of(answer: Answer) -> list[dict[str, Any]]:
    """Return an answer's detections as true boxes."""
    boxes = []
    for entry in answer.get("predictions") or []:
        boxes.append({"label": entry["label"], **entry["box"]})
    return boxes


def _box_figures(answers: Sequence[Answer], truths: Sequence[Any]) -> dict[str, float]:
    entries = []
    for answer in answers:
        predictions = answer.get("predictions") or []
        further = answer.get("further") or []
        entries.append([*predictions, *further])
    return detections.precision_figures(entries, truths)


BOXES = Measure(
    "F1 at IoU 0.5",
    _box_f1,
    _boxes_of,
    same_from=SAME_OVERLAP,
    overall=_box_figures,
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
        if picture.mode in ("P", "L", "I;16", "I"):
            return np.array(picture)
        return np.array(picture.convert("L"))


def _intersections(answer: Answer, truth: Any) -> tuple[Array, Array]:
    """Count the pixels in both and in either mask, by class."""
    actual = _true_mask(truth)
    predicted = _resized(_mask_of(answer), actual.shape)
    judged = actual != IGNORED
    table = _confusion(predicted[judged], actual[judged])
    shared = np.diagonal(table)
    return shared, table.sum(axis=0) + table.sum(axis=1) - shared


def _confusion(predicted: Array, actual: Array) -> Array:
    """Count the pixels [predicted class, true class]."""
    largest = max(predicted.max(initial=0), actual.max(initial=0))
    classes = int(largest) + 1
    pairs = predicted.astype(np.int64) * classes + actual
    counts = np.bincount(pairs, minlength=classes * classes)
    return counts.reshape(classes, classes)


def _resized(mask: Array, shape: tuple[int, ...]) -> Array:
    """Scale a mask to [height, width] without mixing its class numbers."""
    import PIL.Image

    if mask.shape == shape:
        return mask
    picture = PIL.Image.fromarray(mask)
    size = shape[1], shape[0]
    return np.array(picture.resize(size, PIL.Image.Resampling.NEAREST))


def _mask_iou(answer: Answer, truth: Any) -> float:
    return _mean_iou(*_intersections(answer, truth))


def _mean_iou(shared: Array, union: Array) -> float:
    """Return the mean IoU over the classes present."""
    present = union > 0
    if not present.any():
        return 1.0
    return float(np.mean(shared[present] / union[present]))


def _mask_figures(answers: Sequence[Answer], truths: Sequence[Any]) -> dict[str, float]:
    shared, union = np.zeros(65536), np.zeros(65536)
    for answer, truth in zip(answers, truths, strict=True):
        shared_here, union_here = _intersections(answer, truth)
        shared[: len(shared_here)] += shared_here
        union[: len(union_here)] += union_here
    return {"IoU over all pixels": _mean_iou(shared, union)}


MASKS = Measure(
    "IoU", _mask_iou, _mask_of, same_from=SAME_OVERLAP, overall=_mask_figures
)


# Texts


def _words(text: Any) -> list[str]:
    folded = str(text).casefold()
    return re.sub(r"[\W_]+", " ", folded).split()


def _text_f1(answer: Answer, truth: Any) -> float:
    """Return the F1 of the common words (Rajpurkar et al., SQuAD, 2016, 6.1)."""
    answered, actual = _words(_answer_text(answer)), _words(truth)
    if not answered and not actual:
        return 1.0
    common = sum((Counter(answered) & Counter(actual)).values())
    return 2 * common / (len(answered) + len(actual))


def _text_figures(answers: Sequence[Answer], truths: Sequence[Any]) -> dict[str, float]:
    hits = 0
    for answer, truth in zip(answers, truths, strict=True):
        hits += _words(_answer_text(answer)) == _words(truth)
    return {"exact": hits / len(answers)}


def _answer_text(answer: Answer) -> Any:
    return _first(answer).get("answer", "")


TEXTS = Measure("F1", _text_f1, _answer_text, same_from=1.0, overall=_text_figures)

TRANSCRIPTS = Measure(
    "word accuracy",
    transcripts.word_accuracy,
    transcripts.text_of_answer,
    same_from=1.0,
    overall=transcripts.speech_figures,
)
