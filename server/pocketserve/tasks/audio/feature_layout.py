"""Where the frames and bins of a spectrogram lie in a model's input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.spectrogram_options import SpectrogramOptions
from pocketserve.tensors import Array, TensorSpec

LAYOUTS = ("frames-bins", "bins-frames")


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """How features become an input's array.

    Attributes:
        frames: that the model takes; None for any number.
        swapped: bins come before frames.
        front, behind: dimensions of 1 around the two, and between them where they are not neighbours.
        flat: frames and bins are one dimension.
    """

    frames: int | None
    swapped: bool
    front: int = 1
    between: int = 0
    behind: int = 0
    flat: bool = False

    def arrange(self, features: Array) -> Array:
        """Features of shape [frames or more, bins] in the input's shape; surplus frames at the end are left out."""
        kept = features[: self.frames]
        kept = kept.T if self.swapped else kept
        inner = (kept.size,) if self.flat else (kept.shape[0], *(1,) * self.between, kept.shape[1])
        return np.ascontiguousarray(kept).reshape((1,) * self.front + inner + (1,) * self.behind)


def feature_layout(spec: TensorSpec, options: SpectrogramOptions) -> FeatureLayout:
    """Tell from an input's shape, and from ``layout`` and ``frames`` of the manifest where it leaves a choice.

    Raises:
        ModelLoadError: the shape has no room for so many bins or for another number of frames, or both layouts fit.
    """
    if spec.open:
        return FeatureLayout(options.frames, options.layout == LAYOUTS[1])
    ways = (False, True) if options.layout is None else (options.layout == LAYOUTS[1],)
    found = [place for size in (options.bins, -1) for swapped in ways for place in _places(spec.shape, size, swapped)]
    found += [place for swapped in ways for place in _flat_places(spec.shape, options.bins, swapped)]
    shape = f"shape {list(spec.shape)} of input {spec.name!r}"
    if not found:
        raise ModelLoadError(
            f"model.toml: {shape} has no place for {options.bins} bins a frame; check n_mels, n_mfcc, n_fft and layout "
            f"in [spectrogram]"
        )
    best = found[0]
    if options.frames is not None and best.frames not in (None, options.frames):
        raise ModelLoadError(
            f"model.toml: spectrogram.frames is {options.frames}, but {shape} takes {best.frames} frames of "
            f"{options.bins} bins; leave the key out"
        )
    exact = [place for place in found if place.frames == best.frames == options.bins and not place.flat]
    if len({place.swapped for place in exact}) > 1:
        raise ModelLoadError(f"model.toml: {shape} fits both ways: say spectrogram.layout, {' or '.join(LAYOUTS)}")
    if best.frames is not None or options.frames is None:
        return best
    return FeatureLayout(options.frames, best.swapped, best.front, best.between, best.behind, best.flat)


def _places(shape: tuple[int, ...], size: int, swapped: bool) -> Iterator[FeatureLayout]:
    """Ways to put frames, and bins in a dimension of that size, into a shape; the others are 1, or an open batch."""
    for first, second in itertools.combinations(range(len(shape)), 2):
        rest = [length for axis, length in enumerate(shape) if axis not in (first, second)]
        rest = rest[1:] if first > 0 and shape[0] == -1 else rest
        bins, frames = (shape[first], shape[second]) if swapped else (shape[second], shape[first])
        if bins == size and frames and all(length == 1 for length in rest):
            maximum = frames if frames > 0 else None
            yield FeatureLayout(maximum, swapped, first, second - first - 1, len(shape) - second - 1)


def _flat_places(shape: tuple[int, ...], bins: int, swapped: bool) -> Iterator[FeatureLayout]:
    """The way to put frames and bins into one dimension."""
    large = [axis for axis, size in enumerate(shape) if size > 1]
    others = [size for axis, size in enumerate(shape) if axis not in large]
    if len(large) == 1 and shape[large[0]] % bins == 0 and all(size == 1 for size in others[1:]) and 0 not in others:
        (axis,) = large
        yield FeatureLayout(shape[axis] // bins, swapped, axis, 0, len(shape) - axis - 1, flat=True)
