"""Spectrograms of samples: linear, mel and MFCC, with NumPy alone.

Held against librosa, torchaudio's formulas and TensorFlow's by the test vectors beside ``test_spectrogram.py``.
"""

from __future__ import annotations

import math

import numpy as np

from pocketserve.tasks.audio.options import SpectrogramOptions
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tensors import Array

BLOCK = 1 << 20
"""Samples of frames that are transformed at a time: frames overlap, so that they are many times the sound."""

_BREAK_HZ, _BREAK_MEL, _STEP = 1000.0, 15.0, math.log(6.4) / 27.0
"""Slaney's scale is linear up to 1 kHz, which is 15 mel, and logarithmic above."""


class Spectrogram:
    """Features of sounds at one rate, in samples per second. A pure function, called from many threads."""

    def __init__(self, options: SpectrogramOptions, rate: int) -> None:
        self.options = options
        self._frame = options.n_fft if options.frame_length == "n_fft" else options.win_length
        self._window = _window(options, self._frame)
        self._filters = None if options.kind == "linear" else mel_filters(options, rate)
        self._cosines = cosines(options.n_mels, options.n_mfcc) if options.kind == "mfcc" else None

    def count(self, samples: int) -> int:
        """Return the frames of so many samples; at least one."""
        padded = samples + (self._frame // 2 * 2 if self.options.center else 0)
        return 1 + max(0, padded - self._frame) // self.options.hop_length

    def samples(self, frames: int) -> int:
        """Return the fewest samples that give so many frames."""
        inside = (frames - 1) * self.options.hop_length
        return max(1, inside + (self._frame % 2 if self.options.center else self._frame))

    def features(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 of shape [count(n), bins]."""
        options = self.options
        power = self._powers(self._padded(samples.astype(np.float64)), self.count(len(samples)))
        values = _logarithm(power, options)
        if self._cosines is not None:
            values = values @ self._cosines
        if options.normalize != "none":
            axis = 0 if options.normalize == "per-bin" else None
            values = (values - values.mean(axis=axis)) / np.sqrt(values.var(axis=axis) + 1e-7)
        return np.asarray((values - np.array(options.mean)) / np.array(options.std), np.float32)

    def _padded(self, samples: Array) -> Array:
        options = self.options
        if options.preemphasis and len(samples):
            samples = np.concatenate([samples[:1], samples[1:] - options.preemphasis * samples[:-1]])
        if options.center:
            mode = "reflect" if options.pad_mode == "reflect" and len(samples) else "constant"
            samples = np.pad(samples, self._frame // 2, mode=mode)  # type: ignore[call-overload]
        return np.pad(samples, (0, max(0, self._frame - len(samples))))

    def _powers(self, samples: Array, count: int) -> Array:
        """Return powers of all frames, of shape [count, bins]; for MFCC those of the mel bands."""
        options = self.options
        frames = np.lib.stride_tricks.sliding_window_view(samples, self._frame)[:: options.hop_length][:count]
        result = np.empty((count, options.n_fft // 2 + 1 if self._filters is None else options.n_mels))
        step = max(1, BLOCK // options.n_fft)
        for start in cancellable(range(0, count, step)):
            spectrum = np.abs(np.fft.rfft(frames[start : start + step] * self._window, options.n_fft))
            powers = spectrum if options.power == 1 else spectrum**options.power
            result[start : start + step] = powers if self._filters is None else powers @ self._filters
        return result


def mel_bands_are_apart(options: SpectrogramOptions, rate: int) -> bool:
    """Return whether the bands' edges rise; else there is no dividing by their distances."""
    return all(bool((np.diff(edges) > 0).all()) for edges in _mel_edges(options, rate))


def _mel_edges(options: SpectrogramOptions, rate: int) -> tuple[Array, Array]:
    """Return where bands begin, are highest and end, [n_mels + 2], in mel and in Hz."""
    top = rate / 2 if options.f_max is None else options.f_max
    low, high = (_mel_of(np.array(hertz), options.mel_scale) for hertz in (options.f_min, top))
    edges = np.linspace(low, high, options.n_mels + 2)
    return edges, _hertz_of(edges, options.mel_scale)


def mel_filters(options: SpectrogramOptions, rate: int) -> Array:
    """Return the weights of the FFT's bins in the mel bands, of shape [n_fft // 2 + 1, n_mels]."""
    edges, edges_hz = _mel_edges(options, rate)
    places = np.arange(options.n_fft // 2 + 1) * (rate / options.n_fft)
    corners = edges_hz
    if options.triangles == "mel":
        places, corners = _mel_of(places, options.mel_scale), edges
    rising = (places[:, None] - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - places[:, None]) / np.diff(corners)[1:]
    weights: Array = np.maximum(0.0, np.minimum(rising, falling))
    return weights * (2.0 / (edges_hz[2:] - edges_hz[:-2])) if options.norm == "slaney" else weights


def cosines(bands: int, coefficients: int) -> Array:
    """Return the cosine transform, type 2 and orthonormal, of shape [bands, coefficients]."""
    angles = (np.arange(bands)[:, None] + 0.5) * np.arange(coefficients) * (np.pi / bands)
    table: Array = np.cos(angles) * math.sqrt(2.0 / bands)
    table[:, 0] /= math.sqrt(2.0)
    return table


def _window(options: SpectrogramOptions, frame: int) -> Array:
    """Return the window's weights, in the middle of a frame that is longer."""
    length = options.win_length
    cosine = np.cos(np.arange(length) * (2 * np.pi / (length if options.periodic else max(1, length - 1))))
    first = {"hann": 0.5, "hamming": 0.54, "ones": 1.0}[options.window]
    before = (frame - length) // 2
    return np.pad(first - (1 - first) * cosine, (before, frame - length - before))


def _logarithm(power: Array, options: SpectrogramOptions) -> Array:
    if options.log == "none":
        return power
    decibels = 20.0 if options.power == 1 else 10.0  # of one power of ten
    unit = {"natural": math.log(10), "log10": 1.0, "db": decibels}[options.log]
    values = np.log10(np.maximum(power + options.log_offset, options.log_floor)) * unit
    if options.ref == "max":
        values = values - values.max()
    return values if options.top_db is None else np.maximum(values, values.max() - options.top_db * unit / decibels)


def _mel_of(hertz: Array, scale: str) -> Array:
    if scale == "htk":
        return np.asarray(2595.0 * np.log10(1.0 + hertz / 700.0))
    above = _BREAK_MEL + np.log(np.maximum(hertz, _BREAK_HZ) / _BREAK_HZ) / _STEP
    return np.where(hertz >= _BREAK_HZ, above, hertz * (_BREAK_MEL / _BREAK_HZ))


def _hertz_of(mel: Array, scale: str) -> Array:
    if scale == "htk":
        return np.asarray(700.0 * (10.0 ** (mel / 2595.0) - 1.0))
    above = _BREAK_HZ * np.exp(_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel >= _BREAK_MEL, above, mel * (_BREAK_HZ / _BREAK_MEL))
