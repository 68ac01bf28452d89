"""Change of a sound's sampling rate: a polyphase filter with a Kaiser-windowed sinc.

Written here because SciPy is not part of the core; a phone has NumPy.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np

from pocketserve.tasks.cancellation import checkpoint
from pocketserve.tensors import Array

ZERO_CROSSINGS = (
    32  # of the sinc, on each side; more give a steeper filter at proportional cost
)
ROLLOFF = 0.945  # where the filter is half down, as a share of the lower of the two Nyquist frequencies
BETA = 9.0  # of the Kaiser window: about 90 dB of attenuation
MAX_TERMS = 1000  # of the fraction that stands for an odd ratio: it shifts the pitch by less than anyone hears
BLOCK = (
    1 << 16
)  # samples that are computed between two checkpoints; fewer of a filter over many
BLOCK_PRODUCTS = 1 << 23


def resample(samples: Array, rate: int, new_rate: int) -> Array:
    """Return a sound [frames, channels] at another rate, in time with the input; rates are in frames per second."""
    ratio = Fraction(new_rate, rate)
    if ratio == 1:
        return samples
    count = -(-len(samples) * ratio.numerator // ratio.denominator)
    if max(ratio.numerator, ratio.denominator) > MAX_TERMS:
        ratio = (
            ratio.limit_denominator(MAX_TERMS)
            if ratio < 1
            else 1 / (1 / ratio).limit_denominator(MAX_TERMS)
        )
    up, down = ratio.numerator, ratio.denominator
    columns = [
        _resample_channel(np.ascontiguousarray(channel), up, down, count)
        for channel in samples.T
    ]
    return np.stack(columns, axis=1)


def _resample_channel(signal: Array, up: int, down: int, count: int) -> Array:
    """Output n lies at the input's time n * down / up: phase r of the filter serves every up-th output."""
    phases, reach = _filter(up, down)
    result = np.zeros(count, np.float32)
    beyond = max(
        0, (count - 1) * down // up - len(signal) + 1
    )  # more than 0 only where the ratio is approximated
    padded = np.pad(signal, (reach, reach + 1 + beyond))
    windows = np.lib.stride_tricks.sliding_window_view(padded, phases.shape[1])
    step = max(1, min(BLOCK, BLOCK_PRODUCTS // phases.shape[1]))
    for first in range(min(up, count)):
        at = first * down
        outputs, taps = result[first::up], windows[at // up :: down]
        for begin in range(0, len(outputs), step):
            checkpoint()
            part = outputs[begin : begin + step]
            part[:] = taps[begin : begin + len(part)] @ phases[at % up]
    return result


@functools.lru_cache(maxsize=8)
def _filter(up: int, down: int) -> tuple[Array, int]:
    """Return the filter's phases, float32 [up, taps], and how many input samples it reaches back.

    The weight of the input sample k behind the output's place is h(k - phase / up), each phase scaled to sum 1: so a
    constant stays exactly constant.
    """
    stretch = max(1.0, down / up) / ROLLOFF
    reach = int(np.ceil(ZERO_CROSSINGS * stretch))
    offsets = (
        np.arange(-reach, reach + 2)[np.newaxis, :]
        - (np.arange(up) / up)[:, np.newaxis]
    )
    inside = np.clip(1.0 - (offsets / (ZERO_CROSSINGS * stretch)) ** 2, 0.0, None)
    weights = np.sinc(offsets / stretch) * np.i0(BETA * np.sqrt(inside)) * (inside > 0)
    phases: Array = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return phases, reach
