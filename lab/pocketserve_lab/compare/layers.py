"""Find the first layers of two versions that differ, and say why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.inference.inputs import collect
from pocketserve.messages import plural
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

BOUND, QUANTIZED_BOUND = 0.02, 0.1
"""Relative differences that layers may have: of floating-point versions, and where one of them is quantised."""

STEP = 3.0
"""Rounding adds up from layer to layer; a difference so many times as large as before is something else."""

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
"""Of all layers and samples of a version: of a model with large layers, fewer samples are looked at."""

RANDOM_SAMPLES = 4
SHOWN_BEFORE, SHOWN_AFTER = 3, 4
LEAST_CELL, MAX_CELL = 14, 48
OTHER_CELLS = 34
"""Letters that the table has beside the names of layers."""


class _Subject(NamedTuple):
    """A version with its inputs: for each sample the real arrays by the callers' names; the first ``limit`` are run."""

    model: LoadedModel
    run: RunLayers
    inputs: list[dict[str, Array]]
    limit: int

    def layers(self, change: Callable[[Array], Array] | None = None) -> list[Layer]:
        """Run all samples, with the first input changed; return the layers, the input first."""
        runs = [self._run({**arrays}, change) for arrays in self.inputs[: self.limit]]
        names = [(layer.name, layer.operator, layer.quantized) for layer in runs[0]]
        passing = {
            place
            for place in range(len(names) - 1)
            if _is_passing(*runs[0][place : place + 2])
        }
        shapes = [
            {layer.array.shape for layer in column}
            for column in zip(*runs, strict=True)
        ]
        return [
            Layer(name, operator, _stack([run[place].array for run in runs]), quantized)
            for place, (name, operator, quantized) in enumerate(names)
            if len(shapes[place]) == 1 and place not in passing
        ]

    def _run(
        self, arrays: dict[str, Array], change: Callable[[Array], Array] | None
    ) -> list[Layer]:
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
        """Return the first input of all samples, [samples, ...]; None where it cannot be scaled or was not one row."""
        first = [next(iter(arrays.values())) for arrays in self.inputs[: self.limit]]
        fits = all(
            array.dtype.kind == "f" and array.ndim > 1 and len(array) == 1
            for array in first
        )
        return (
            np.concatenate(first)
            if fits and len({array.shape for array in first}) == 1
            else None
        )


def compare_layers(plan: Plan, versions: Sequence[str]) -> dict[str, Any]:
    """Return the matched layers of two versions, the first that differ, and the likeliest cause, in JSON's own types.

    Raises:
        CommandError: a version has no intermediate results.
        ApiError: a version cannot be loaded, or a sample cannot be decoded.
    """
    service, name, _ = open_local(plan.model, plan.models_dir, threads=plan.threads)
    try:
        with (
            service.running(name, versions[0]) as (entry, first),
            service.running(name, versions[1]) as (_, other),
        ):
            samples = _samples(plan, entry.folder, facts_of(entry, first.model))
            subjects = [_subject(handle.model, samples) for handle in (first, other)]
            limit = min(subject.limit for subject in subjects)
            subjects = [subject._replace(limit=limit) for subject in subjects]
            return {"model": name, "versions": list(versions), **_compare(*subjects)}
    finally:
        service.close()


def _samples(plan: Plan, folder: Any, facts: Facts) -> list[DataSample]:
    data = plan.data if plan.data is not None else folder / "samples"
    return (
        read_samples(data, facts, MAX_SAMPLES)
        if plan.data is not None or data.is_dir()
        else []
    )


