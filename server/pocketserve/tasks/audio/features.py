"""The spectrogram that a model takes instead of samples: a window of sound as its input's array."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.options import SpectrogramOptions
from pocketserve.tasks.audio.spectrogram import Spectrogram, mel_bands_are_apart
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec


class FeatureLayout(NamedTuple):
    """The place of a spectrogram in an input.

    Attributes:
        frames: that the model takes; None for any number.
        swapped: bins come before frames.
        axes: of frames and bins in either order, or the one that holds both; all others are 1.
    """

    frames: int | None
    swapped: bool
    rank: int = 3
    axes: tuple[int, ...] = (1, 2)

    def arrange(self, features: Array) -> Array:
        """Return features [frames or more, bins] in the input's shape; surplus frames at the end are left out."""
        table = features[: self.frames]
        table = np.ascontiguousarray(table.T if self.swapped else table)
        shape = [1] * self.rank
        for axis, size in zip(self.axes, table.shape if len(self.axes) == 2 else (table.size,), strict=True):
            shape[axis] = size
        return table.reshape(shape)


def feature_layout(spec: TensorSpec, options: SpectrogramOptions) -> FeatureLayout:
    """Derive the layout from an input's shape, and from ``layout`` and ``frames`` where it leaves a choice.

    Raises:
        ModelLoadError: the shape has no room for so many bins or for another number of frames, or both layouts fit.
    """
    bins = options.bins
    if spec.open:
        return FeatureLayout(options.frames, options.layout == "bins-frames")
    orders = (False, True) if options.layout is None else (options.layout == "bins-frames",)
    layouts = [layout for size in (bins, -1) for swapped in orders for layout in _tables(spec.shape, size, swapped)]
    layouts += [layout for swapped in orders for layout in _flat(spec.shape, bins, swapped)]
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
    if len({layout.swapped for layout in layouts if layout.frames == best.frames == bins and len(layout.axes) > 1}) > 1:
        raise ModelLoadError(f"model.toml: {shape} fits both ways: say spectrogram.layout, frames-bins or bins-frames")
    return best if best.frames is not None else best._replace(frames=options.frames)


def _tables(shape: tuple[int, ...], size: int, swapped: bool) -> Iterator[FeatureLayout]:
    """Yield layouts with bins in a dimension of that size; others than bins and frames are 1, or an open batch."""
    for first, second in itertools.combinations(range(len(shape)), 2):
        rest = [length for axis, length in enumerate(shape) if axis not in (first, second)]
        rest = rest[1:] if first > 0 and shape[0] == -1 else rest
        bins, frames = (shape[first], shape[second]) if swapped else (shape[second], shape[first])
        if bins == size and frames and all(length == 1 for length in rest):
            yield FeatureLayout(frames if frames > 0 else None, swapped, len(shape), (first, second))


def _flat(shape: tuple[int, ...], bins: int, swapped: bool) -> Iterator[FeatureLayout]:
    """Yield the layout with frames and bins in one dimension."""
    large = [axis for axis, size in enumerate(shape) if size > 1]
    rest = [size for size in shape if size <= 1]
    if len(large) == 1 and shape[large[0]] % bins == 0 and all(size == 1 for size in rest[1:]) and 0 not in rest:
        yield FeatureLayout(shape[large[0]] // bins, swapped, len(shape), (large[0],))


class Features:
    """A spectrogram and its place in the input."""

    def __init__(self, spectrogram: Spectrogram, layout: FeatureLayout) -> None:
        self._spectrogram = spectrogram
        self._layout = layout

    def window(self, window: int | None, context: int) -> int | None:
        """Return the samples of a window: the manifest's, else the fewest that give the model's frames.

        Raises:
            ModelLoadError: the manifest's are too few.
        """
        frames = self._layout.frames
        if frames is None:
            return window
        fewest = self._spectrogram.samples(frames)
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
        options = self._spectrogram.options
        return self._spectrogram.count(samples) * max(options.bins, options.n_mels if options.kind == "mfcc" else 0)

    def array(self, samples: Array) -> Array:
        """Return the features of samples [n], float32 in the input's shape."""
        return self._layout.arrange(self._spectrogram.features(samples))

    def describe(self) -> str:
        """Return the features in words, for model cards."""
        options = self._spectrogram.options
        name = "MFCC" if options.kind == "mfcc" else options.kind
        logarithmic = "log-" if options.log != "none" and options.kind != "mfcc" else ""
        return f"{logarithmic}{name} spectrogram of {options.bins} bins, every {options.hop_length} samples"


def features_of(facts: ModelFacts, spec: TensorSpec, rate: int, channels: int) -> Features | None:
    """Set up by the manifest's ``[spectrogram]``; None where there is none.

    Raises:
        ModelLoadError: it does not go with the model.
    """
    options: SpectrogramOptions | None = facts.manifest.sections.get(SpectrogramOptions)
    if options is None:
        return None
    if channels != 1:
        raise ModelLoadError(f"model.toml: [spectrogram] is of one channel; audio.channels is {channels}")
    if (options.f_max or 0) > rate / 2:
        raise ModelLoadError(f"model.toml: spectrogram.f_max is above half the sampling rate, {rate / 2:g} Hz")
    if options.kind != "linear" and not mel_bands_are_apart(options, rate):
        raise ModelLoadError(
            f"model.toml: spectrogram.f_min leaves no room for {options.n_mels} bands below "
            f"{options.f_max or rate / 2:g} Hz"
        )
    return Features(Spectrogram(options, rate), feature_layout(spec, options))
