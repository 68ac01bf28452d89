"""Judge every version's answers: agreement with the reference, accuracy, and whether it is measurably worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.compare.scores import (
    SAME_VALUE,
    Answer,
    Measure,
    classes_of,
    largest_difference,
    measure_for,
    numbers_in,
)
from pocketserve_lab.compare.statistics import (
    Estimate,
    bootstrap,
    least_provable_loss,
    mcnemar_exact,
    paired_permutation,
    wilson,
)

ALPHA = 0.05
LEAST_LOSS = 0.001
"""A smaller change is none, however certain it is: a share of the scale 0 to 1; of a regression, of the reference's
mean error or of the truths' deviation, whichever is larger."""


def judge(
    task: str,
    answers: Mapping[str, Sequence[Answer]],
    reference: str,
    truths: Sequence[Any],
) -> dict[str, dict[str, Any]]:
    """Return for each version its ``agreement``, ``accuracy`` and ``test``.

    Args:
        answers: of each version to the same samples; ``{"error"}`` where there is none.
        truths: of the samples; None where nobody knows one. Accuracy counts samples that have one.

    Raises:
        CommandError: a classifier's truths are none of its classes.
    """
    measure = measure_for(task)
    answered = [
        index
        for index, answer in enumerate(answers[reference])
        if "error" not in answer
    ]
    labelled = [index for index in answered if truths[index] is not None]
    if measure.binary and labelled:
        truths = _resolve(truths, labelled, answers)
    return {
        version: _judge_version(
            measure, each, answers[reference], truths, answered, labelled
        )
        for version, each in answers.items()
    }


def _resolve(
    truths: Sequence[Any],
    labelled: Sequence[int],
    answers: Mapping[str, Sequence[Answer]],
) -> list[Any]:
    """Return the truths of a classifier's samples as its classes.

    Raises:
        CommandError: not one of them is a class that a version answers with.
    """
    every = (answer for each in answers.values() for answer in each)
    classes = classes_of([truths[index] for index in labelled], every)
    if not any(classes):
        raise CommandError(
            f"no version knows any of the labels of the data, such as {truths[labelled[0]]!r}"
        )
    by_place = dict(zip(labelled, classes, strict=True))
    return [by_place.get(place) for place in range(len(truths))]


def _judge_version(
    measure: Measure,
    answers: Sequence[Answer],
    expected: Sequence[Answer],
    truths: Sequence[Any],
    answered: Sequence[int],
    labelled: Sequence[int],
) -> dict[str, Any]:
    failures = [
        answers[index]["error"] for index in answered if "error" in answers[index]
    ]
    if failures or not answered:
        reason = (
            failures[0]
            if failures
            else "the reference version answers none of the samples"
        )
        text = f"it fails on {len(failures)} of {len(answered)} samples: {reason}"
        return {
            "agreement": None,
            "accuracy": None,
            "test": {"worse": bool(failures), "text": text},
        }
    alike = sameness(
        measure, [answers[i] for i in answered], [expected[i] for i in answered]
    )
    distances = [
        largest_difference(answers[index], expected[index]) for index in answered
    ]
    agreement = {
        "samples": len(answered),
        "share": wilson(int(sum(alike)), len(alike))._asdict(),
        "largest_difference": _finite(max(distances)),
        "same": [bool(value) for value in alike],
    }
    if not labelled:
        differing = len(alike) - int(sum(alike))
        test = _test(
            "McNemar, exact",
            mcnemar_exact(0, differing),
            -differing,
            f"{differing} of {len(alike)} answers differ",
        )
        return {"agreement": agreement, "accuracy": None, "test": test}
    scores = [measure.score(answers[index], truths[index]) for index in labelled]
    base = [measure.score(expected[index], truths[index]) for index in labelled]
    scale = (
        _scale([truths[index] for index in labelled], base)
        if measure.same_from is None
        else 1.0
    )
    return {
        "agreement": agreement,
        "accuracy": _accuracy(
            measure,
            scores,
            [answers[i] for i in labelled],
            [truths[i] for i in labelled],
        ),
        "test": _paired_test(measure, scores, base, scale),
    }


def sameness(
    measure: Measure, answers: Sequence[Answer], expected: Sequence[Answer]
) -> list[float]:
    """Return 1 for each answer that counts as the same as the reference's, else 0."""
    truths = [measure.truth_of(answer) for answer in expected]
    scores = [
        measure.score(answer, truth)
        for answer, truth in zip(answers, truths, strict=True)
    ]
    if measure.same_from is not None:
        return [float(score >= measure.same_from) for score in scores]
    largest = max(
        (float(np.max(np.abs(numbers_in(answer)), initial=0.0)) for answer in expected),
        default=0.0,
    )
    return [float(-score <= SAME_VALUE * largest) for score in scores]


def _accuracy(
    measure: Measure,
    scores: Sequence[float],
    answers: Sequence[Answer],
    truths: Sequence[Any],
) -> dict[str, Any]:
    """Return the mean score with its interval, further figures, and the samples' scores."""
    sign = (
        -1.0 if measure.same_from is None else 1.0
    )  # errors are shown as people know them
    estimate = (
        wilson(int(sum(scores)), len(scores))
        if measure.binary
        else bootstrap(np.array(scores) * sign, np.mean)
    )
    return {
        "metric": measure.name,
        "more_is_better": sign > 0,
        "samples": len(scores),
        **estimate._asdict(),
        "figures": measure.overall(answers, truths),
        "scores": [sign * score for score in scores],
    }


def _scale(truths: Sequence[Any], errors: Sequence[float]) -> float:
    """Return the size that a regression's loss is held against; it is not 0 where the reference has no error."""
    values = np.array([float(truth) for truth in truths])
    return max(
        float(np.mean(np.abs(errors))), float(np.std(values) or np.mean(np.abs(values)))
    )


def _paired_test(
    measure: Measure, scores: Sequence[float], base: Sequence[float], scale: float
) -> dict[str, Any]:
    differences = [score - other for score, other in zip(scores, base, strict=True)]
    if measure.binary:
        gains, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
        return _test(
            "McNemar, exact",
            mcnemar_exact(gains, losses),
            gains - losses,
            f"{gains} gained, {losses} lost",
        )
    estimate, p = paired_permutation(differences)
    text = f"{measure.name} {_change(estimate, measure)}"
    if len(differences) < least_provable_loss(ALPHA):
        text += f"; a loss shows from {least_provable_loss(ALPHA)} samples on"
    is_small = abs(estimate.value) <= LEAST_LOSS * scale
    if p < ALPHA and is_small:
        text += f"; a change below {LEAST_LOSS:.1%} counts as none"
    return _test("paired permutation", p, 0.0 if is_small else estimate.value, text)


def _change(estimate: Estimate, measure: Measure) -> str:
    """Return how a mean score has changed, as the score is shown: an error that grew has a plus."""
    if measure.same_from is None:
        value, low, high = -estimate.value, estimate.high, estimate.low
        ends = None if low is None or high is None else (-low, -high)
    else:
        value, low, high = estimate
        ends = None if low is None or high is None else (low, high)
    return f"{value:+.3g}" + (f" ({ends[0]:+.3g} to {ends[1]:+.3g})" if ends else "")


def _test(name: str, p: float, difference: float, text: str) -> dict[str, Any]:
    surely = p < ALPHA
    return {
        "name": name,
        "p": p,
        "worse": surely and difference < 0,
        "better": surely and difference > 0,
        "text": text,
    }


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None
