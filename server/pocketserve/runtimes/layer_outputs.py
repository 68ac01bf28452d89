"""Intermediate results of a model: what a format's ``layers`` gives, for finding the layer at fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pocketserve.tensors import Array


class LayerOutput(NamedTuple):
    """A result of one operator or module, in the order in which they ran.

    Attributes:
        array: real numbers; those of a quantised tensor are what its integers stand for.
        quantized: whether they were integers, or were made of weights that were.
    """

    name: str
    operator: str
    array: Array
    quantized: bool = False


RunLayers = Callable[[Mapping[str, Array]], list[LayerOutput]]
"""Run a model on inputs by the session's names, and return all its intermediate results that are numbers."""
