"""Simulate how often intervals contain the truth, and how often tests are wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pocketserve.tensors import Array
from pocketserve_lab.compare.scores import TEXTS
from pocketserve_lab.compare.significance.power import (
    mcnemar_power,
    provable_loss,
    provable_mean,
)
from pocketserve_lab.compare.significance.verdicts import (
    Hypothesis,
    judge_accuracies,
    judge_agreement,
    judge_means,
)
from pocketserve_lab.compare.statistics import (
    Estimate,
    holm,
    mcnemar_exact,
    mean_score,
    mean_time,
    paired_difference,
    paired_permutation,
    percentiles,
    share_p,
    time_ratio,
    wilson,
)

TRIALS = 1500
LEAST, MOST = 0.93, 0.97
TURNS = (6, 10, 30)
SAMPLES = (10, 100, 1000)

HYPOTHESIS = Hypothesis(None, 1)


def contains(estimate: Estimate, truth: float) -> bool:
    """Return whether an interval contains the true value."""
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("turns", TURNS)
def test_coverage_of_times_and_their_ratios(turns: int) -> None:
    """Turns differ, and runs of a turn differ less; rounds slow both sides."""
    random = np.random.default_rng(turns)
    median_hits = ratio_hits = 0
    for _ in range(TRIALS):
        rounds = random.normal(0, 0.5, (turns, 1))
        levels = rounds + random.normal(0, 0.2, (turns, 1))
        runs = np.exp(levels + random.normal(0, 0.05, (turns, 9)))
        rivals = np.exp(rounds[:, 0] + random.normal(0, 0.2, turns))
        median_hits += contains(percentiles(runs.tolist(), [0.5])[0], 1.0)
        means = np.exp(np.log(runs).mean(axis=1))
        ratio_hits += contains(time_ratio(means.tolist(), rivals.tolist()), 1.0)
    assert LEAST <= median_hits / TRIALS <= MOST
    assert LEAST <= ratio_hits / TRIALS <= MOST


def test_the_fastest_of_four_keeps_its_interval() -> None:
    """It was chosen by the equal times, which would flatter it otherwise."""
    random = np.random.default_rng(4)
    hits = 0
    for _ in range(TRIALS):
        times = np.exp(random.normal(0, 0.2, (4, 10)))
        estimates = [mean_time(each.tolist(), 4) for each in times]
        hits += contains(min(estimates), 1.0)
    assert hits / TRIALS >= 0.95


@pytest.mark.parametrize("number", SAMPLES)
def test_coverage_of_shares(number: int) -> None:
    """Averaged over true shares, which make it jump for few samples."""
    random = np.random.default_rng(number)
    intervals = [wilson(successes, number) for successes in range(number + 1)]
    hits = 0
    for share in random.uniform(0.05, 0.95, TRIALS):
        hits += contains(intervals[random.binomial(number, share)], share)
    assert LEAST <= hits / TRIALS <= MOST


def flips(
    random: np.random.Generator, number: int, share: float, loss: float
) -> tuple[int, int]:
    """Draw gained and lost samples."""
    shares = [
        (share - loss) / 2,
        (share + loss) / 2,
        1 - share,
    ]
    gains, losses, _ = random.multinomial(number, shares)
    return int(gains), int(losses)


@pytest.mark.parametrize("number", SAMPLES)
def test_coverage_of_differences_of_accuracy(number: int) -> None:
    """Averaged over losses; it is wider where hardly a sample flips."""
    random = np.random.default_rng(number)
    hits = 0
    for _ in range(TRIALS):
        share = random.uniform(0.2, 0.8)
        loss = random.uniform(-0.8, 0.8) * share
        gains, losses = flips(random, number, share, loss)
        hits += contains(paired_difference(gains, losses, number), -loss)
    assert LEAST <= hits / TRIALS <= MOST


def draw_normal(random: np.random.Generator, number: int) -> Array:
    return random.normal(0, 1, number)


def draw_errors(random: np.random.Generator, number: int) -> Array:
    """Return absolute errors less their mean."""
    return np.abs(random.normal(0, 1, number)) - np.sqrt(2 / np.pi)


def draw_skewed(random: np.random.Generator, number: int) -> Array:
    return 1 - random.exponential(1, number)


@pytest.mark.parametrize("draw", [draw_normal, draw_errors, draw_skewed])
@pytest.mark.parametrize("number", SAMPLES)
def test_coverage_of_means(
    draw: Callable[[np.random.Generator, int], Array], number: int
) -> None:
    """Skewed values would be missed too often by t."""
    random = np.random.default_rng(number)
    hits = 0
    for _ in range(TRIALS):
        hits += contains(mean_score(draw(random, number).tolist()), 0.0)
    assert LEAST <= hits / TRIALS <= MOST


@pytest.mark.parametrize("number", SAMPLES)
def test_equal_versions_are_seldom_called_worse(number: int) -> None:
    """At most one comparison in twenty has a false loss, of four versions too."""
    random = np.random.default_rng(number)
    classes = agreements = means = 0
    trials = 300
    for _ in range(trials):
        p_values = []
        for _ in range(4):
            gains, losses = flips(random, number, 0.2, 0.0)
            p = mcnemar_exact(gains, losses)
            p_values.append(p if losses > gains else 1.0)
        classes += min(holm(p_values)) < 0.05
        equal = int(random.binomial(number, 0.95))
        agreements += 2 * share_p(equal, number, 0.95)[0] < 0.05
        estimate, p = paired_permutation(draw_skewed(random, number).tolist())
        assert estimate.high is not None
        means += p < 0.05 and estimate.high < 0
    assert max(classes, agreements, means) / trials <= 0.05


@pytest.mark.parametrize("number", SAMPLES)
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_printed_loss_is_found_in_80_of_100_cases(
    number: int, share: float
) -> None:
    """The loss depends on the flips seen in an equal version, which are chance too."""
    random = np.random.default_rng(number)
    detected = 0.0
    trials = 60
    for _ in range(trials):
        flip_count = sum(flips(random, number, share, 0.0))
        loss = provable_loss(number, flip_count, 0.05)
        assert loss is not None
        detected += mcnemar_power(number, max(share, loss), loss, 0.05)
    assert detected / trials == pytest.approx(0.8, abs=0.05)


def test_the_computed_power_is_the_simulated_one() -> None:
    """For few flips, summed exactly, and for many."""
    random = np.random.default_rng(0)
    for number, share, loss in ((150, 0.08, 0.06), (3000, 0.3, 0.03)):
        detected = 0
        for _ in range(TRIALS):
            gains, losses = flips(random, number, share, loss)
            detected += losses > gains and mcnemar_exact(gains, losses) < 0.05
        expected = mcnemar_power(number, share, loss, 0.05)
        assert detected / TRIALS == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("number", SAMPLES)
def test_the_printed_change_of_a_mean_is_found(number: int) -> None:
    """The spread is that of the sample itself."""
    random = np.random.default_rng(number)
    detected = 0
    trials = 1000
    for _ in range(trials):
        differences = draw_normal(random, number).tolist()
        loss = provable_mean(differences, 0.05)
        assert loss is not None
        estimate, p = paired_permutation((draw_normal(random, number) - loss).tolist())
        assert estimate.high is not None
        detected += p < 0.05 and estimate.high < 0
    assert detected / trials == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("difference", [0.0, 0.1])
def test_equal_differences_show_no_loss(difference: float) -> None:
    """Neither the figure nor the sentence says that a loss of 0 would show."""
    differences = [difference] * 6
    assert provable_mean(differences, 0.05) is None
    test = judge_means(TEXTS, differences, 1.0, HYPOTHESIS)
    assert test["provable_loss"] is None
    assert test["text"].endswith("6 samples with equal differences cannot show a loss")


def test_judgements_use_these_figures() -> None:
    """The texts have the interval and the loss that the tests above simulate."""
    text = judge_accuracies([-1.0] * 2 + [0.0] * 98, HYPOTHESIS)["text"]
    assert text == (
        "0 gained, 2 lost: -2.0% (-7.0% to +1.8%); "
        "100 samples would show a loss of 7.8% in 80 of 100 cases"
    )
    assert "28 of 30" in judge_agreement([1.0] * 28 + [0.0] * 2, HYPOTHESIS)["text"]
