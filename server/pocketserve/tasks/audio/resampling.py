"""Resample sounds: a polyphase filter with a Kaiser-windowed sinc.

Written here because the core needs NumPy only, not SciPy.
"""

from __future__ import annotations

import functools
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
    count = -(-len(samples) * ratio.numerator // ratio.denominator)
    if max(ratio.numerator, ratio.denominator) > MAX_TERMS:
        ratio = _approximated(ratio)
    up, down = ratio.numerator, ratio.denominator
    columns = []
    for channel in samples.T:
        signal = np.ascontiguousarray(channel)
        columns.append(_resample_channel(signal, up, down, count))
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
    result = np.zeros(count, np.float32)
    # More than 0 only if the ratio is approximated.
    beyond = max(0, (count - 1) * down // up - len(signal) + 1)
    padded = np.pad(signal, (reach, reach + 1 + beyond))
    windows = np.lib.stride_tricks.sliding_window_view(padded, phases.shape[1])
    step = max(1, min(BLOCK, BLOCK_PRODUCTS // phases.shape[1]))
    for first in range(min(up, count)):
        at = first * down
        phase = phases[at % up]
        outputs = result[first::up]
        taps = windows[at // up :: down]
        for begin in range(0, len(outputs), step):
            checkpoint()
            part = outputs[begin : begin + step]
            part[:] = taps[begin : begin + len(part)] @ phase
    return result


@functools.lru_cache(maxsize=8)
def _filter(up: int, down: int) -> tuple[Array, int]:
    """Return the filter's phases, float32 [up, taps], and its reach in input samples.

    The weight of the input sample k after the output's time is h(k - phase / up). Each
    phase is scaled to sum 1, so a constant signal stays exactly constant.
    """
    stretch = max(1.0, down / up) / ROLLOFF
    reach = int(np.ceil(ZERO_CROSSINGS * stretch))
    distances = np.arange(-reach, reach + 2)[np.newaxis, :]
    shifts = (np.arange(up) / up)[:, np.newaxis]
    offsets = distances - shifts
    inside = np.clip(1.0 - (offsets / (ZERO_CROSSINGS * stretch)) ** 2, 0.0, None)
    kaiser = np.i0(BETA * np.sqrt(inside))
    weights = np.sinc(offsets / stretch) * kaiser * (inside > 0)
    phases: Array = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return phases, reach
