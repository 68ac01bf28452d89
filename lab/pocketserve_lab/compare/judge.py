"""Judge each version's answers by agreement, accuracy and significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.compare.samples import Classes
from pocketserve_lab.compare.scores import (
    SAME_VALUE,
    Answer,
    Measure,
    classes_of,
    largest_difference,
    measure_for,
    numbers_in,
)
from pocketserve_lab.compare.significance.verdicts import (
    Hypothesis,
    adjust_tests,
    judge_accuracies,
    judge_agreement,
    judge_means,
)
from pocketserve_lab.compare.statistics import Estimate, mean_score, wilson


class Labelled(NamedTuple):
    """The samples with a known truth."""

    indices: list[int]
    truths: list[Any]


def judge(
    task: str,
    answers: Mapping[str, Sequence[Answer]],
    reference: str,
    truths: Sequence[Any],
    margin: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Return for each version its ``agreement``, ``accuracy`` and ``test``.

    The tests of several versions are adjusted by Holm's method.

    Args:
        answers: of each version to the same samples; ``{"error"}`` for a failure.
        truths: of the samples; None if unknown. Accuracy counts samples that have one.
        margin: the loss to exclude: a share of the scale 0 to 1, of the answers
            without labels, or of a regression's error. None tests for a loss only.

    Raises:
        CommandError: a classifier's truths are none of its classes.
    """
    measure = measure_for(task)
    answered = []
    for index, answer in enumerate(answers[reference]):
        if "error" not in answer:
            answered.append(index)
    labelled = _labelled(truths, answered)
    if measure.binary and labelled.truths:
        classes = _resolve(labelled.truths, answers)
        labelled = labelled._replace(truths=list(classes))
    hypothesis = Hypothesis(margin, max(1, len(answers) - 1))
    judgements: dict[str, dict[str, Any]] = {}
    for version, each in answers.items():
        judgements[version] = _judge_version(
            measure, each, answers[reference], answered, labelled, hypothesis
        )
    _adjust_judgements(judgements, reference)
    return judgements


def _adjust_judgements(judgements: Mapping[str, Any], reference: str) -> None:
    """Adjust the tests of all versions but the reference and those that failed."""
    tests = []
    for version, judgement in judgements.items():
        if version != reference and "p" in judgement["test"]:
            tests.append(judgement["test"])
    adjust_tests(tests)


def _labelled(truths: Sequence[Any], answered: Sequence[int]) -> Labelled:
    """Return the answered samples that have a truth."""
    indices = [index for index in answered if truths[index] is not None]
    return Labelled(indices, _pick(truths, indices))


