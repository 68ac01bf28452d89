"""The parts of a sound that may have speech."""

from __future__ import annotations

import numpy as np
import pytest

from pocketserve.tasks.speech.gate import Gate
from pocketserve.tensors import Array

RATE = 16_000


def speech(seconds: float, level: float = 0.2) -> Array:
    """Return noise that swells four times a second."""
    count = round(seconds * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    swell = np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2
    return (level * noise * swell).astype(np.float32)


def noise(seconds: float, level: float) -> Array:
    count = round(seconds * RATE)
    return (level * np.random.default_rng(1).standard_normal(count)).astype(np.float32)


@pytest.mark.parametrize("level", [0.0, 0.001, 0.01, 0.1])
def test_steady_noise_is_no_speech(level: float) -> None:
    assert Gate(noise(20, level), RATE).stretches() == []


@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_speech_is_found_at_any_level(level: float) -> None:
    (stretch,) = Gate(speech(3, level), RATE).stretches()
    assert stretch.start == 0
    assert stretch.end == 3 * RATE


@pytest.mark.parametrize("level", [0.0, 0.003, 0.01])
def test_long_pauses_separate_stretches(level: float) -> None:
    samples = np.concatenate(
        [
            speech(3),
            noise(12, level),
            speech(2),
        ]
    )
    first, second = Gate(samples, RATE).stretches()
    assert first.start == 0
    assert 3 * RATE <= first.end < 3.5 * RATE
    assert 14.5 * RATE < second.start <= 15 * RATE
    assert second.end == 17 * RATE


def test_short_pauses_separate_nothing() -> None:
    samples = np.concatenate(
        [
            speech(3),
            noise(2, 0.0),
            speech(2),
        ]
    )
    assert len(Gate(samples, RATE).stretches()) == 1


def test_the_next_loud_place_is_after_the_silence() -> None:
    samples = np.concatenate(
        [
            noise(3, 0.0),
            speech(2),
            noise(3, 0.0),
        ]
    )
    gate = Gate(samples, RATE)
    place = gate.next_loud(0)
    assert place is not None
    assert 2.5 * RATE < place <= 3.1 * RATE
    assert gate.next_loud(6 * RATE) is None


@pytest.mark.parametrize("count", [0, 1, 100, 1000])
def test_very_short_sounds_are_handled(count: int) -> None:
    assert Gate(np.zeros(count, np.float32), RATE).stretches() == []
