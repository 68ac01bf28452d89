"""Describe models whose graph rescales pixels from 0..255 itself."""

from __future__ import annotations

from collections.abc import Sequence

from pocketserve.runtimes.metadata import ModelMetadata, TensorMetadata

MIN_DIVISOR = 50.0
"""The smallest divisor or mean that only pixels from 0 to 255 need; ImageNet's std is 57."""

MAX_DIVISOR = 300.0
"""A larger one is for other numbers, such as pixels of 16 bits."""


def takes_pixels(mean: Sequence[float], std: Sequence[float]) -> bool:
    """Return whether (x - mean) / std is meant for pixels from 0 to 255."""
    if std:
        divisors = [abs(value) for value in std]
        return min(divisors) >= MIN_DIVISOR and max(divisors) <= MAX_DIVISOR
    return bool(mean) and min(map(abs, mean)) >= MIN_DIVISOR


def pixels_unchanged() -> ModelMetadata:
    """Return the metadata of a model with one input that takes pixels from 0 to 255."""
    from pocketserve.runtimes.metadata_parts import Normalization  # late: few need it

    unit = Normalization((0.0,), (1.0,))
    return ModelMetadata(inputs=(TensorMetadata("", process_units=(unit,)),))
