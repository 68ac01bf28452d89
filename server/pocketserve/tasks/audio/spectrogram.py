"""Compute spectrograms (linear, mel and MFCC) with NumPy, and arrange them as inputs.

The test vectors beside ``test_spectrogram.py`` compare them with librosa's, torchaudio's
formulas and TensorFlow's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.feature_extractor import FeatureExtractor
from pocketserve.tasks.audio.options import SpectrogramOptions
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec

# Samples transformed at a time: frames overlap and are many times the sound.
BLOCK = 1 << 20
EPSILON = 1e-7  # keeps the variance above 0
_BREAK_HZ, _BREAK_MEL, _STEP = 1000.0, 15.0, math.log(6.4) / 27.0
"""Slaney's scale is linear up to 1 kHz, which is 15 mel, and logarithmic above."""


class Spectrogram:
    """Compute the features of sounds with a fixed sampling rate.

    Thread-safe: computing changes no state.
    """

    def __init__(self, options: SpectrogramOptions, rate: int) -> None:
        self.options = options
        self._frame = options.win_length
        if options.frame_length == "n_fft":
            self._frame = options.n_fft
        self._window = _window(options, self._frame)
        self._filters: Array | None = None
        if options.kind != "linear":
            self._filters = mel_filters(options, rate)
        self._cosines: Array | None = None
        if options.kind == "mfcc":
            self._cosines = cosines(options.n_mels, options.n_mfcc)

    def count(self, samples: int) -> int:
        """Return the number of frames of ``samples`` samples, at least 1."""
        if self.options.center:
            samples += self._frame // 2 * 2
        return 1 + max(0, samples - self._frame) // self.options.hop_length

    def samples(self, frames: int) -> int:
        """Return the fewest samples, at least 1, that give ``frames`` frames or more."""
        last = self._frame % 2 if self.options.center else self._frame
        return max(1, (frames - 1) * self.options.hop_length + last)

    def features(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 of shape [count(n), bins]."""
        options = self.options
        padded = self._padded(samples.astype(np.float64))
        values = _logarithm(self._powers(padded, self.count(len(samples))), options)
        if self._cosines is not None:
            values = values @ self._cosines
        if options.normalize != "none":
            axis = 0 if options.normalize == "per-bin" else None
            deviation = np.sqrt(values.var(axis=axis) + EPSILON)
            values = (values - values.mean(axis=axis)) / deviation
        values = (values - np.array(options.mean)) / np.array(options.std)
        return np.asarray(values, np.float32)

    def _padded(self, samples: Array) -> Array:
        options = self.options
        if options.preemphasis and len(samples) and not options.kaldi:
            emphasised = samples[1:] - options.preemphasis * samples[:-1]
            samples = np.concatenate([samples[:1], emphasised])
        if options.center:
            border = self._frame // 2
            if options.pad_mode == "reflect" and len(samples):
                samples = np.pad(samples, border, mode="reflect")
            else:
                samples = np.pad(samples, border)
        missing = max(0, self._frame - len(samples))
        return np.pad(samples, (0, missing))

    def _powers(self, samples: Array, count: int) -> Array:
        """Return the powers of all frames, [count, bins]; for MFCC of the mel bands."""
        options = self.options
        overlapping = np.lib.stride_tricks.sliding_window_view(samples, self._frame)
        frames = overlapping[:: options.hop_length][:count]
        bins = options.n_mels
        if self._filters is None:
            bins = options.n_fft // 2 + 1
        result = np.empty((count, bins))
        step = max(1, BLOCK // options.n_fft)
        for start in cancellable(range(0, count, step)):
            block = frames[start : start + step]
            if options.kaldi:
                centred = block - block.mean(axis=1, keepdims=True)
                block = _emphasised(centred, options.preemphasis)
            spectrum = np.abs(np.fft.rfft(block * self._window, options.n_fft))
            powers = spectrum if options.power == 1 else spectrum**options.power
            if self._filters is not None:
                powers = powers @ self._filters
            result[start : start + step] = powers
        return result


def _emphasised(frames: Array, factor: float) -> Array:
    """Apply pre-emphasis to each frame; its first sample is its own predecessor."""
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    emphasised: Array = frames - factor * before
    return emphasised


def _mel_edges(options: SpectrogramOptions, rate: int) -> tuple[Array, Array]:
    """Return the bands' starts, peaks and ends, [n_mels + 2], in mel and in Hz."""
    top = rate / 2 if options.f_max is None else options.f_max
    low_mel = _mel_of(np.array(options.f_min), options.mel_scale)
    high_mel = _mel_of(np.array(top), options.mel_scale)
    edges = np.linspace(low_mel, high_mel, options.n_mels + 2)
    return edges, _hertz_of(edges, options.mel_scale)


def mel_filters(options: SpectrogramOptions, rate: int) -> Array:
    """Return the weights of the FFT's bins in the bands, [n_fft // 2 + 1, n_mels]."""
    edges, edges_hz = _mel_edges(options, rate)
    positions = np.arange(options.n_fft // 2 + 1) * (rate / options.n_fft)
    corners = edges_hz
    if options.triangles == "mel":
        positions = _mel_of(positions, options.mel_scale)
        corners = edges
    widths = np.diff(corners)
    rising = (positions[:, None] - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - positions[:, None]) / widths[1:]
    weights: Array = np.maximum(0.0, np.minimum(rising, falling))
    if options.norm == "slaney":
        weights = weights * (2.0 / (edges_hz[2:] - edges_hz[:-2]))
    return weights


def cosines(bands: int, coefficients: int) -> Array:
    """Return the orthonormal cosine transform of type 2, [bands, coefficients]."""
    centres = np.arange(bands)[:, None] + 0.5
    angles = centres * np.arange(coefficients) * (np.pi / bands)
    table: Array = np.cos(angles) * math.sqrt(2.0 / bands)
    table[:, 0] /= math.sqrt(2.0)
    return table


def _window(options: SpectrogramOptions, frame: int) -> Array:
    """Return the window's weights, centred in a longer frame."""
    length = options.win_length
    period = length if options.periodic else max(1, length - 1)
    cosine = np.cos(np.arange(length) * (2 * np.pi / period))
    first = {"hann": 0.5, "hamming": 0.54, "ones": 1.0}[options.window]
    before = (frame - length) // 2
    return np.pad(first - (1 - first) * cosine, (before, frame - length - before))


def _logarithm(power: Array, options: SpectrogramOptions) -> Array:
    if options.log == "none":
        return power
    decibels = 20.0 if options.power == 1 else 10.0  # per power of ten
    unit = {"natural": math.log(10), "log10": 1.0, "db": decibels}[options.log]
    raised = np.maximum(power + options.log_offset, options.log_floor)
    values = np.log10(raised) * unit
    if options.ref == "max":
        values = values - values.max()
    if options.top_db is not None:
        least = values.max() - options.top_db * unit / decibels
        values = np.maximum(values, least)
    return values


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


class FeatureLayout(NamedTuple):
    """The arrangement of a spectrogram in an input.

    Attributes:
        frames: the number that the model takes; None for any.
        swapped: whether bins come before frames.
        shape: of the input; -1 is the frames, or all values if there is one dimension.
    """

    frames: int | None
    swapped: bool
    shape: tuple[int, ...]

    def arrange(self, features: Array) -> Array:
        """Return features [frames or more, bins] in the input's shape.

        Surplus frames at the end are dropped.
        """
        table = features[: self.frames]
        if self.swapped:
            table = table.T
        return np.ascontiguousarray(table).reshape(self.shape)


def feature_layout(spec: TensorSpec, options: SpectrogramOptions) -> FeatureLayout:
    """Derive the layout from an input's shape.

    ``layout`` and ``frames`` of the manifest decide if several fit.
    """
    bins = options.bins
    if spec.open:
        if options.layout == "bins-frames":
            return FeatureLayout(options.frames, True, (1, bins, -1))
        return FeatureLayout(options.frames, False, (1, -1, bins))
    orders = [False, True]
    if options.layout is not None:
        orders = [options.layout == "bins-frames"]
    layouts = list(_table_layouts(spec.shape, bins, orders))
    if not layouts:
        layouts = _flat_layouts(spec.shape, bins, orders[0])
    shape = f"shape {list(spec.shape)} of input {spec.name!r}"
    if not layouts:
        raise ModelLoadError(
            f"model.toml: {shape} does not fit {bins} bins a frame; check n_mels, "
            "n_mfcc, n_fft and layout in [spectrogram]"
        )
    best = layouts[0]
    if best.frames is None:
        best = best._replace(frames=options.frames)
    if options.frames is not None and best.frames != options.frames:
        raise ModelLoadError(
            f"model.toml: spectrogram.frames is {options.frames}, but {shape} takes "
            f"{best.frames} frames of {bins} bins; leave the key out"
        )
    square = [layout.swapped for layout in layouts if layout.frames == bins]
    if best.frames == bins and len(set(square)) > 1:
        raise ModelLoadError(
            f"model.toml: {shape} fits both ways: set spectrogram.layout to frames-bins "
            "or bins-frames"
        )
    return best


def _flat_layouts(
    shape: tuple[int, ...], bins: int, swapped: bool
) -> list[FeatureLayout]:
    """Return the layout with frames and bins in one dimension, if it fits."""
    large = [size for size in shape if size > 1]
    small = [size for size in shape if size <= 1]
    if len(large) != 1 or 0 in small or any(size != 1 for size in small[1:]):
        return []
    count, rest = divmod(large[0], bins)
    if rest:
        return []
    flat = tuple(-1 if size > 1 else 1 for size in shape)
    return [FeatureLayout(count, swapped, flat)]


def _table_layouts(
    shape: tuple[int, ...], bins: int, orders: Sequence[bool]
) -> Iterator[FeatureLayout]:
    """Yield layouts in two dimensions, those with a fixed size for bins first.

    All other dimensions are 1, or an open batch.
    """
    pairs = list(itertools.combinations(range(len(shape)), 2))
    for size, swapped, pair in itertools.product((bins, -1), orders, pairs):
        frame_axis, bin_axis = pair
        if swapped:
            bin_axis, frame_axis = pair
        frames = shape[frame_axis]
        if shape[bin_axis] != size or not frames or not _others_are_one(shape, pair):
            continue
        arranged = [1] * len(shape)
        arranged[frame_axis] = -1
        arranged[bin_axis] = bins
        count = frames if frames > 0 else None
        yield FeatureLayout(count, swapped, tuple(arranged))


def _others_are_one(shape: tuple[int, ...], pair: tuple[int, int]) -> bool:
    """Return whether all axes but a pair are 1, or the first is open."""
    for axis, size in enumerate(shape):
        is_open_batch = axis == 0 and size == -1
        if axis not in pair and size != 1 and not is_open_batch:
            return False
    return True


class Features(Spectrogram):
    """A spectrogram, arranged as an input."""

    def __init__(
        self, options: SpectrogramOptions, rate: int, spec: TensorSpec
    ) -> None:
        super().__init__(options, rate)
        self._layout = feature_layout(spec, options)

    def window(self, window: int | None, context: int) -> int | None:
        """Return a window's samples: the manifest's, else as many as the frames need."""
        frames = self._layout.frames
        if frames is None:
            return window
        fewest = self.samples(frames)
        if window is None:
            return max(1, fewest - context)
        if window + context < fewest:
            raise ModelLoadError(
                f"model.toml: the model takes {frames} frames, which are {fewest} samples by [spectrogram]; "
                f"audio.window has {window}"
            )
        return window

    def size(self, samples: int) -> int:
        """Return the number of values computed for ``samples`` samples.

        For MFCC these are the mel bands, which are more than the coefficients.
        """
        options = self.options
        bins = options.n_mels if options.kind == "mfcc" else options.bins
        return self.count(samples) * bins

    def array(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 in the input's shape."""
        return self._layout.arrange(self.features(samples))

    def describe(self) -> str:
        """Describe the features for model cards."""
        options = self.options
        name = "MFCC" if options.kind == "mfcc" else options.kind
        if options.log != "none" and options.kind != "mfcc":
            name = f"log-{name}"
        step = options.hop_length
        return f"{name} spectrogram of {options.bins} bins, every {step} samples"


class FilledFeatures(Features):
    """A whole sound's spectrogram, cut or zero-filled to a number of frames.

    The zeros are filled in before normalisation.
    """

    def __init__(
        self, options: SpectrogramOptions, rate: int, spec: TensorSpec, frames: int
    ) -> None:
        super().__init__(options, rate, spec)
        self._frames = frames

    def window(self, window: int | None, context: int) -> int | None:
        return None

    def array(self, samples: Array) -> Array:
        features = self.features(samples[: self.samples(self._frames)])
        options = self.options
        silence = (0 - np.array(options.mean)) / np.array(options.std)
        filled = np.empty((self._frames, options.bins), np.float32)
        filled[:] = silence
        if len(samples) >= self.samples(1):
            filled[: len(features)] = features
        return self._layout.arrange(filled)


def features_of(
    facts: ModelFacts,
    spec: TensorSpec,
    rate: int,
    channels: int,
    extractor: FeatureExtractor | None,
) -> Features | None:
    """Read the manifest's ``[spectrogram]``, else the files; None without either."""
    options: SpectrogramOptions | None = facts.manifest.sections.get(SpectrogramOptions)
    if options is None and extractor is not None and extractor.spectrogram is not None:
        _check_bands(extractor.spectrogram, rate)
        if extractor.frames is not None:
            return FilledFeatures(extractor.spectrogram, rate, spec, extractor.frames)
        return Features(extractor.spectrogram, rate, spec)
    if options is None:
        return None
    if channels != 1:
        raise ModelLoadError(
            f"model.toml: [spectrogram] is of one channel; audio.channels is {channels}"
        )
    _check_bands(options, rate)
    return Features(options, rate, spec)


def _check_bands(options: SpectrogramOptions, rate: int) -> None:
    if (options.f_max or 0) > rate / 2:
        raise ModelLoadError(
            f"model.toml: spectrogram.f_max is above half the sampling rate, {rate / 2:g} Hz"
        )
    if options.kind == "linear":
        return
    for edges in _mel_edges(options, rate):
        if (np.diff(edges) <= 0).any():
            raise ModelLoadError(
                f"model.toml: spectrogram.f_min leaves no room for {options.n_mels} "
                f"bands below {options.f_max or rate / 2:g} Hz"
            )
