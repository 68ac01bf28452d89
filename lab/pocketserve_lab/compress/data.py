"""The process that reads labelled data.

Run as ``python -m pocketserve_lab.compress.data request.json``. Files go through the
model's own task, like a request; an .npz contains arrays as the model takes them.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.messages import excerpt
from pocketserve.repository.scan import ModelEntry
from pocketserve.tensors import Array
from pocketserve_lab.compare.samples import (
    DataSample,
    facts_of,
    read_classes,
    read_samples,
)
from pocketserve_lab.compress.recipe import save_data
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.sample_run import served_model
from pocketserve_lab.convert.tool_process import report
from pocketserve_wire import DATATYPES, ApiError

LABELS = "labels"
TEST_SHARE = 0.25
LEAST_SAMPLES = 8
MAX_SAMPLES = 1_000_000
MAX_BYTES = 4 << 30
"""Bytes of all arrays of one set."""


class LabelledArrays(NamedTuple):
    """Inputs by name, whose first axis counts samples, and their labels.

    The labels are as of ``TrainingData``.
    """

    inputs: dict[str, Array]
    labels: Array

    def rows(self, at: Array) -> LabelledArrays:
        """Return some of the samples."""
        inputs = {name: array[at] for name, array in self.inputs.items()}
        return LabelledArrays(inputs, self.labels[at])


def read_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read data for a model and write ``train.npz`` and ``test.npz`` with labels.

    Args:
        document: ``models_dir``, ``state_dir``, ``model``, ``version``; ``data``, a
            folder, CSV or .npz file; ``test``, another one, or None to use a quarter of
            the data; ``folder``, where to write.

    Returns:
        ``train`` and ``test``, the numbers of samples; ``rows``, as of a run of
        samples; ``sha256`` of both sets.

    Raises:
        ConversionError: the data cannot be used.
    """
    with served_model(document) as (_, entry, model):
        train = _read(entry, model, Path(document["data"]))
        if document.get("test"):
            test = _read(entry, model, Path(document["test"]))
        else:
            train, test = _split(train)
    folder = Path(document["folder"])
    save_data(folder / "train.npz", *train)
    save_data(folder / "test.npz", *test)
    total = hashlib.sha256()
    for part in (train, test):
        for array in (*part.inputs.values(), part.labels):
            total.update(np.ascontiguousarray(array).tobytes())
    return {
        "train": len(train.labels),
        "test": len(test.labels),
        "rows": dict.fromkeys(train.inputs, True),
        "sha256": total.hexdigest(),
    }


def _split(data: LabelledArrays) -> tuple[LabelledArrays, LabelledArrays]:
    """Return most samples for training, and a random quarter for the test."""
    count = len(data.labels)
    if count < LEAST_SAMPLES:
        raise ConversionError(
            f"the data holds {count} samples; {LEAST_SAMPLES} are needed, "
            "and hundreds are better"
        )
    order = np.random.default_rng(0).permutation(count)
    number = max(1, round(TEST_SHARE * count))
    train, test = np.sort(order[number:]), np.sort(order[:number])
    return data.rows(train), data.rows(test)


def _read(entry: ModelEntry, model: LoadedModel, path: Path) -> LabelledArrays:
    for spec in model.inputs.specs:
        takes_rows = spec.shape[:1] in ((-1,), (1,))
        if spec.datatype == "BYTES" or spec.open or not takes_rows:
            raise ConversionError(
                f"input {spec.name!r} does not take rows of numbers, "
                "which recipes train on"
            )
    if path.suffix.lower() == ".npz":
        inputs, labels = _arrays(path)
    else:
        inputs, labels = _prepared(entry, model, path)
    return LabelledArrays(_checked_inputs(model, path, inputs, len(labels)), labels)


