"""Learns from runs on zeros what a model's file does not tell of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array, TensorSpec, zeros

_SIZES = (
    1,
    3,
)  # free dimensions of the runs: what differs between them depends on the caller


class Probe(NamedTuple):
    """Results of runs on zeros."""

    results: Sequence[Mapping[str, Array]]
    least_known: (
        float  # smaller sizes may follow from the caller's sizes, or from values
    )

    def learned(self, spec: TensorSpec) -> TensorSpec:
        """Return an output's spec with the shape that all runs agree on."""
        shapes = [result[spec.name].shape for result in self.results]
        if len({len(shape) for shape in shapes}) != 1:
            return spec._replace(shape=(-1,))
        columns = [set(sizes) for sizes in zip(*shapes, strict=True)]
        agreed = (
            min(sizes) if len(sizes) == 1 and min(sizes) >= self.least_known else -1
            for sizes in columns
        )
        return spec._replace(shape=tuple(agreed))


def run_on_zeros(
    run: Callable[[dict[str, Array]], Mapping[str, Array]], inputs: Sequence[TensorSpec]
) -> Probe | None:
    """Run a model on zeros, twice where inputs have free dimensions; return None for one that takes no zeros."""
    sizes = (
        _SIZES if any(spec.open or -1 in spec.shape for spec in inputs) else _SIZES[:1]
    )
    results = {}
    for size in sizes:
        arrays = {
            s.name: zeros(
                s._replace(shape=tuple(size if dim < 0 else dim for dim in s.shape))
            )
            for s in inputs
        }
        try:
            results[size] = run(arrays)
        except ModelLoadError:  # a result cannot be served
            raise
        except (
            Exception
        ):  # frameworks raise anything on sizes that a model does not take
            continue
    if not results:
        return None
    # Where only sizes of 1 worked, greater ones are the model's own; where only others did, only the rank is sure.
    least_known = 1 if len(results) == len(sizes) else 2 if 1 in results else math.inf
    return Probe([*results.values()], least_known)
