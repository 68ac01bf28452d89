"""Random input of a model's shapes, for measurements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pocketserve.tensors import Array, random_array
from pocketserve.terminal.errors import CommandError

MAX_ELEMENTS = 1 << 26


def random_inputs(specs: Any, seed: int = 0) -> dict[str, Array]:
    """Return a random array for each input, by :func:`random_array`."""
    random = np.random.default_rng(seed)
    for spec in specs:
        shape = [max(1, size) for size in spec.shape]
        if math.prod(shape) > MAX_ELEMENTS:
            raise CommandError(
                f"input {spec.name!r} of shape {shape} is too large "
                "to be measured with random values"
            )
    return {spec.name: random_array(spec, random) for spec in specs}
