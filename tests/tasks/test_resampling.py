"""Resampling keeps tones, removes aliases, and agrees with SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.tasks.audio.resampling import resample
from sounds import tone

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
)
RATES = [
    (44_100, 16_000),
    (48_000, 16_000),
    (8_000, 16_000),
    (22_050, 16_000),
    (11_025, 44_100),
    (44_101, 16_000),
]
EDGE_S = 0.02


def middle(samples: Any, rate: int) -> Any:
    """Return a signal without its ends, where the filter exceeds it."""
    cut = int(EDGE_S * rate)
    return samples[cut:-cut, 0]


@pytest.mark.parametrize(("rate", "wanted"), RATES)
def test_tones_are_kept(rate: int, wanted: int) -> None:
    """A tone that both rates can represent keeps its amplitude, pitch and position."""
    for frequency in (50.0, 1000.0, 0.4 * min(rate, wanted)):
        found = resample(tone(0.48, rate, frequency).astype(np.float32), rate, wanted)
        expected = tone(0.48, wanted, frequency)
        assert abs(len(found) - len(expected)) <= 1
        assert found.dtype == np.float32
        count = min(len(found), len(expected))
        difference = middle(found[:count], wanted) - middle(expected[:count], wanted)
        # Odd ratios are approximated.
        assert np.abs(difference).max() < (1e-4 if rate % 25 == 0 else 0.05)


@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        (44_100, 16_000),
        (48_000, 8_000),
        (192_000, 16_000),
    ],
)
def test_no_aliases(rate: int, wanted: int) -> None:
    """Frequencies above the new limit are damped by at least 60 dB."""
    for frequency in (
        0.56 * wanted,
        0.8 * wanted,
        0.45 * rate,
    ):
        found = resample(tone(0.5, rate, frequency).astype(np.float32), rate, wanted)
        assert np.abs(middle(found, wanted)).max() < 0.5e-3


def test_a_constant_stays_constant() -> None:
    """There is no ripple from phase to phase."""
    found = middle(
        resample(np.full((4410, 1), 0.25, np.float32), 44_100, 16_000), 16_000
    )
    np.testing.assert_allclose(found, 0.25, rtol=1e-6)


@pytest.mark.parametrize(("rate", "wanted"), RATES[:5])
def test_the_result_agrees_with_scipy(rate: int, wanted: int) -> None:
    """For noise below both limits the two filters agree."""
    signal = pytest.importorskip("scipy.signal", reason="the comparison needs SciPy")
    noise = np.random.default_rng(0).normal(size=rate // 2)
    low = signal.sosfiltfilt(
        signal.butter(8, 0.3 * min(rate, wanted), fs=rate, output="sos"), noise
    )
    found = resample(low[:, None].astype(np.float32), rate, wanted)[:, 0]
    expected = signal.resample_poly(low, wanted, rate, window=("kaiser", 9.0))
    assert len(found) == len(expected)
    cut = int(EDGE_S * wanted)
    assert np.abs(found - expected)[cut:-cut].max() < 0.02 * np.abs(low).max()


@given(
    st.integers(1, 400),
    st.sampled_from([1000, 8000, 11_025, 44_100, 44_101, 767_999]),
    st.integers(1, 3),
)
@SETTINGS
def test_length_and_channels(count: int, rate: int, channels: int) -> None:
    """The duration stays the same, every channel equals the first, and all values are
    finite.
    """
    samples = np.repeat(
        np.linspace(-1, 1, count, dtype=np.float32)[:, None], channels, axis=1
    )
    found = resample(samples, rate, 16_000)
    assert found.shape == (-(-count * 16_000 // rate), channels)
    assert np.isfinite(found).all()
    assert (found == found[:, :1]).all()
    assert np.abs(found).max() < 1.5


def test_the_same_rate_changes_nothing() -> None:
    """Not even a copy is made."""
    samples = np.zeros((5, 2), np.float32)
    assert resample(samples, 16_000, 16_000) is samples
