"""Samples: data of a user, through the model's own task and preprocessing, as arrays of its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""In a model's folder: its samples where the command names none."""

MAX_SAMPLES = 256
MAX_BYTES = 1 << 30
"""Of all samples' arrays together, and of those of one ``.npz`` file."""

RANDOM_SAMPLES = 16
MAX_RANDOM_ELEMENTS = 1 << 26


class Samples(NamedTuple):
    """Inputs of a model.

    Attributes:
        arrays: by the callers' names of inputs; the first axis counts samples.
        rows: by the same names, whether a sample is a row of it, ``array[i:i+1]``; else it is ``array[i]``.
        number: of samples.
        skipped: what could not be used, in sentences.
        used: the data that the inputs were made of.
        random: they are made up.
    """

    arrays: dict[str, Array]
    rows: dict[str, bool]
    number: int
    skipped: tuple[str, ...] = ()
    used: tuple[DataSample, ...] = ()
    random: bool = False


def prepare_samples(model: LoadedModel, data: Sequence[DataSample]) -> Samples:
    """Return data as inputs of a loaded model, prepared by its own task; ``.npz`` files hold arrays by input name.

    Raises:
        ConversionError: no sample can be used; the sentence has the first one's reason.
    """
    runs: list[Arrays] = []
    skipped: list[str] = []
    used: list[DataSample] = []
    size = 0
    for sample in data:
        if size > MAX_BYTES:
            skipped.append(
                f"{plural(len(data) - len(used) - len(skipped), 'sample')}: those before take the memory"
            )
            break
        try:
            added = _runs_of(model, sample)
        except (ApiError, OSError, ValueError) as error:
            skipped.append(f"{sample.name}: {excerpt(_reason(error))}")
            continue
        runs += added
        used.append(sample)
        size += sum(array.nbytes for run in added for array in run.values())
    if not runs:
        raise ConversionError(
            f"no sample can be used: {skipped[0] if skipped else 'there are none'}"
        )
    return _stacked(model, runs, skipped)._replace(used=tuple(used))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(getattr(error, "message", error))


def random_samples(model: LoadedModel) -> Samples:
    """Return made-up inputs: floats in [0, 1), small integers, short words; free dimensions are 1.

    Raises:
        ConversionError: the model does not tell what it takes, or takes too much.
    """
    random = np.random.default_rng(0)
    specs = model.inputs.specs
    if any(
        spec.open
        or math.prod(map(abs, spec.shape)) * RANDOM_SAMPLES > MAX_RANDOM_ELEMENTS
        for spec in specs
    ):
        raise ConversionError(
            "the model does not tell what it takes, so nothing can be made up to compare outputs on; give --samples, "
            "or declare [[inputs]] in model.toml"
        )
    runs = [
        {spec.name: random_array(_plain_numbers(spec), random) for spec in specs}
        for _ in range(RANDOM_SAMPLES)
    ]
    return _stacked(model, runs, [])._replace(random=True)


def _plain_numbers(spec: TensorSpec) -> TensorSpec:
    """Return a spec of what a request sends: real numbers also where the file stores integers for them."""
    return spec if spec.quantization is None else spec._replace(datatype="FP32")


def _runs_of(model: LoadedModel, sample: DataSample) -> list[Arrays]:
    """Return the inputs of each run of a sample; rows of an array, and windows of a sound, are samples of their own."""
    if isinstance(sample.body, Path) and sample.body.suffix.lower() == ".npz":
        return _rows(model, _read_npz(sample.body))
    prepared = model.task.prepare(memoryview(sample.read()))
    return [row for run in prepared.runs for row in _rows(model, run)]


def _read_npz(file: Path) -> Arrays:
    """Return the arrays of an archive by name; no more is unpacked than samples may take.

    Raises:
        OSError, ValueError, ApiError: it is damaged, or larger.
    """
    entries = list(members(file, appended=True))
    if (size := sum(entry.size for entry in entries)) > MAX_BYTES:
        raise ValueError(
            f"its arrays take {size / 1e9:.1f} GB, and {MAX_BYTES / 1e9:.1f} GB are possible"
        )
    contents = {
        entry.name: memoryview(read_member(file, entry, entry.size))
        for entry in entries
    }
    return {
        name.removesuffix(".npy"): read_npy(content)
        for name, content in contents.items()
    }


def _rows(model: LoadedModel, arrays: Arrays) -> list[Arrays]:
    """Check arrays against the model's inputs, and split those of several rows."""
    specs = {spec.name: spec for spec in model.inputs.specs}
    if unknown := set(arrays) - set(specs):
        raise ValueError(
            f"it has an array {min(unknown)!r}, and the model takes {', '.join(map(repr, specs))}"
        )
    for name, array in arrays.items():
        if not specs[name].open and not specs[name].accepts(
            array.shape, rows_free=_has_rows(specs[name])
        ):
            raise ValueError(
                f"array {name!r} has shape {list(array.shape)}, and the model takes {list(specs[name].shape)}"
            )
    counts = {len(array) for name, array in arrays.items() if _has_rows(specs[name])}
    if (
        len(counts) != 1
        or counts == {1}
        or not all(_has_rows(specs[name]) for name in arrays)
    ):
        return [arrays]
    return [
        {name: array[at : at + 1] for name, array in arrays.items()}
        for at in range(counts.pop())
    ]


def _has_rows(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and spec.shape[0] in (-1, 1)


def _stacked(model: LoadedModel, runs: Sequence[Arrays], skipped: list[str]) -> Samples:
    """Put the runs of one shape together; those of other shapes are left out, because a tool takes one."""
    shapes = [
        tuple((name, array.shape) for name, array in sorted(run.items()))
        for run in runs
    ]
    common = max(dict.fromkeys(shapes), key=shapes.count)
    alike = [run for run, shape in zip(runs, shapes, strict=True) if shape == common]
    if len(alike) < len(runs):
        skipped.append(f"{plural(len(runs) - len(alike), 'sample')} of another shape")
    size = sum(array.nbytes for array in alike[0].values())
    count = max(1, min(len(alike), MAX_SAMPLES, MAX_BYTES // max(1, size)))
    step = len(alike) / count
    spread = [alike[int(at * step)] for at in range(count)]
    first = {**spread[0], **_first_state(model, spread[0])}
    specs = {spec.name: spec for spec in model.inputs.specs}
    rows = {name: _is_row(specs[name], array) for name, array in first.items()}
    arrays = {
        name: (np.concatenate if rows[name] else np.stack)(
            [run.get(name, first[name]) for run in spread]
        )
        for name in first
    }
    return Samples(arrays, rows, count, tuple(skipped))


def _is_row(spec: TensorSpec, array: Array) -> bool:
    """Return whether a sample is one row of its input."""
    return (
        array.ndim > 0
        and len(array) == 1
        and (spec.open or spec.shape[:1] in ((-1,), (1,)))
    )


def _first_state(model: LoadedModel, arrays: Arrays) -> dict[str, Array]:
    """Return the zeros that a model with a memory begins with, by the callers' names."""
    own_names = {
        spec.name: model.inputs.by_name[spec.name][1] for spec in model.inputs.specs
    }
    missing = {
        name: own
        for name, own in own_names.items()
        if name not in arrays and own in model.first_state
    }
    return {name: model.first_state[own] for name, own in missing.items()}


def one_sample(samples: Samples, at: int) -> dict[str, Array]:
    """Return the inputs of one sample."""
    rows = samples.rows
    return {
        name: array[at : at + 1] if rows[name] else array[at]
        for name, array in samples.arrays.items()
    }