def _arrays(path: Path) -> tuple[dict[str, Array], Array]:
    """Read an .npz file: an array for each input by name, and ``labels``."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
            arrays = {name: members[name] for name in members.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConversionError(f"{path.name} cannot be read: {excerpt(error)}") from None
    if LABELS not in arrays:
        raise ConversionError(
            f"{path.name} has no array {LABELS!r} with a class or number for each "
            "sample"
        )
    labels = arrays.pop(LABELS)
    return arrays, _checked_labels(path, labels)


def _checked_labels(path: Path, labels: Array) -> Array:
    """Return labels as int64 classes or float32 numbers.

    Rows of 0 and 1 tell for each class whether a sample belongs to it.
    """
    is_whole = labels.dtype.kind in "iub"
    if is_whole and labels.ndim == 1:
        _check_classes(path, labels)
        return labels.astype(np.int64)
    if is_whole and labels.ndim == 2 and np.isin(labels, (0, 1)).all():
        return labels.astype(np.int64)
    if labels.dtype.kind == "f" and np.isfinite(labels).all():
        return labels.reshape(len(labels), -1).astype(np.float32)
    raise ConversionError(
        f"{path.name}: the labels must be whole numbers of classes, one a sample, "
        "or finite floats"
    )


def _check_classes(path: Path, labels: Array) -> None:
    if labels.size and labels.min() < 0:
        raise ConversionError(
            f"{path.name}: the labels hold {labels.min()}; classes count from 0"
        )


def _prepared(
    entry: ModelEntry, model: LoadedModel, path: Path
) -> tuple[dict[str, Array], Array]:
    """Read a folder or CSV file, each sample through the model's task."""
    facts = facts_of(entry, model)
    samples = read_samples(path, facts, MAX_SAMPLES)
    for sample in samples:
        if sample.truth is None:
            raise ConversionError(
                f"{path.name}: {sample.name} has no label; a recipe trains on labelled "
                "samples of a classifier or a regression (docs/compress.md shows how "
                "to write them)"
            )
    runs = [_run_of(model, sample) for sample in samples]
    inputs = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    truths = [sample.truth for sample in samples]
    if facts.task == "tabular-regression":
        numbers = [[float(truth)] for truth in truths]
        return inputs, np.array(numbers, np.float32)
    if not facts.task.endswith("-classification"):
        raise ConversionError(
            "recipes train classifiers and regressions, "
            f"and this model's task is {facts.task}"
        )
    return inputs, np.array(_class_indices(truths, facts.labels), np.int64)


def _run_of(model: LoadedModel, sample: DataSample) -> dict[str, Array]:
    """Return the input arrays of a sample."""
    try:
        runs = model.task.prepare(memoryview(sample.read())).runs
    except (ApiError, OSError, ValueError) as error:
        reason = excerpt(getattr(error, "message", error))
        raise ConversionError(f"{sample.name}: {reason}") from None
    if len(runs) != 1 or any(len(array) != 1 for array in runs[0].values()):
        raise ConversionError(
            f"{sample.name} becomes several inputs of the model; "
            "give each its own file and label"
        )
    return dict(runs[0])


def _class_indices(truths: Sequence[Any], labels: Sequence[str]) -> list[int]:
    """Return the classes that truths name by their label or number."""
    names = list(enumerate(labels))
    if not names:
        for text in sorted({str(truth).strip() for truth in truths}):
            if text.isdecimal():
                names.append((int(text), text))
    classes = read_classes(truths, names)
    for truth, indices in zip(truths, classes, strict=True):
        if len(indices) != 1:
            number = len(indices) or "none"
            raise ConversionError(
                f"the label {truth!r} means {number} of the model's classes"
            )
    return [next(iter(indices)) for indices in classes]


def _checked_inputs(
    model: LoadedModel, path: Path, inputs: Mapping[str, Array], count: int
) -> dict[str, Array]:
    """Return the arrays in the model's order and types."""
    specs = {spec.name: spec for spec in model.inputs.specs}
    if set(inputs) != set(specs):
        names = ", ".join(inputs) or "nothing"
        raise ConversionError(
            f"{path.name} holds {names}; the model takes {', '.join(specs)}"
        )
    checked: dict[str, Array] = {}
    for name, spec in specs.items():
        array = inputs[name]
        if len(array) != count or not spec.accepts(array.shape, rows_free=True):
            expected = [count, *spec.shape[1:]]
            raise ConversionError(
                f"{path.name}: array {name!r} has shape {list(array.shape)}; "
                f"for {count} labels the model takes {expected}"
            )
        dtype = np.dtype(DATATYPES[spec.datatype].typestr)
        checked[name] = np.ascontiguousarray(array, dtype)
    if sum(array.nbytes for array in checked.values()) > MAX_BYTES:
        raise ConversionError(
            f"{path.name} becomes more than {MAX_BYTES >> 30} GB of inputs; "
            "give a part of it"
        )
    return checked


if __name__ == "__main__":
    # Errors are in the report.
    logging.disable(logging.WARNING)
    sys.exit(report(Path(sys.argv[1]), read_data))
