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
# Slaney's scale is linear up to 1 kHz, which is 15 mel, and logarithmic above.
_BREAK_HZ = 1000.0
_BREAK_MEL = 15.0
_STEP = math.log(6.4) / 27.0
_FIRST_TERMS = {
    "hann": 0.5,
    "hamming": 0.54,
    "ones": 1.0,
}
"""The constant term of each window's cosine sum."""


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
        last = self._frame
        if self.options.center:
            last = self._frame % 2
        before_last = (frames - 1) * self.options.hop_length
        return max(1, before_last + last)

    def features(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 of shape [count(n), bins]."""
        options = self.options
        padded = self._padded(samples.astype(np.float64))
        count = self.count(len(samples))
        powers = self._powers(padded, count)
        values = _logarithm(powers, options)
        if self._cosines is not None:
            values = values @ self._cosines
        if options.normalize == "per-bin":
            values = _standardized(values, axis=0)
        elif options.normalize != "none":
            values = _standardized(values, axis=None)
        mean = np.array(options.mean)
        std = np.array(options.std)
        values = (values - mean) / std
        return np.asarray(values, np.float32)

    def _padded(self, samples: Array) -> Array:
        """Return samples after pre-emphasis, with borders, at least one frame long."""
        options = self.options
        if options.preemphasis and len(samples) and not options.kaldi:
            before = samples[:-1]
            emphasised = samples[1:] - options.preemphasis * before
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
            end = start + step
            result[start:end] = self._block_powers(frames[start:end])
        return result

    def _block_powers(self, block: Array) -> Array:
        """Return the powers of some frames."""
        options = self.options
        if options.kaldi:
            centred = block - block.mean(axis=1, keepdims=True)
            block = _emphasised(centred, options.preemphasis)
        windowed = block * self._window
        powers: Array = np.abs(np.fft.rfft(windowed, options.n_fft))
        if options.power != 1:
            powers = powers**options.power
        if self._filters is not None:
            powers = powers @ self._filters
        return powers


def _standardized(values: Array, axis: int | None) -> Array:
    """Return values with mean 0 and deviation 1 along an axis, or in all."""
    deviation = np.sqrt(values.var(axis=axis) + EPSILON)
    return np.asarray((values - values.mean(axis=axis)) / deviation)


def _emphasised(frames: Array, factor: float) -> Array:
    """Apply pre-emphasis to each frame; its first sample is its own predecessor."""
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    emphasised: Array = frames - factor * before
    return emphasised


def _mel_edges(options: SpectrogramOptions, rate: int) -> tuple[Array, Array]:
    """Return the bands' starts, peaks and ends, [n_mels + 2], in mel and in Hz."""
    scale = options.mel_scale
    highest = options.f_max
    if highest is None:
        highest = rate / 2
    low_mel = _mel_of(np.array(options.f_min), scale)
    high_mel = _mel_of(np.array(highest), scale)
    edges = np.linspace(low_mel, high_mel, options.n_mels + 2)
    return edges, _hertz_of(edges, scale)


def mel_filters(options: SpectrogramOptions, rate: int) -> Array:
    """Return the weights of the FFT's bins in the bands, [n_fft // 2 + 1, n_mels]."""
    edges, edges_hz = _mel_edges(options, rate)
    bin_width = rate / options.n_fft
    positions = np.arange(options.n_fft // 2 + 1) * bin_width
    corners = edges_hz
    if options.triangles == "mel":
        positions = _mel_of(positions, options.mel_scale)
        corners = edges
    starts = corners[:-2]
    ends = corners[2:]
    widths = np.diff(corners)
    rising = (positions[:, None] - starts) / widths[:-1]
    falling = (ends - positions[:, None]) / widths[1:]
    triangles = np.minimum(rising, falling)
    weights: Array = np.maximum(0.0, triangles)
    if options.norm == "slaney":
        widths_hz = edges_hz[2:] - edges_hz[:-2]
        weights = weights * (2.0 / widths_hz)
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
    period = length
    if not options.periodic:
        period = max(1, length - 1)
    angles = np.arange(length) * (2 * np.pi / period)
    first = _FIRST_TERMS[options.window]
    weights = first - (1 - first) * np.cos(angles)
    before = (frame - length) // 2
    after = frame - length - before
    return np.pad(weights, (before, after))


def _logarithm(power: Array, options: SpectrogramOptions) -> Array:
    """Return powers on the scale of the option ``log``."""
    if options.log == "none":
        return power
    decibels = 10.0  # per power of ten
    if options.power == 1:
        decibels = 20.0
    units = {
        "natural": math.log(10),
        "log10": 1.0,
        "db": decibels,
    }
    unit = units[options.log]
    raised = np.maximum(power + options.log_offset, options.log_floor)
    values = np.log10(raised) * unit
    if options.ref == "max":
        values = values - values.max()
    if options.top_db is not None:
        span = options.top_db * unit / decibels
        values = np.maximum(values, values.max() - span)
    return values


def _mel_of(hertz: Array, scale: str) -> Array:
    """Return frequencies on a mel scale: HTK's, or Slaney's with a linear part."""
    if scale == "htk":
        ratio = 1.0 + hertz / 700.0
        return np.asarray(2595.0 * np.log10(ratio))
    linear = hertz * (_BREAK_MEL / _BREAK_HZ)
    octaves = np.log(np.maximum(hertz, _BREAK_HZ) / _BREAK_HZ)
    logarithmic = _BREAK_MEL + octaves / _STEP
    return np.where(hertz >= _BREAK_HZ, logarithmic, linear)


def _hertz_of(mel: Array, scale: str) -> Array:
    """Return frequencies of a mel scale in Hz: the inverse of :func:`_mel_of`."""
    if scale == "htk":
        ratio = 10.0 ** (mel / 2595.0)
        return np.asarray(700.0 * (ratio - 1.0))
    linear = mel * (_BREAK_HZ / _BREAK_MEL)
    steps = np.maximum(mel, _BREAK_MEL) - _BREAK_MEL
    exponential = _BREAK_HZ * np.exp(_STEP * steps)
    return np.where(mel >= _BREAK_MEL, exponential, linear)


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
    layouts = _fitting_layouts(spec.shape, options)
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
    if best.frames == bins and _fit_both_ways(layouts, bins):
        raise ModelLoadError(
            f"model.toml: {shape} fits both ways: set spectrogram.layout to frames-bins "
            "or bins-frames"
        )
    return best


def _fitting_layouts(
    shape: tuple[int, ...], options: SpectrogramOptions
) -> list[FeatureLayout]:
    """Return the layouts that fit a shape, the most likely first."""
    orders = [False, True]
    if options.layout is not None:
        orders = [options.layout == "bins-frames"]
    layouts = list(_table_layouts(shape, options.bins, orders))
    if layouts:
        return layouts
    return _flat_layouts(shape, options.bins, orders[0])


def _fit_both_ways(layouts: Sequence[FeatureLayout], bins: int) -> bool:
    """Return whether square layouts of both orders fit."""
    orders = set()
    for layout in layouts:
        if layout.frames == bins:
            orders.add(layout.swapped)
    return len(orders) > 1


def _flat_layouts(
    shape: tuple[int, ...], bins: int, swapped: bool
) -> list[FeatureLayout]:
    """Return the layout with frames and bins in one dimension, if it fits."""
    large = []
    small = []
    flat = []
    for size in shape:
        if size > 1:
            large.append(size)
            flat.append(-1)
        else:
            small.append(size)
            flat.append(1)
    # A batch may be open; all other sizes are 1.
    if len(large) != 1 or 0 in small or any(size != 1 for size in small[1:]):
        return []
    count, rest = divmod(large[0], bins)
    if rest:
        return []
    return [FeatureLayout(count, swapped, tuple(flat))]


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
        if shape[bin_axis] != size or not frames:
            continue
        if not _others_are_one(shape, pair):
            continue
        arranged = [1] * len(shape)
        arranged[frame_axis] = -1
        arranged[bin_axis] = bins
        count = None
        if frames > 0:
            count = frames
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
        bins = options.bins
        if options.kind == "mfcc":
            bins = options.n_mels
        return self.count(samples) * bins

    def array(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 in the input's shape."""
        return self._layout.arrange(self.features(samples))

    def describe(self) -> str:
        """Describe the features for model cards."""
        options = self.options
        name = options.kind
        if options.kind == "mfcc":
            name = "MFCC"
        elif options.log != "none":
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
