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


def rescales_pixels(
    operator: str, constant: Sequence[float], comes_first: bool
) -> bool:
    """Return whether an operator of a picture and a constant rescales pixels.

    Args:
        operator: ``add``, ``div``, ``mul`` or ``sub``; others don't.
        comes_first: whether the constant is the first operand.
    """
    if not constant or 0 in constant:
        return False
    if operator == "mul":
        return takes_pixels((), [1 / value for value in constant])
    if operator == "add":
        return max(constant) < 0 and takes_pixels(constant, ())
    if comes_first:
        return False
    if operator == "div":
        return takes_pixels((), constant)
    return operator == "sub" and min(constant) > 0 and takes_pixels(constant, ())


def pixels_unchanged() -> ModelMetadata:
    """Return the metadata of a model with one input that takes pixels from 0 to 255."""
    from pocketserve.runtimes.metadata_parts import Normalization  # late: few need it

    unit = Normalization((0.0,), (1.0,))
    pixels = TensorMetadata("", process_units=(unit,))
    return ModelMetadata(inputs=(pixels,), is_from_operators=True)
