"""Intermediate results of a model, for finding a faulty layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pocketserve.tensors import Array


class LayerOutput(NamedTuple):
    """A result of one operator or module, in execution order.

    Attributes:
        array: real numbers; a quantised tensor is dequantised.
        quantized: whether the tensor or its weights were integers.
    """

    name: str
    operator: str
    array: Array
    quantized: bool = False


RunLayers = Callable[[Mapping[str, Array]], list[LayerOutput]]
"""Run a model on inputs by name and return all numeric intermediate results."""
