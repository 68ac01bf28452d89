"""The tests that call a version worse or better than the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pocketserve.messages import plural
from pocketserve_lab.compare.scores import Measure
from pocketserve_lab.compare.significance.power import (
    provable_disagreement,
    provable_loss,
    provable_mean,
)
from pocketserve_lab.compare.statistics import (
    ALPHA,
    Estimate,
    classes_margin_p,
    holm,
    mcnemar_exact,
    mean_margin_p,
    paired_difference,
    paired_permutation,
    share_p,
    wilson,
)

AGREEMENT_BOUND = 0.95
"""Without labels, fewer answers equal to the reference's are worse."""

LEAST_LOSS = 0.001
"""A smaller change counts as none, however certain it is.

A share of the scale 0 to 1; for a regression, of the reference's mean error or of the
truths' deviation, whichever is larger."""

LEAST_SAMPLES = 6
"""Of fewer, not even a loss in each is significant."""


@dataclass(frozen=True)
class Hypothesis:
    """The question that a test answers.

    Attributes:
        margin: the loss to exclude; None for a test for a loss.
        versions: those tested against the reference.
    """

    margin: float | None
    versions: int

    @property
    def alpha(self) -> float:
        """Return the significance that one version needs at worst."""
        return ALPHA / self.versions


def adjust_tests(tests: Sequence[dict[str, Any]]) -> None:
    """Decide tests by p values adjusted for their number."""
    adjusted = holm([test["p"] for test in tests])
    for test, p in zip(tests, adjusted, strict=True):
        test["adjusted_p"] = p
        if p >= ALPHA:
            test["worse"] = test["better"] = False
    _adjust_margins([test["margin"] for test in tests if test["margin"] is not None])


def _adjust_margins(margins: Sequence[dict[str, Any]]) -> None:
    """Decide which versions are shown to lose less than the margin."""
    adjusted = holm([margin["p"] for margin in margins])
    for margin, p in zip(margins, adjusted, strict=True):
        margin["adjusted_p"] = p
        margin["is_within"] = p < ALPHA / 2


def judge_agreement(alike: Sequence[float], hypothesis: Hypothesis) -> dict[str, Any]:
    """Test whether fewer answers equal the reference's than the bound.

    The reference is the truth here, so each difference is certain: the share counts.
    """
    number = len(alike)
    equal = int(sum(alike))
    bound = AGREEMENT_BOUND
    if hypothesis.margin is not None:
        bound = 1 - hypothesis.margin
    below, above = share_p(equal, number, bound)
    provable = provable_disagreement(number, bound, hypothesis.alpha)
    text = (
        f"{equal} of {number} answers are the same: "
        f"{_shares(wilson(equal, number), '.1%')} against a bound of {bound:.1%}; "
        f"{plural(number, 'sample')} {_showable(provable, 'disagreement')}"
    )
    p = min(1.0, 2 * below)
    test = _test("binomial, exact", p, equal - bound * number, text)
    test["better"] = False
    _add_proof(test, None, provable, hypothesis.margin, above)
    return test


def _add_proof(
    test: dict[str, Any],
    difference: Estimate | None,
    provable: float | None,
    margin: float | None,
    margin_p: float,
) -> None:
    """Add the interval, the loss that the data could show, and the margin's test."""
    test["difference"] = None if difference is None else difference._asdict()
    test["provable_loss"] = provable
    if margin is not None:
        test["margin"] = {"margin": margin, "p": margin_p}


def _showable(loss: float | None, kind: str) -> str:
    """Return which loss would have been found with a power of 80 %."""
    if loss is None:
        return f"cannot show a {kind}"
    return f"would show a {kind} of {_percent(loss)} in 80 of 100 cases"


def _percent(share: float) -> str:
    """Format a share with two significant digits."""
    return f"{float(f'{100 * share:.2g}'):g}%"


def judge_accuracies(
    differences: Sequence[float], hypothesis: Hypothesis
) -> dict[str, Any]:
    """Test whether a classifier lost more samples than it gained."""
    number = len(differences)
    gains = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    p = mcnemar_exact(gains, losses)
    difference = paired_difference(gains, losses, number)
    provable = provable_loss(number, gains + losses, hypothesis.alpha)
    text = (
        f"{gains} gained, {losses} lost: {_shares(difference, '+.1%')}; "
        f"{plural(number, 'sample')} {_showable(provable, 'loss')}"
    )
    test = _test("McNemar, exact", p, gains - losses, text)
    margin_p = classes_margin_p(gains, losses, number, hypothesis.margin or 0.0)
    _add_proof(test, difference, provable, hypothesis.margin, margin_p)
    return test


def _shares(estimate: Estimate, form: str) -> str:
    """Format a share with its interval, in per cent."""
    low, high = estimate.low, estimate.high
    assert low is not None
    assert high is not None
    return f"{estimate.value:{form}} ({low:{form}} to {high:{form}})"


def judge_means(
    measure: Measure,
    differences: Sequence[float],
    scale: float,
    hypothesis: Hypothesis,
) -> dict[str, Any]:
    """Test whether a mean score has changed, by signs and by its interval.

    Args:
        scale: the size that a loss is relative to.
    """
    estimate, p = paired_permutation(differences)
    provable = provable_mean(differences, hypothesis.alpha, scale)
    text = f"{measure.name} {_change(estimate, measure)}"
    is_negligible = abs(estimate.value) <= LEAST_LOSS * scale
    if is_negligible and p < ALPHA:
        text += f"; a change below {LEAST_LOSS:.1%} counts as none"
    text += f"; {_provable_mean(len(differences), provable)}"
    change = 0.0 if is_negligible else estimate.value
    test = _test("paired permutation", p, change, text)
    if estimate.high is not None and estimate.high >= 0:
        test["worse"] = False
    margin = (hypothesis.margin or 0.0) * scale
    is_share = measure.same_from is not None
    margin_p = mean_margin_p(differences, margin, is_share=is_share)
    _add_proof(test, estimate, provable, hypothesis.margin, margin_p)
    return test


def _provable_mean(number: int, loss: float | None) -> str:
    samples = plural(number, "sample")
    if number < LEAST_SAMPLES:
        return f"{samples} cannot show a loss, which takes {LEAST_SAMPLES}"
    if loss is None:
        return f"{samples} with equal differences cannot show a loss"
    return f"{samples} would show a loss of {loss:.2g} in 80 of 100 cases"


def _change(estimate: Estimate, measure: Measure) -> str:
    """Return how a mean score has changed.

    An error that grew has a plus.
    """
    value, low, high = estimate
    if measure.same_from is None:
        value = -value
        if low is not None and high is not None:
            low, high = -high, -low
    text = f"{value:+.3g}"
    if low is not None and high is not None:
        text += f" ({low:+.3g} to {high:+.3g})"
    return text


def _test(name: str, p: float, difference: float, text: str) -> dict[str, Any]:
    is_significant = p < ALPHA
    return {
        "name": name,
        "p": p,
        "worse": is_significant and difference < 0,
        "better": is_significant and difference > 0,
        "text": text,
        "margin": None,
    }
