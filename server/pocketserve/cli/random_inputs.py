"""Random input of a model's own shape, for measuring it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketserve.cli import CommandError
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

MAX_ELEMENTS = 1 << 26


def random_inputs(specs: Any, seed: int = 0) -> dict[str, Array]:
    """Return a random array for each input; free dimensions are 1, floats lie in [0, 1), texts are short words."""
    random = np.random.default_rng(seed)
    return {spec.name: _random_input(spec, random) for spec in specs}


def _random_input(spec: TensorSpec, random: np.random.Generator) -> Array:
    shape = tuple(max(1, size) for size in spec.shape)
    if int(np.prod(shape, dtype=np.float64)) > MAX_ELEMENTS:
        raise CommandError(f"input {spec.name!r} of shape {list(shape)} is too large to be measured with random values")
    if spec.datatype == "BYTES":
        return np.full(shape, b"word", dtype=object)
    dtype = np.dtype(DATATYPES[spec.datatype].typestr)
    if dtype.kind == "f":
        return random.random(shape, np.float32).astype(dtype)
    if dtype == np.uint8:
        return random.integers(0, 256, shape, np.uint8)
    return random.integers(0, 2, shape).astype(dtype)  # indices, such as tokens: small ones are always good
