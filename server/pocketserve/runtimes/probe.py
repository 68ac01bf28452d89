"""Determine unknown output shapes by running a model on zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
        if len({len(shape) for shape in shapes}) != 1:
            return spec._replace(shape=(-1,))
        columns = [set(sizes) for sizes in zip(*shapes, strict=True)]
        agreed = []
        for sizes in columns:
            size = min(sizes)
            is_fixed = len(sizes) == 1 and size >= self.least_known
            agreed.append(size if is_fixed else -1)
        return spec._replace(shape=tuple(agreed))


def run_on_zeros(
    run: Callable[[dict[str, Array]], Mapping[str, Array]], inputs: Sequence[TensorSpec]
) -> Probe | None:
    """Run a model on zeros; return None if all runs fail.

    A model with free input dimensions runs once with each of two sizes.
    """
    has_free_sizes = any(spec.open or -1 in spec.shape for spec in inputs)
    sizes = _SIZES if has_free_sizes else _SIZES[:1]
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
    least_known = math.inf  # only the rank is certain
    if len(results) == len(sizes):
        least_known = 1.0
    elif 1 in results:
        # Only size 1 worked: larger output sizes can't come from the input.
        least_known = 2.0
    return Probe([*results.values()], least_known)


def _sized_zeros(inputs: Sequence[TensorSpec], size: int) -> dict[str, Array]:
    arrays = {}
    for spec in inputs:
        shape = tuple(size if dim < 0 else dim for dim in spec.shape)
        arrays[spec.name] = zeros(spec._replace(shape=shape))
    return arrays
