"""Determine unknown output shapes by running a model on zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array, TensorSpec, zeros

# Sizes of free dimensions, one run each. An output size that differs between the runs
# depends on the input.
_SIZES = (1, 3)


class Probe(NamedTuple):
    """Results of runs on zeros."""

    results: Sequence[Mapping[str, Array]]
    # Smaller output sizes may depend on the input's sizes or values.
    least_known: float

    def learned(self, spec: TensorSpec) -> TensorSpec:
        """Return an output's spec with the dimensions equal in all runs."""
        shapes = [result[spec.name].shape for result in self.results]
        ranks = {len(shape) for shape in shapes}
        if len(ranks) != 1:
            return spec._replace(shape=(-1,))
        agreed = []
        for sizes in zip(*shapes, strict=True):
            smallest = min(sizes)
            is_equal = smallest == max(sizes)
            if is_equal and smallest >= self.least_known:
                agreed.append(smallest)
            else:
                agreed.append(-1)
        return spec._replace(shape=tuple(agreed))


def run_on_zeros(
    run: Callable[[dict[str, Array]], Mapping[str, Array]], inputs: Sequence[TensorSpec]
) -> Probe | None:
    """Run a model on zeros; return None if all runs fail.

    A model with free input dimensions runs once with each of two sizes.
    """
    sizes: Sequence[int] = _SIZES[:1]
    if any(spec.open or -1 in spec.shape for spec in inputs):
        sizes = _SIZES
    results = {}
    for size in sizes:
        try:
            results[size] = run(_sized_zeros(inputs, size))
        except ModelLoadError:  # a result cannot be served
            raise
        except Exception:  # frameworks raise anything for a size that doesn't fit
            continue
    if not results:
        return None
    return Probe([*results.values()], _least_known(results, sizes))


def _least_known(results: Mapping[int, Any], sizes: Sequence[int]) -> float:
    """Return the smallest output size that is certain if all runs agree on it."""
    if len(results) == len(sizes):
        return 1.0
    if 1 in results:
        # Only size 1 worked: larger output sizes can't come from the input.
        return 2.0
    return math.inf  # only the rank is certain


def _sized_zeros(inputs: Sequence[TensorSpec], size: int) -> dict[str, Array]:
    """Return zeros for all inputs, with a size for free dimensions."""
    arrays = {}
    for spec in inputs:
        shape = []
        for dim in spec.shape:
            if dim < 0:
                shape.append(size)
            else:
                shape.append(dim)
        arrays[spec.name] = zeros(spec._replace(shape=tuple(shape)))
    return arrays
