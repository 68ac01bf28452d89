"""Compare intervals and tests with SciPy and known values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

from pocketserve_lab.compare.significance.distributions import (
    binomial,
    t_cdf,
    t_quantile,
)
from pocketserve_lab.compare.significance.power import provable_loss
from pocketserve_lab.compare.statistics import (
    holm,
    mcnemar_exact,
    mean_margin_p,
    mean_score,
    paired_difference,
    paired_permutation,
    percentiles,
    share_p,
    time_ratio,
    wilson,
)

times = st.floats(1e-3, 1e5)


@pytest.mark.parametrize(
    ("gains", "losses"),
    [
        (0, 0),
        (0, 1),
        (0, 6),
        (3, 3),
        (2, 9),
        (40, 71),
        (500, 600),
    ],
)
def test_mcnemar_is_the_binomial_test_of_the_discordant_pairs(
    gains: int, losses: int
) -> None:
    """SciPy has the same test under its other name."""
    number = gains + losses
    expected = stats.binomtest(gains, number, 0.5).pvalue if number else 1.0
    assert mcnemar_exact(gains, losses) == pytest.approx(expected)
    assert mcnemar_exact(gains, losses) == mcnemar_exact(losses, gains)


def test_six_losses_are_the_fewest_that_show() -> None:
    """Five of five may be chance (p = 1/16), six of six not (p = 1/32)."""
    assert provable_loss(5, 0, 0.05) is None
    assert provable_loss(6, 0, 0.05) == pytest.approx(0.8 ** (1 / 6), abs=1e-4)
    assert mcnemar_exact(0, 5) == pytest.approx(1 / 16)
    assert mcnemar_exact(0, 6) == pytest.approx(1 / 32)


@pytest.mark.parametrize(
    ("successes", "number"),
    [
        (0, 10),
        (10, 10),
        (7, 10),
        (449, 450),
    ],
)
def test_wilson_agrees_with_scipy(successes: int, number: int) -> None:
    """The interval is within 0 and 1 and contains the share."""
    interval = stats.binomtest(successes, number).proportion_ci(method="wilson")
    value, low, high = wilson(successes, number)
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    assert 0 <= low <= value <= high <= 1


@pytest.mark.parametrize("freedom", [1, 2, 5, 9, 60, 61, 5000])
@pytest.mark.parametrize("share", [0.01, 0.6, 0.8, 0.975, 0.9999])
def test_t_agrees_with_scipy(freedom: int, share: float) -> None:
    """On both sides of the change from the sum to the expansion."""
    expected = float(stats.t.ppf(share, freedom))
    assert t_quantile(share, freedom) == pytest.approx(expected, rel=1e-5)
    assert t_cdf(expected, freedom) == pytest.approx(share, abs=1e-6)


def test_binomial_agrees_with_scipy() -> None:
    expected = stats.binom.pmf(np.arange(201), 200, 0.3)
    assert binomial(200, 0.3) == pytest.approx(expected, abs=1e-12)
    below, above = share_p(28, 30, 0.95)
    assert below == pytest.approx(stats.binom.cdf(28, 30, 0.95))
    assert above == pytest.approx(stats.binom.sf(27, 30, 0.95))
    assert binomial(3, 1.0).tolist() == [0, 0, 0, 1]


def test_the_interval_of_a_mean_agrees_with_the_normal_one() -> None:
    """For 400 numbers; equal numbers have none."""
    values = np.random.default_rng(1).normal(3, 2, 400)
    value, low, high = mean_score(values)
    half = 1.96 * values.std(ddof=1) / 20
    assert value == values.mean()
    assert (low, high) == pytest.approx((value - half, value + half), abs=0.05)
    assert mean_score([0.5] * 400) == (0.5, None, None)


def constrained_score(gains: int, losses: int, number: int, difference: float) -> float:
    """Return the score of a difference by maximising the likelihood numerically."""

    def unlikelihood(lost_share: float) -> float:
        gained = lost_share + difference
        equal = 1 - lost_share - gained
        return -float(
            special.xlogy(gains, gained)
            + special.xlogy(losses, lost_share)
            + special.xlogy(number - gains - losses, equal)
        )

    bounds = (max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12)
    options = {"xatol": 1e-12}
    best = optimize.minimize_scalar(
        unlikelihood, bounds=bounds, method="bounded", options=options
    )
    variance = number * (2 * best.x + difference * (1 - difference))
    return float((gains - losses - number * difference) / np.sqrt(variance))


@pytest.mark.parametrize(
    ("gains", "losses", "number"),
    [
        (9, 1, 32),
        (1, 9, 32),
        (5, 5, 100),
        (2, 40, 1000),
    ],
)
def test_the_paired_difference_inverts_the_score_test(
    gains: int, losses: int, number: int
) -> None:
    """At its ends, the score is the normal quantile."""
    value, low, high = paired_difference(gains, losses, number)
    assert low is not None
    assert high is not None
    assert low < value < high
    scores = [constrained_score(gains, losses, number, end) for end in (low, high)]
    assert scores == pytest.approx([1.96, -1.96], abs=2e-3)


def test_holm_adjusts_in_steps() -> None:
    """The smallest p counts for all, the next for the rest, and none falls below it."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_paired_permutation_tells_a_loss_from_chance() -> None:
    """A small loss is found in common noise, and none without a loss."""
    random = np.random.default_rng(2)
    noise = random.normal(0, 1, 200)
    estimate, p = paired_permutation(noise - noise.mean() - 0.5)
    assert p < 0.01
    assert estimate.high < 0
    assert estimate.value == pytest.approx(-0.5)
    assert paired_permutation(noise - noise.mean())[1] > 0.5
    assert paired_permutation([0.0] * 20) == ((0.0, None, None), 1.0)