def _pick(values: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    return [values[index] for index in indices]


def _resolve(
    truths: Sequence[Any], answers: Mapping[str, Sequence[Answer]]
) -> list[Classes]:
    """Return the classes that a classifier's truths name.

    Raises:
        CommandError: none of them is a class that a version answers with.
    """
    every = chain.from_iterable(answers.values())
    classes = classes_of(truths, every)
    if not any(classes):
        raise CommandError(
            f"no version knows any of the labels of the data, such as {truths[0]!r}"
        )
    return classes


def _judge_version(
    measure: Measure,
    answers: Sequence[Answer],
    expected: Sequence[Answer],
    answered: Sequence[int],
    labelled: Labelled,
    hypothesis: Hypothesis,
) -> dict[str, Any]:
    own = _pick(answers, answered)
    reference = _pick(expected, answered)
    failures = [answer["error"] for answer in own if "error" in answer]
    if failures or not answered:
        return _failed(failures, len(answered))
    alike = sameness(measure, own, reference)
    judgement = {
        "agreement": _agreement(own, reference, alike),
        "accuracy": None,
        "test": judge_agreement(alike, hypothesis),
    }
    if labelled.indices:
        judgement |= _judge_labelled(measure, answers, expected, labelled, hypothesis)
    return judgement


def _judge_labelled(
    measure: Measure,
    answers: Sequence[Answer],
    expected: Sequence[Answer],
    labelled: Labelled,
    hypothesis: Hypothesis,
) -> dict[str, Any]:
    """Return the accuracy, and the test against the reference's."""
    own = _pick(answers, labelled.indices)
    scores = _scores(measure, own, labelled.truths)
    reference = _pick(expected, labelled.indices)
    base = _scores(measure, reference, labelled.truths)
    scale = 1.0
    if measure.same_from is None:
        scale = _scale(labelled.truths, base)
    differences = [score - other for score, other in zip(scores, base, strict=True)]
    if measure.binary:
        test = judge_accuracies(differences, hypothesis)
    else:
        test = judge_means(measure, differences, scale, hypothesis)
    return {
        "accuracy": _accuracy(measure, scores, own, labelled.truths),
        "test": test,
    }


def _failed(failures: Sequence[str], number: int) -> dict[str, Any]:
    """Return the judgement of a version that some samples make fail."""
    reason = "the reference version answers none of the samples"
    if failures:
        reason = failures[0]
    text = f"it fails on {len(failures)} of {number} samples: {reason}"
    test = {"worse": bool(failures), "text": text}
    return {"agreement": None, "accuracy": None, "test": test}


def _agreement(
    answers: Sequence[Answer], expected: Sequence[Answer], alike: Sequence[float]
) -> dict[str, Any]:
    """Return the share of equal answers and the largest difference."""
    largest = max(map(largest_difference, answers, expected))
    return {
        "samples": len(alike),
        "share": wilson(int(sum(alike)), len(alike))._asdict(),
        "largest_difference": _finite(largest),
        "same": list(map(bool, alike)),
    }


def _scores(
    measure: Measure, answers: Sequence[Answer], truths: Sequence[Any]
) -> list[float]:
    return list(map(measure.score, answers, truths))


def sameness(
    measure: Measure, answers: Sequence[Answer], expected: Sequence[Answer]
) -> list[float]:
    """Return 1 for each answer that equals the reference's, else 0."""
    truths = list(map(measure.truth_of, expected))
    scores = _scores(measure, answers, truths)
    least = measure.same_from
    if least is None:
        largest = 0.0
        for answer in expected:
            numbers = np.abs(numbers_in(answer))
            largest = max(largest, float(np.max(numbers, initial=0.0)))
        least = -SAME_VALUE * largest
    return [float(score >= least) for score in scores]


def _accuracy(
    measure: Measure,
    scores: Sequence[float],
    answers: Sequence[Answer],
    truths: Sequence[Any],
) -> dict[str, Any]:
    """Return the mean score, its interval and further figures."""
    # Errors are scores below 0, and shown above 0.
    sign = -1.0 if measure.same_from is None else 1.0
    if measure.binary:
        estimate = wilson(int(sum(scores)), len(scores))
    else:
        estimate = _within_scale(mean_score([sign * score for score in scores]), sign)
    return {
        "metric": measure.name,
        "more_is_better": sign > 0,
        "samples": len(scores),
        **estimate._asdict(),
        "figures": measure.overall(answers, truths),
        "scores": [sign * score for score in scores],
    }


def _within_scale(estimate: Estimate, sign: float) -> Estimate:
    """Cut an interval at the ends of the scale: errors are above 0, scores 0 to 1."""
    if estimate.low is None or estimate.high is None:
        return estimate
    high = estimate.high
    if sign > 0:
        high = min(1.0, high)
    return Estimate(estimate.value, max(0.0, estimate.low), high)


def _scale(truths: Sequence[Any], errors: Sequence[float]) -> float:
    """Return the size that a regression's loss is relative to.

    It is above 0 even if the reference has no error.
    """
    values = np.array(list(map(float, truths)))
    error = float(np.mean(np.abs(errors)))
    spread = float(np.std(values) or np.mean(np.abs(values)))
    return max(error, spread)


def _finite(number: float) -> float | None:
    if not np.isfinite(number):
        return None
    return number