def _subject(model: LoadedModel, samples: Sequence[DataSample]) -> _Subject:
    version = model.version
    if version.format.layers is None:
        formats = ", ".join(
            format.name for format in FORMATS if format.layers is not None
        )
        raise CommandError(
            f"{version.name!r} is {version.format.name}, which keeps its intermediate results to itself; "
            f"--layers reads {formats}"
        )
    if samples:
        inputs = [
            dict(model.task.prepare(memoryview(sample.read())).runs[0])
            for sample in samples
        ]
    else:
        inputs = [
            random_inputs(model.inputs.specs, seed) for seed in range(RANDOM_SAMPLES)
        ]
    subject = _Subject(model, version.format.layers(model.source), inputs, 1)
    size = sum(layer.array.size for layer in subject.layers())
    return subject._replace(limit=min(len(inputs), max(1, MAX_NUMBERS // size)))


def _compare(first: _Subject, other: _Subject) -> dict[str, Any]:
    layers = first.layers(), other.layers()
    pairs = align(*layers)
    quantized = any(layer.quantized for each in layers for layer in each)
    bound = QUANTIZED_BOUND if quantized else BOUND
    differing = [
        place for place, pair in enumerate(pairs) if not pair.difference <= bound
    ]  # NaN is beyond it
    cause = None
    if differing:
        step = _step(pairs, bound / (4 if quantized else 10))
        if step is not None and quantized:
            differing = [place for place in differing if place >= step]
        cause = overflow(pairs[differing[0]]) or rounding(pairs)
        if step is not None and cause.kind == "rounding":
            place = step if quantized else _origin(pairs, differing[0], bound)
            cause = _cause(pairs, place, layers, other, bound)
    return {
        "samples": first.limit,
        "bound": bound,
        "layers": [len(each) - 1 for each in layers],
        "pairs": [_row(pair) for pair in pairs],
        "first_differing": differing[:3],
        "cause": cause._asdict() if cause is not None else None,
    }


def _step(pairs: Sequence[LayerPair], noise: float) -> int | None:
    """Return where a difference becomes several times that of every layer before; None where it grows little by little.

    Args:
        noise: a difference that the rounding of one layer may make.
    """
    for place, pair in enumerate(pairs):
        if not pair.difference <= STEP * noise:
            return place
        noise = max(noise, pair.difference)
    return None


def _origin(pairs: Sequence[LayerPair], place: int, bound: float) -> int:
    """Return where a difference began to grow that is beyond the bound at a place."""
    while place and not pairs[place - 1].difference <= bound / 4:
        place -= 1
    return place


def _cause(
    pairs: Sequence[LayerPair],
    place: int,
    layers: tuple[list[Layer], list[Layer]],
    other: _Subject,
    bound: float,
) -> Cause:
    pair, before = pairs[place], pairs[place - 1] if place else None
    since = before.places if before is not None else (-1, -1)
    skipped = (
        layers[0][since[0] + 1 : pair.places[0]],
        layers[1][since[1] + 1 : pair.places[1]],
    )
    size = pairs[0].first.array.size
    untouched = before is not None and all(
        earlier.first.array.size == size for earlier in pairs[:place]
    )

    def rerun(change: Callable[[Array], Array]) -> Array:
        return list(layouts_of(other.layers(change)[pair.places[1]].array))[pair.view]

    return explain(
        pair, before, skipped, bound, rerun if untouched else None, other.image()
    )


def _is_passing(layer: Layer, following: Layer) -> bool:
    """Return whether a layer only rescales or moves numbers, and so does the next: the last of such a chain counts."""
    operators = {each.operator.casefold() for each in (layer, following)}
    return operators <= RESCALING and layer.array.size == following.array.size


def _row(pair: LayerPair) -> dict[str, Any]:
    return {
        "first": {"name": pair.first.name, "operator": pair.first.operator},
        "other": {"name": pair.other.name, "operator": pair.other.operator},
        "shape": list(pair.first.array.shape[1:]),
        "difference": pair.difference if np.isfinite(pair.difference) else None,
    }


def _stack(arrays: Sequence[Array]) -> Array:
    """Return [samples, ...] in double precision, without axes of size 1."""
    stacked = np.stack(arrays).astype(np.float64)
    return stacked.reshape(
        len(arrays), *(size for size in arrays[0].shape if size != 1)
    )


def _real(array: Array, spec: Any) -> Array:
    return (
        dequantize(array, spec)
        if spec.quantization is not None and array.dtype.kind in "iu"
        else array
    )


def print_layers(result: Mapping[str, Any]) -> None:
    """Print the layers around the first one that differs, and the cause."""
    first_version, other_version = result["versions"]
    counts = [plural(count, "layer") for count in result["layers"]]
    pairs, first = result["pairs"], next(iter(result["first_differing"]), None)
    print_text(
        f"{result['model']}: A is {first_version} ({counts[0]}), B is {other_version} ({counts[1]})"
    )
    print(
        f"{len(pairs) - 1} layers match; {plural(result['samples'], 'sample')}; bound {result['bound']:.0%}\n"
    )
    start = 0 if first is None else max(0, first - SHOWN_BEFORE)
    rows = pairs if first is None else pairs[start : first + SHOWN_AFTER]
    print_table(
        ["", "A", "B", "SHAPE", "DIFFERENCE"],
        [_cells(start + n, row, first) for n, row in enumerate(rows)],
    )
    if first is None and len(pairs) > 1:
        print("\nNo layer differs beyond the bound.")
    elif first is None:
        print("\nNothing can be said: no layer of A has a counterpart in B.")
    if first is None:
        return
    place = pairs[first]
    name = f"A's {place['first']['operator']} {place['first']['name'][:MAX_CELL]!r}"
    print_text(f"\nThe first layer that differs is {name}.")
    print_text(f"{result['cause']['kind']}: {result['cause']['sentence']}.")


def _cells(number: int, row: Mapping[str, Any], first: int | None) -> list[str]:
    width = max(LEAST_CELL, min(MAX_CELL, (terminal_columns() - OTHER_CELLS) // 2))
    names = [
        f"{row[key]['operator']} {row[key]['name']}"[:width]
        for key in ("first", "other")
    ]
    difference = (
        "not finite" if row["difference"] is None else f"{row['difference']:.2%}"
    )
    return [
        str(number) if number != first else f"{number} >",
        *names,
        "x".join(map(str, row["shape"])),
        difference,
    ]