@pytest.mark.parametrize("number", [1, 2, 5, 6, 12, 13])
def test_few_differences_prove_little(number: int) -> None:
    """All n signs agree in 2 of 2^n cases, which is less than 0.05 from 6 on."""
    p = paired_permutation([-1.0] * number)[1]
    assert p == pytest.approx(2 / 2**number, abs=2e-3)
    assert (p < 0.05) == (number >= 6)
    assert paired_permutation([-1.0] * number + [0.0] * 497)[1] == p


@pytest.mark.parametrize(
    ("differences", "is_share", "is_within"),
    [
        ([0.0] * 6, False, False),
        ([0.1] * 500, False, False),
        ([0.0] * 6, True, False),
        ([0.0] * 1000, True, True),
        ([0.0] * 149 + [-0.01], True, False),
        ([0.001, -0.001] * 300, True, True),
        ([0.01, -0.01] * 20, False, True),
        ([0.01, -0.03] * 20, False, False),
    ],
)
def test_a_margin_of_means_needs_proof(
    differences: list[float], is_share: bool, is_within: bool
) -> None:
    """Equal or few differences don't exclude a loss of 1 %."""
    p = mean_margin_p(differences, 0.01, is_share=is_share)
    assert (p < 0.025) is is_within


@pytest.mark.parametrize("number", [4, 9, 40, 300])
def test_permutation_agrees_with_scipy(number: int) -> None:
    """It is exact for few differences, and approximate for many."""
    values = np.random.default_rng(number).normal(-0.3, 1, number)
    expected = stats.permutation_test(
        (values,),
        np.mean,
        permutation_type="samples",
        n_resamples=20000,
        random_state=1,
    )
    assert paired_permutation(values)[1] == pytest.approx(
        expected.pvalue, abs=1e-9 if number <= 12 else 0.03
    )


def test_a_turn_counts_once() -> None:
    """Samples of a turn are alike, so differing turns make a wide interval."""
    alike = [[1.0, 2.0, 3.0]] * 20
    apart = [[1.0] * 50] * 10 + [[3.0] * 50] * 10
    median, *tails = percentiles(alike)
    assert median == pytest.approx((2.0, 2.0, 2.0))
    assert all(tail.low is None for tail in tails)
    value, low, high = percentiles(apart)[0]
    assert low is not None
    assert high is not None
    assert value == pytest.approx(3**0.5)
    assert high / low > 1.5
    with pytest.raises(ValueError, match="no samples"):
        percentiles([[]])


def test_percentiles_weight_all_samples_equally() -> None:
    """Turns may have different lengths."""
    values = [
        value
        for value, _, _ in percentiles(
            [[float(number)] for number in range(1, 101)], [0.9, 0.99]
        )
    ]
    assert values == pytest.approx([90.1, 99.01])


def test_a_ratio_is_computed_round_by_round() -> None:
    """A slow round affects both sides alike."""
    slow = np.array([1.0, 10.0, 1.0, 100.0, 1.0, 5.0, 1.0])
    assert time_ratio(list(2 * slow), list(slow)) == pytest.approx((2.0, 2.0, 2.0))


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30))
def test_a_ratio_does_not_depend_on_the_reference(
    pairs: list[tuple[float, float]],
) -> None:
    """Exchanging the versions inverts it, in any order of rounds."""
    left, right = zip(*pairs, strict=True)
    assert time_ratio(left, right).value * time_ratio(
        right, left
    ).value == pytest.approx(1)
    assert time_ratio(left[::-1], right[::-1]).value == pytest.approx(
        time_ratio(left, right).value
    )


def test_too_few_turns_have_no_interval() -> None:
    """One turn has no width, and five would miss the median too often."""
    for number in (1, 5):
        median = percentiles([[1.0, 2.0, 3.0]] * number, [0.5])[0]
        assert median == (pytest.approx(2.0), None, None)
        value, *ends = time_ratio([2.0] * number, [1.0] * number)
        assert value == pytest.approx(2.0)
        assert ends == [None, None]
    assert percentiles([[1.0, 2.0, 3.0]] * 6, [0.5])[0].low is not None
    assert paired_permutation([0.5])[0] == (0.5, None, None)
