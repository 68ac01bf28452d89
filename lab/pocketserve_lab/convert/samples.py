"""Samples: the user's data as arrays of a model's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.formats.zip_archives import members, read_member
from pocketserve.messages import excerpt, plural
from pocketserve.tasks.arrays import read_npy
from pocketserve.tasks.base import Arrays
from pocketserve.tensors import Array, TensorSpec, random_array
from pocketserve_lab.compare.samples import DataSample
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_wire import ApiError

FOLDER = "samples"
"""In a model's folder: the default samples of a command."""

MOVED_AXES = {"NHWC": (0, 2, 3, 1), "NCHW": (0, 3, 1, 2)}
"""The original axis at each position, by the layout that a tool changed to."""

MAX_SAMPLES = 256
MAX_BYTES = 1 << 30
"""Of all samples' arrays together, and of the arrays of one ``.npz`` file."""

RANDOM_SAMPLES = 16
MAX_RANDOM_ELEMENTS = 1 << 26


class Samples(NamedTuple):
    """Inputs of a model.

    Attributes:
        arrays: by the names of inputs that clients use; the first axis counts samples.
        rows: by the same names, whether a sample is a row of it, ``array[i:i+1]``; else
            it is ``array[i]``.
        number: of samples.
        skipped: sentences on data that could not be used.
        used: the data that the inputs were made of.
        random: whether they are random.
        other_samples: the inputs of samples of other shapes.
    """

    arrays: dict[str, Array]
    rows: dict[str, bool]
    number: int
    skipped: tuple[str, ...] = ()
    used: tuple[DataSample, ...] = ()
    random: bool = False
    other_samples: tuple[Arrays, ...] = ()


def prepare_samples(model: LoadedModel, data: Sequence[DataSample]) -> Samples:
    """Prepare data as inputs, by the model's own task.

    ``.npz`` files contain arrays by input name.

    Raises:
        ConversionError: no sample can be used; the text has the first one's reason.
    """
    runs: list[Arrays] = []
    skipped: list[str] = []
    used: list[DataSample] = []
    size = 0
    for sample in data:
        if size > MAX_BYTES:
            rest = plural(len(data) - len(used) - len(skipped), "sample")
            skipped.append(f"{rest}: those before take the memory")
            break
        try:
            added = _runs_of(model, sample)
        except (ApiError, OSError, ValueError) as error:
            skipped.append(f"{sample.name}: {excerpt(_reason(error))}")
            continue
        runs += added
        used.append(sample)
        size += sum(map(_bytes_of, added))
    if not runs:
        reason = skipped[0] if skipped else "there are none"
        raise ConversionError(f"no sample can be used: {reason}")
    return _stacked(model, runs, skipped)._replace(used=tuple(used))


def _bytes_of(run: Arrays) -> int:
    return sum(array.nbytes for array in run.values())


def _reason(error: Exception) -> str:
    """Return an error's sentence, without the path of an OSError."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(getattr(error, "message", error))


def random_samples(model: LoadedModel) -> Samples:
    """Return random inputs: floats in [0, 1), small integers, short words.

    Free dimensions are 1.

    Raises:
        ConversionError: the model's inputs are unknown, or too large.
    """
    random = np.random.default_rng(0)
    specs = model.inputs.specs
    for spec in specs:
        elements = math.prod(map(abs, spec.shape)) * RANDOM_SAMPLES
        if spec.open or elements > MAX_RANDOM_ELEMENTS:
            raise ConversionError(
                "the model does not state its inputs, so none can be generated for the "
                "comparison; give --samples, or declare [[inputs]] in "
                "model.toml"
            )
    runs = []
    for _ in range(RANDOM_SAMPLES):
        run = {}
        for spec in specs:
            run[spec.name] = random_array(_plain_numbers(spec), random)
        runs.append(run)
    return _stacked(model, runs, [])._replace(random=True)


def _plain_numbers(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a request's tensor.

    Clients send real numbers even if the file stores integers for them.
    """
    return spec if spec.quantization is None else spec._replace(datatype="FP32")


def _runs_of(model: LoadedModel, sample: DataSample) -> list[Arrays]:
    """Return the inputs of each run of a sample.

    Rows of an array, and windows of a sound, are separate samples.
    """
    if isinstance(sample.body, Path) and sample.body.suffix.lower() == ".npz":
        return _rows(model, _read_npz(sample.body))
    prepared = model.task.prepare(memoryview(sample.read()))
    rows = []
    for run in prepared.runs:
        rows += _rows(model, run)
    return rows


