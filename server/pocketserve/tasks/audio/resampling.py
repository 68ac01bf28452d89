"""Resample sounds: a polyphase filter with a Kaiser-windowed sinc.

Written here because the core needs NumPy only, not SciPy.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

from pocketserve.tasks.cancellation import checkpoint
from pocketserve.tensors import Array

# Of the sinc, on each side; more give a steeper filter at proportional cost.
ZERO_CROSSINGS = 32
# The filter's half-power point, as a share of the lower Nyquist frequency.
ROLLOFF = 0.945
BETA = 9.0  # of the Kaiser window: about 90 dB of attenuation
# Of the fraction that approximates an odd ratio; the change of pitch is inaudible.
MAX_TERMS = 1000
BLOCK = 1 << 16  # most samples computed between two checkpoints
BLOCK_PRODUCTS = 1 << 23


def resample(samples: Array, rate: int, new_rate: int) -> Array:
    """Return a sound [frames, channels] at another rate, without delay.

    Rates are in frames per second.
    """
    ratio = Fraction(new_rate, rate)
    if ratio == 1:
        return samples
    count = math.ceil(len(samples) * ratio)
    if max(ratio.numerator, ratio.denominator) > MAX_TERMS:
        ratio = _approximated(ratio)
    columns = []
    for channel in samples.T:
        signal = np.ascontiguousarray(channel)
        resampled = _resample_channel(
            signal,
            ratio.numerator,
            ratio.denominator,
            count,
        )
        columns.append(resampled)
    return np.stack(columns, axis=1)


def _approximated(ratio: Fraction) -> Fraction:
    if ratio < 1:
        return ratio.limit_denominator(MAX_TERMS)
    return 1 / (1 / ratio).limit_denominator(MAX_TERMS)


def _resample_channel(signal: Array, up: int, down: int, count: int) -> Array:
    """Resample one channel by the ratio up / down.

    Output n is at the input's time n * down / up, so every up-th output has the same
    phase of the filter.
    """
    phases, reach = _filter(up, down)
    taps_per_phase = phases.shape[1]
    result = np.zeros(count, np.float32)
    last_input = (count - 1) * down // up
    # More than 0 only if the ratio is approximated.
    beyond = max(0, last_input - len(signal) + 1)
    padded = np.pad(signal, (reach, reach + 1 + beyond))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps_per_phase)
    for first in range(min(up, count)):
        position = first * down
        phase = phases[position % up]
        taps = windows[position // up :: down]
        _weigh(taps, phase, result[first::up])
    return result


def _weigh(taps: Array, phase: Array, outputs: Array) -> None:
    """Fill outputs with weighted sums of their taps, block by block."""
    step = max(1, min(BLOCK, BLOCK_PRODUCTS // len(phase)))
    for begin in range(0, len(outputs), step):
        checkpoint()
        part = outputs[begin : begin + step]
        end = begin + len(part)
        part[:] = taps[begin:end] @ phase


@functools.lru_cache(maxsize=8)
def _filter(up: int, down: int) -> tuple[Array, int]:
    """Return the filter's phases, float32 [up, taps], and its reach in input samples.

    The weight of the input sample k after the output's time is h(k - phase / up). Each
    phase is scaled to sum 1, so a constant signal stays exactly constant.
    """
    stretch = max(1.0, down / up) / ROLLOFF
    half_width = ZERO_CROSSINGS * stretch
    reach = int(np.ceil(half_width))
    distances = np.arange(-reach, reach + 2)[np.newaxis, :]
    shifts = (np.arange(up) / up)[:, np.newaxis]
    offsets = distances - shifts
    inside = np.clip(1.0 - (offsets / half_width) ** 2, 0.0, None)
    kaiser = np.i0(BETA * np.sqrt(inside))
    weights = np.sinc(offsets / stretch) * kaiser * (inside > 0)
    sums = weights.sum(axis=1, keepdims=True)
    phases: Array = (weights / sums).astype(np.float32)
    return phases, reach
