"""Find and explain the first difference between two versions' layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.inference.inputs import collect
from pocketserve.messages import plural
from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.layer_outputs import RunLayers
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tensors import Array, dequantize, to_tensor
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.output import print_table, print_text, terminal_columns
from pocketserve_lab.compare.alignment import Layer, LayerPair, align, layouts_of
from pocketserve_lab.compare.causes import Cause, explain, overflow, rounding
from pocketserve_lab.compare.samples import DataSample, Facts, facts_of, read_samples
from pocketserve_lab.compare.session import Plan
from pocketserve_lab.random_inputs import random_inputs

BOUND = 0.02
QUANTIZED_BOUND = 0.1
"""Relative differences allowed between layers.

The second bound applies if one of the versions is quantised."""

STEP = 3.0
"""Growth factor from layer to layer that accumulated rounding does not explain."""

RESCALING = frozenset(
    {
        "mul",
        "add",
        "sub",
        "div",
        "transpose",
        "cast",
        "identity",
        "quantize",
        "dequantize",
        "neg",
    }
)
MAX_SAMPLES = 8
MAX_NUMBERS = 1 << 25
"""Numbers in all layers and samples of a version.

With large layers, fewer samples are run."""

RANDOM_SAMPLES = 4
SHOWN_BEFORE = 3
SHOWN_AFTER = 4
LEAST_CELL = 14
MAX_CELL = 48
OTHER_CELLS = 34
"""Columns of the terminal that the table needs besides the names of layers."""


InputChange = Callable[[Array], Array]


class _TracedVersion(NamedTuple):
    """A loaded version whose layers are read.

    Attributes:
        inputs: the real arrays of each sample, by the names that clients use.
        limit: number of samples to run.
    """

    model: LoadedModel
    run: RunLayers
    inputs: list[dict[str, Array]]
    limit: int

    def layers(self, change: InputChange | None = None) -> list[Layer]:
        """Run all samples, with the first input changed.

        Returns the layers, the input first, without those whose shape varies and those
        that only pass numbers on.
        """
        runs = [self._run({**arrays}, change) for arrays in self.inputs[: self.limit]]
        first = runs[0]
        layers = []
        for place, layer in enumerate(first):
            if place + 1 < len(first) and _is_passing(layer, first[place + 1]):
                continue
            arrays = [run[place].array for run in runs]
            if all(array.shape == layer.array.shape for array in arrays):
                layers.append(layer._replace(array=_stack(arrays)))
        return layers

    def _run(self, arrays: dict[str, Array], change: InputChange | None) -> list[Layer]:
        name = next(iter(arrays))
        if change is not None:
            arrays[name] = np.asarray(change(arrays[name]), arrays[name].dtype)
        bindings = self.model.inputs
        tensors = [to_tensor(key, array) for key, array in arrays.items()]
        ready = collect(
            tensors, bindings, row_by_row=False, first_state=self.model.first_state
        )
        outputs = self.run({**ready.state, **ready.arrays})
        real = _real(arrays[name], bindings.by_name[name][0])
        return [Layer(name, "input", real), *(Layer(*output) for output in outputs)]

    def image(self) -> Array | None:
        """Return the first input of all samples, [samples, ...].

        None if it cannot be scaled, or is not one row a sample.
        """
        first = [next(iter(arrays.values())) for arrays in self.inputs[: self.limit]]
        shape = first[0].shape
        if len(shape) < 2 or shape[0] != 1:
            return None
        for array in first:
            if array.dtype.kind != "f" or array.shape != shape:
                return None
        return np.concatenate(first)


def compare_layers(plan: Plan, versions: Sequence[str]) -> dict[str, Any]:
    """Match the layers of two versions, and explain the first difference.

    Returns the matched layers, the first that differ, and the likeliest cause, as plain
    JSON values.

    Raises:
        CommandError: a version has no intermediate results.
        ApiError: a version cannot be loaded, or a sample cannot be decoded.
    """
    service, name, _ = open_local(plan.model, plan.models_dir, threads=plan.threads)
    try:
        with (
            service.running(name, versions[0]) as (entry, first_handle),
            service.running(name, versions[1]) as (_, other_handle),
        ):
            facts = facts_of(entry, first_handle.model)
            samples = _samples(plan, entry.folder, facts)
            first = _trace(first_handle.model, samples)
            other = _trace(other_handle.model, samples)
            limit = min(first.limit, other.limit)
            result = _compare(first._replace(limit=limit), other._replace(limit=limit))
            return {"model": name, "versions": list(versions), **result}
    finally:
        service.close()


def _samples(plan: Plan, folder: Path, facts: Facts) -> list[DataSample]:
    if plan.data is not None:
        return read_samples(plan.data, facts, MAX_SAMPLES)
    own = folder / "samples"
    if not own.is_dir():
        return []
    return read_samples(own, facts, MAX_SAMPLES)


def _trace(model: LoadedModel, samples: Sequence[DataSample]) -> _TracedVersion:
    version = model.version
    if version.format.layers is None:
        raise _unreadable(version)
    run = version.format.layers(model.source)
    inputs = _inputs(model, samples)
    traced = _TracedVersion(model, run, inputs, 1)
    size = sum(layer.array.size for layer in traced.layers())
    limit = max(1, MAX_NUMBERS // size)
    return traced._replace(limit=min(len(inputs), limit))


def _unreadable(version: VersionEntry) -> CommandError:
    """Return the error of a format whose layers cannot be read."""
    readable = [format.name for format in FORMATS if format.layers is not None]
    return CommandError(
        f"{version.name!r} is {version.format.name}, which does not expose its "
        f"intermediate results; --layers reads {', '.join(readable)}"
    )


def _inputs(
    model: LoadedModel, samples: Sequence[DataSample]
) -> list[dict[str, Array]]:
    """Return the input arrays of samples, or random ones."""
    if not samples:
        seeds = range(RANDOM_SAMPLES)
        return [random_inputs(model.inputs.specs, seed) for seed in seeds]
    inputs = []
    for sample in samples:
        prepared = model.task.prepare(memoryview(sample.read()))
        inputs.append(dict(prepared.runs[0]))
    return inputs


def _compare(first: _TracedVersion, other: _TracedVersion) -> dict[str, Any]:
    layers = first.layers(), other.layers()
    pairs = align(*layers)
    quantized = any(layer.quantized for layer in (*layers[0], *layers[1]))
    bound, noise = BOUND, BOUND / 10
    if quantized:
        bound, noise = QUANTIZED_BOUND, QUANTIZED_BOUND / 4
    # Written so that NaN differs, too.
    differing = [
        place for place, pair in enumerate(pairs) if not pair.difference <= bound
    ]
    cause = None
    if differing:
        step = _step(pairs, noise)
        if step is not None and quantized:
            differing = [place for place in differing if place >= step]
        place = differing[0]
        cause = overflow(pairs[place]) or rounding(pairs)
        if step is not None and cause.kind == "rounding":
            start = step if quantized else _origin(pairs, place, bound)
            cause = _cause(pairs, start, layers, other, bound)
    result: dict[str, Any] = {
        "samples": first.limit,
        "bound": bound,
        "layers": [len(layers[0]) - 1, len(layers[1]) - 1],
        "pairs": list(map(_row, pairs)),
        "first_differing": differing[:3],
        "cause": None,
    }
    if cause is not None:
        result["cause"] = cause._asdict()
    return result


def _step(pairs: Sequence[LayerPair], noise: float) -> int | None:
    """Return the first pair whose difference is a sudden increase.

    That is, several times the difference of every pair before. None if differences only
    grow gradually.

    Args:
        noise: a difference that the rounding of one layer may make.
    """
    for place, pair in enumerate(pairs):
        if not pair.difference <= STEP * noise:
            return place
        noise = max(noise, pair.difference)
    return None


def _origin(pairs: Sequence[LayerPair], place: int, bound: float) -> int:
    """Return the pair from which a difference grew."""
    while place and not pairs[place - 1].difference <= bound / 4:
        place -= 1
    return place


def _cause(
    pairs: Sequence[LayerPair],
    place: int,
    layers: tuple[list[Layer], list[Layer]],
    other: _TracedVersion,
    bound: float,
) -> Cause:
    pair = pairs[place]
    before = None
    start, other_start = -1, -1
    if place:
        before = pairs[place - 1]
        start, other_start = before.places
    end, other_end = pair.places
    skipped = layers[0][start + 1 : end], layers[1][other_start + 1 : other_end]

    def rerun(change: InputChange) -> Array:
        array = other.layers(change)[other_end].array
        return list(layouts_of(array))[pair.view]

    run_changed = None
    if _keeps_size(pairs[:place]):
        run_changed = rerun
    return explain(pair, before, skipped, bound, run_changed, other.image())


def _keeps_size(pairs: Sequence[LayerPair]) -> bool:
    """Return whether all layers have as many numbers as the input."""
    sizes = {pair.first.array.size for pair in pairs}
    return len(sizes) == 1


def _is_passing(layer: Layer, following: Layer) -> bool:
    """Return whether two layers only rescale or move numbers.

    Only the last layer of such a chain counts.
    """
    operators = {layer.operator.casefold(), following.operator.casefold()}
    return operators <= RESCALING and layer.array.size == following.array.size


def _row(pair: LayerPair) -> dict[str, Any]:
    row: dict[str, Any] = {
        "first": {"name": pair.first.name, "operator": pair.first.operator},
        "other": {"name": pair.other.name, "operator": pair.other.operator},
        "shape": list(pair.first.array.shape[1:]),
        "difference": None,
    }
    if np.isfinite(pair.difference):
        row["difference"] = pair.difference
    return row


def _stack(arrays: Sequence[Array]) -> Array:
    """Return [samples, ...] in double precision, without axes of size 1."""
    stacked = np.stack(arrays).astype(np.float64)
    sizes = [size for size in arrays[0].shape if size != 1]
    return stacked.reshape(len(arrays), *sizes)


def _real(array: Array, spec: Any) -> Array:
    if spec.quantization is None or array.dtype.kind not in "iu":
        return array
    return dequantize(array, spec)


def print_layers(result: Mapping[str, Any]) -> None:
    """Print the layers around the first difference, and its cause."""
    _print_versions(result)
    pairs = result["pairs"]
    first = next(iter(result["first_differing"]), None)
    _print_pairs(pairs, first)
    if first is not None:
        _print_cause(pairs[first], result["cause"])
    elif len(pairs) > 1:
        print("\nNo layer differs beyond the bound.")
    else:
        print("\nThere is no result: no layer of A has a counterpart in B.")


def _print_versions(result: Mapping[str, Any]) -> None:
    a, b = result["versions"]
    a_layers = plural(result["layers"][0], "layer")
    b_layers = plural(result["layers"][1], "layer")
    print_text(f"{result['model']}: A is {a} ({a_layers}), B is {b} ({b_layers})")
    matches = len(result["pairs"]) - 1
    samples = plural(result["samples"], "sample")
    print(f"{matches} layers match; {samples}; bound {result['bound']:.0%}\n")


def _print_pairs(pairs: Sequence[Mapping[str, Any]], first: int | None) -> None:
    """Print the pairs around the first one that differs, or all."""
    start, end = 0, len(pairs)
    if first is not None:
        start, end = max(0, first - SHOWN_BEFORE), first + SHOWN_AFTER
    rows = []
    for number, pair in enumerate(pairs[start:end], start):
        rows.append(_cells(number, pair, is_first=number == first))
    print_table(["", "A", "B", "SHAPE", "DIFFERENCE"], rows)


def _print_cause(pair: Mapping[str, Any], cause: Mapping[str, Any]) -> None:
    layer = pair["first"]
    name = f"A's {layer['operator']} {layer['name'][:MAX_CELL]!r}"
    print_text(f"\nThe first layer that differs is {name}.")
    print_text(f"{cause['kind']}: {cause['sentence']}.")


def _cells(number: int, pair: Mapping[str, Any], *, is_first: bool) -> list[str]:
    width = _name_width()
    names = []
    for key in ("first", "other"):
        names.append(f"{pair[key]['operator']} {pair[key]['name']}"[:width])
    difference = "not finite"
    if pair["difference"] is not None:
        difference = f"{pair['difference']:.2%}"
    mark = f"{number} >" if is_first else str(number)
    return [mark, *names, "x".join(map(str, pair["shape"])), difference]


def _name_width() -> int:
    """Return the width of a layer's name in the table."""
    width = (terminal_columns() - OTHER_CELLS) // 2
    return max(LEAST_CELL, min(MAX_CELL, width))
