"""Find the parts of a sound that may have speech, by their loudness.

A model invents words for silence, so that it must not see long stretches of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pocketserve.tensors import Array

BLOCK_S: Final = 0.02
MARGIN_BLOCKS: Final = 8
"""Blocks before and after a loud one that belong to it: consonants are quiet."""

PAUSE_S: Final = 5.0
"""Silence that separates two stretches."""

LEAD_S: Final = 0.2
"""Sound that is kept before and after a stretch."""

LOWEST: Final = 0.002
HIGHEST: Final = 0.02
SHARE_OF_LOUD: Final = 0.06
"""Loudness relative to the loudest twentieth below which there is no speech."""

LOUD_PERCENTILE: Final = 95
FLOOR_BLOCKS: Final = 251
"""Blocks around each one, the quietest of which is the noise there: 5 s."""

SMOOTHED_BLOCKS: Final = 5
NOISE_FACTOR: Final = 1.8
"""Steady noise varies less than this, speech far more."""


SEARCHED_S: Final = 5.0
"""The end of a long sound, in which a quiet place is searched to cut it."""


class Stretch(NamedTuple):
    """A part of a sound, in samples."""

    start: int
    end: int


class Gate:
    """The loud blocks of a sound.

    Args:
        samples: mono, from -1 to 1.
        rate: samples per second.
    """

    def __init__(self, samples: Array, rate: int) -> None:
        self._rate = rate
        self._length = len(samples)
        self._block = max(1, round(rate * BLOCK_S))
        levels = _levels(samples, self._block)
        limits = np.maximum(_threshold(levels), NOISE_FACTOR * _noise(levels))
        self._loud = _widened(levels > limits, MARGIN_BLOCKS)

    def stretches(self) -> list[Stretch]:
        """Return the parts with sound, in order; long pauses separate them."""
        places = np.flatnonzero(self._loud)
        if not len(places):
            return []
        pause = round(PAUSE_S / BLOCK_S)
        breaks = np.flatnonzero(np.diff(places) > pause)
        firsts = [places[0], *places[breaks + 1]]
        lasts = [*places[breaks], places[-1]]
        lead = round(LEAD_S * self._rate)
        stretches = []
        for first, last in zip(firsts, lasts, strict=True):
            start = max(0, int(first) * self._block - lead)
            end = min(self._length, (int(last) + 1) * self._block + lead)
            stretches.append(Stretch(start, end))
        return stretches

    def next_loud(self, start: int) -> int | None:
        """Return the first loud sample from a position on; None if there is none."""
        first_block = start // self._block
        places = np.flatnonzero(self._loud[first_block:])
        if not len(places):
            return None
        block = first_block + int(places[0])
        return max(start, block * self._block)

    def last_pause(self, seconds: float) -> Stretch | None:
        """Return the last pause between loud samples; None if none is that long."""
        # Of both margins, a pause at the end of a sound lacks one as well.
        blocks = seconds / BLOCK_S - MARGIN_BLOCKS
        places = np.flatnonzero(self._loud)
        pauses = np.flatnonzero(np.diff(places) > blocks)
        if not len(pauses):
            return None
        before = int(places[pauses[-1]])
        after = int(places[pauses[-1] + 1])
        return Stretch((before + 1) * self._block, after * self._block)

    def last_loud(self) -> int | None:
        """Return the end of the last loud block in samples; None if there is none."""
        places = np.flatnonzero(self._loud)
        if not len(places):
            return None
        return min(self._length, (int(places[-1]) + 1) * self._block)


def quiet_cut(samples: Array, rate: int) -> int:
    """Return the quietest place in the last seconds of a sound."""
    first = max(0, len(samples) - round(SEARCHED_S * rate))
    block = max(1, round(BLOCK_S * rate))
    count = (len(samples) - first) // block
    if not count:
        return len(samples)
    levels = _levels(samples[first : first + count * block], block)
    return first + int(levels.argmin()) * block + block // 2


def _levels(samples: Array, block: int) -> Array:
    """Return the root mean square of each block; the last one is filled up."""
    count = -(-len(samples) // block)
    filled = np.zeros(count * block, np.float32)
    filled[: len(samples)] = samples
    squares = np.square(filled.reshape(count, block))
    levels: Array = np.sqrt(squares.mean(axis=1))
    return levels


def _threshold(levels: Array) -> float:
    if not len(levels):
        return LOWEST
    loud_level = float(np.percentile(levels, LOUD_PERCENTILE))
    return min(HIGHEST, max(LOWEST, SHARE_OF_LOUD * loud_level))


def _noise(levels: Array) -> Array:
    """Return the level of the noise around each block."""
    if len(levels) < SMOOTHED_BLOCKS:
        return np.zeros_like(levels)
    smooth = np.convolve(levels, np.full(SMOOTHED_BLOCKS, 1 / SMOOTHED_BLOCKS), "same")
    # At the ends, the filter would add silence.
    smooth = np.maximum(smooth, levels.min())
    around = FLOOR_BLOCKS // 2
    filled = np.pad(smooth, around, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(filled, FLOOR_BLOCKS)
    noise: Array = windows.min(axis=1)
    return noise


def _widened(flags: Array, margin: int) -> Array:
    """Return flags that are also set up to ``margin`` places beside a set one."""
    sums = np.concatenate([[0], np.cumsum(flags)])
    places = np.arange(len(flags))
    first = np.maximum(places - margin, 0)
    last = np.minimum(places + margin + 1, len(flags))
    widened: Array = sums[last] > sums[first]
    return widened
