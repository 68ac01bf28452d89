"""Spectrograms of samples (linear, mel and MFCC, with NumPy alone), and their place in a model's input.

Held against librosa, torchaudio's formulas and TensorFlow's by the test vectors beside ``test_spectrogram.py``.
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

BLOCK = (
    1 << 20
)  # samples of frames that are transformed at a time: they overlap, and are many times the sound
_BREAK_HZ, _BREAK_MEL, _STEP = 1000.0, 15.0, math.log(6.4) / 27.0
"""Slaney's scale is linear up to 1 kHz, which is 15 mel, and logarithmic above."""


class Spectrogram:
    """Features of sounds at one rate, in samples per second. A pure function, called from many threads."""

    def __init__(self, options: SpectrogramOptions, rate: int) -> None:
        self.options = options
        self._frame = (
            options.n_fft if options.frame_length == "n_fft" else options.win_length
        )
        self._window = _window(options, self._frame)
        self._filters = None if options.kind == "linear" else mel_filters(options, rate)
        self._cosines = (
            cosines(options.n_mels, options.n_mfcc) if options.kind == "mfcc" else None
        )

    def count(self, samples: int) -> int:
        """Return the frames of so many samples; at least one."""
        padded = samples + (self._frame // 2 * 2 if self.options.center else 0)
        return 1 + max(0, padded - self._frame) // self.options.hop_length

    def samples(self, frames: int) -> int:
        """Return the fewest samples that give so many frames."""
        inside = (frames - 1) * self.options.hop_length
        return max(
            1, inside + (self._frame % 2 if self.options.center else self._frame)
        )

    def features(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 of shape [count(n), bins]."""
        options = self.options
        power = self._powers(
            self._padded(samples.astype(np.float64)), self.count(len(samples))
        )
        values = _logarithm(power, options)
        if self._cosines is not None:
            values = values @ self._cosines
        if options.normalize != "none":
            axis = 0 if options.normalize == "per-bin" else None
            values = (values - values.mean(axis=axis)) / np.sqrt(
                values.var(axis=axis) + 1e-7
            )
        return np.asarray(
            (values - np.array(options.mean)) / np.array(options.std), np.float32
        )

    def _padded(self, samples: Array) -> Array:
        options = self.options
        if options.preemphasis and len(samples) and not options.kaldi:
            samples = np.concatenate(
                [samples[:1], samples[1:] - options.preemphasis * samples[:-1]]
            )
        if options.center:
            mode = (
                "reflect"
                if options.pad_mode == "reflect" and len(samples)
                else "constant"
            )
            samples = np.pad(samples, self._frame // 2, mode=mode)  # type: ignore[call-overload]
        return np.pad(samples, (0, max(0, self._frame - len(samples))))

    def _powers(self, samples: Array, count: int) -> Array:
        """Return powers of all frames, of shape [count, bins]; for MFCC those of the mel bands."""
        options = self.options
        frames = np.lib.stride_tricks.sliding_window_view(samples, self._frame)[
            :: options.hop_length
        ][:count]
        result = np.empty(
            (count, options.n_fft // 2 + 1 if self._filters is None else options.n_mels)
        )
        step = max(1, BLOCK // options.n_fft)
        for start in cancellable(range(0, count, step)):
            block = frames[start : start + step]
            if options.kaldi:
                block = _emphasised(
                    block - block.mean(axis=1, keepdims=True), options.preemphasis
                )
            spectrum = np.abs(np.fft.rfft(block * self._window, options.n_fft))
            powers = spectrum if options.power == 1 else spectrum**options.power
            result[start : start + step] = (
                powers if self._filters is None else powers @ self._filters
            )
        return result


def _emphasised(frames: Array, factor: float) -> Array:
    """Return frames [count, length] with pre-emphasis inside each; the first sample counts as its own predecessor."""
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    emphasised: Array = frames - factor * before
    return emphasised


def _mel_edges(options: SpectrogramOptions, rate: int) -> tuple[Array, Array]:
    """Return where bands begin, are highest and end, [n_mels + 2], in mel and in Hz."""
    top = rate / 2 if options.f_max is None else options.f_max
    low, high = (
        _mel_of(np.array(hertz), options.mel_scale) for hertz in (options.f_min, top)
    )
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
    return (
        weights * (2.0 / (edges_hz[2:] - edges_hz[:-2]))
        if options.norm == "slaney"
        else weights
    )


def cosines(bands: int, coefficients: int) -> Array:
    """Return the cosine transform, type 2 and orthonormal, of shape [bands, coefficients]."""
    angles = (
        (np.arange(bands)[:, None] + 0.5) * np.arange(coefficients) * (np.pi / bands)
    )
    table: Array = np.cos(angles) * math.sqrt(2.0 / bands)
    table[:, 0] /= math.sqrt(2.0)
    return table


def _window(options: SpectrogramOptions, frame: int) -> Array:
    """Return the window's weights, in the middle of a frame that is longer."""
    length = options.win_length
    cosine = np.cos(
        np.arange(length)
        * (2 * np.pi / (length if options.periodic else max(1, length - 1)))
    )
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
    return (
        values
        if options.top_db is None
        else np.maximum(values, values.max() - options.top_db * unit / decibels)
    )


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
    """The place of a spectrogram in an input."""

    frames: int | None  # that the model takes; None for any number
    swapped: bool  # bins come before frames
    shape: tuple[
        int, ...
    ]  # of the input; -1 stands for the frames, or for all numbers in one dimension

    def arrange(self, features: Array) -> Array:
        """Return features [frames or more, bins] in the input's shape; surplus frames at the end are left out."""
        table = features[: self.frames]
        return np.ascontiguousarray(table.T if self.swapped else table).reshape(
            self.shape
        )


def feature_layout(spec: TensorSpec, options: SpectrogramOptions) -> FeatureLayout:
    """Derive the layout from an input's shape, and from ``layout`` and ``frames`` where it leaves a choice."""
    bins = options.bins
    if spec.open:
        swapped = options.layout == "bins-frames"
        return FeatureLayout(
            options.frames, swapped, (1, bins, -1) if swapped else (1, -1, bins)
        )
    orders = (
        (False, True) if options.layout is None else (options.layout == "bins-frames",)
    )
    layouts = [*_tables(spec.shape, bins, orders)]
    large = [axis for axis, size in enumerate(spec.shape) if size > 1]
    small = [size for size in spec.shape if size <= 1]
    if (
        not layouts
        and len(large) == 1
        and 0 not in small
        and all(size == 1 for size in small[1:])
    ):
        count, rest = divmod(
            spec.shape[large[0]], bins
        )  # frames and bins in one dimension
        flat = tuple(-1 if size > 1 else 1 for size in spec.shape)
        layouts = [] if rest else [FeatureLayout(count, orders[0], flat)]
    shape = f"shape {list(spec.shape)} of input {spec.name!r}"
    if not layouts:
        raise ModelLoadError(
            f"model.toml: {shape} has no place for {bins} bins a frame; check n_mels, n_mfcc, n_fft and layout "
            f"in [spectrogram]"
        )
    best = layouts[0]
    if options.frames is not None and best.frames not in (None, options.frames):
        raise ModelLoadError(
            f"model.toml: spectrogram.frames is {options.frames}, but {shape} takes {best.frames} frames of "
            f"{bins} bins; leave the key out"
        )
    if (
        len(
            {
                layout.swapped
                for layout in layouts
                if layout.frames == best.frames == bins
            }
        )
        > 1
    ):
        raise ModelLoadError(
            f"model.toml: {shape} fits both ways: say spectrogram.layout, frames-bins or bins-frames"
        )
    return best if best.frames is not None else best._replace(frames=options.frames)


def _tables(
    shape: tuple[int, ...], bins: int, orders: Sequence[bool]
) -> Iterator[FeatureLayout]:
    """Yield layouts in two dimensions, those with a fixed one for bins first; all others are 1, or an open batch."""
    axes = range(len(shape))
    for size, swapped, pair in itertools.product(
        (bins, -1), orders, itertools.combinations(axes, 2)
    ):
        rest = [shape[axis] for axis in axes if axis not in pair]
        rest = rest[1:] if pair[0] > 0 and shape[0] == -1 else rest
        frame_axis, bin_axis = pair[::-1] if swapped else pair
        frames = shape[frame_axis]
        if shape[bin_axis] == size and frames and all(length == 1 for length in rest):
            places = {frame_axis: -1, bin_axis: bins}
            yield FeatureLayout(
                frames if frames > 0 else None,
                swapped,
                tuple(places.get(axis, 1) for axis in axes),
            )


class Features(Spectrogram):
    """A spectrogram and its place in an input."""

    def __init__(
        self, options: SpectrogramOptions, rate: int, spec: TensorSpec
    ) -> None:
        super().__init__(options, rate)
        self._layout = feature_layout(spec, options)

    def window(self, window: int | None, context: int) -> int | None:
        """Return the samples of a window: the manifest's, else the fewest that give the model's frames."""
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
        """Return the numbers that are made of so many samples; for MFCC the mel bands, which are more."""
        return self.count(samples) * (
            self.options.n_mels if self.options.kind == "mfcc" else self.options.bins
        )

    def array(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 in the input's shape."""
        return self._layout.arrange(self.features(samples))

    def describe(self) -> str:
        """Return the features in words, for model cards."""
        options = self.options
        name = "MFCC" if options.kind == "mfcc" else options.kind
        logarithmic = "log-" if options.log != "none" and options.kind != "mfcc" else ""
        return f"{logarithmic}{name} spectrogram of {options.bins} bins, every {options.hop_length} samples"


class FilledFeatures(Features):
    """A spectrogram of a whole sound, cut or filled up to a number of frames with zeros before normalisation."""

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
    """Set up by the manifest's ``[spectrogram]``, else by the files beside the model; None where there is neither."""
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
    if options.kind != "linear" and any(
        (np.diff(edges) <= 0).any() for edges in _mel_edges(options, rate)
    ):
        raise ModelLoadError(
            f"model.toml: spectrogram.f_min leaves no room for {options.n_mels} bands below "
            f"{options.f_max or rate / 2:g} Hz"
        )