def _read_npz(file: Path) -> Arrays:
    """Return the arrays of an archive by name.

    Raises:
        OSError, ValueError, ApiError: it is damaged, or larger than samples may be.
    """
    entries = list(members(file, appended=True))
    size = sum(entry.size for entry in entries)
    if size > MAX_BYTES:
        raise ValueError(
            f"its arrays take {size / 1e9:.1f} GB, "
            f"and {MAX_BYTES / 1e9:.1f} GB are the limit"
        )
    arrays = {}
    for entry in entries:
        content = memoryview(read_member(file, entry, entry.size))
        arrays[entry.name.removesuffix(".npy")] = read_npy(content)
    return arrays


def _rows(model: LoadedModel, arrays: Arrays) -> list[Arrays]:
    """Check arrays, and split those of several rows."""
    specs = {spec.name: spec for spec in model.inputs.specs}
    _check_arrays(specs, arrays)
    if not all(_has_rows(specs[name]) for name in arrays):
        return [arrays]
    counts = set(map(len, arrays.values()))
    if len(counts) != 1 or counts == {1}:
        return [arrays]
    return [_row(arrays, index) for index in range(counts.pop())]


def _row(arrays: Arrays, index: int) -> Arrays:
    """Return one row of each array."""
    return {name: array[index : index + 1] for name, array in arrays.items()}


def _check_arrays(specs: Mapping[str, TensorSpec], arrays: Arrays) -> None:
    """Raise ValueError for an unknown name or a wrong shape."""
    unknown = set(arrays) - set(specs)
    if unknown:
        names = ", ".join(map(repr, specs))
        raise ValueError(
            f"it has an array {min(unknown)!r}, and the model takes {names}"
        )
    for name, array in arrays.items():
        spec = specs[name]
        if spec.open or spec.accepts(array.shape, rows_free=_has_rows(spec)):
            continue
        raise ValueError(
            f"array {name!r} has shape {list(array.shape)}, "
            f"and the model takes {list(spec.shape)}"
        )


def _has_rows(spec: TensorSpec) -> bool:
    """Return whether an input's first axis may count rows."""
    return len(spec.shape) > 1 and spec.shape[0] in (-1, 1)


def _stacked(model: LoadedModel, runs: Sequence[Arrays], skipped: list[str]) -> Samples:
    """Stack the runs of the most common shape.

    A tool takes one shape only.
    """
    alike, other_samples = _split_by_shape(runs)
    if other_samples:
        rest = plural(len(other_samples), "sample")
        skipped.append(f"{rest} of another shape")
    spread = _spread(alike)
    first = {**spread[0], **_first_state(model, spread[0])}
    specs = {spec.name: spec for spec in model.inputs.specs}
    rows = {}
    arrays = {}
    for name, array in first.items():
        values = [run.get(name, array) for run in spread]
        rows[name] = _is_row(specs[name], array)
        if rows[name]:
            arrays[name] = np.concatenate(values)
        else:
            arrays[name] = np.stack(values)
    return Samples(
        arrays,
        rows,
        len(spread),
        tuple(skipped),
        other_samples=tuple(other_samples),
    )


def _split_by_shape(runs: Sequence[Arrays]) -> tuple[list[Arrays], list[Arrays]]:
    """Return the runs of the most common shape, and the others."""
    shapes = [_shapes_of(run) for run in runs]
    common = max(dict.fromkeys(shapes), key=shapes.count)
    alike: list[Arrays] = []
    unlike: list[Arrays] = []
    for run, shape in zip(runs, shapes, strict=True):
        if shape == common:
            alike.append(run)
        else:
            unlike.append(run)
    return alike, unlike


def _spread(runs: Sequence[Arrays]) -> list[Arrays]:
    """Return at most MAX_SAMPLES runs of at most MAX_BYTES, evenly spread."""
    size = max(1, _bytes_of(runs[0]))
    count = max(1, min(len(runs), MAX_SAMPLES, MAX_BYTES // size))
    step = len(runs) / count
    return [runs[int(index * step)] for index in range(count)]


def _shapes_of(run: Arrays) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the shapes of a run's arrays, as a key."""
    return tuple((name, array.shape) for name, array in sorted(run.items()))


def _is_row(spec: TensorSpec, array: Array) -> bool:
    """Return whether a sample is one row of its input."""
    if array.ndim == 0 or len(array) != 1:
        return False
    return spec.open or spec.shape[:1] in ((-1,), (1,))


def _first_state(model: LoadedModel, arrays: Arrays) -> dict[str, Array]:
    """Return the missing initial state of a stateful model."""
    state = {}
    for spec in model.inputs.specs:
        own_name = model.inputs.by_name[spec.name][1]
        if spec.name not in arrays and own_name in model.first_state:
            state[spec.name] = model.first_state[own_name]
    return state


def one_sample(samples: Samples, at: int) -> dict[str, Array]:
    """Return the inputs of one sample."""
    inputs = {}
    for name, array in samples.arrays.items():
        if samples.rows[name]:
            inputs[name] = array[at : at + 1]
        else:
            inputs[name] = array[at]
    return inputs
