"""The process that runs a model on samples.

Run as ``python -m pocketserve_lab.convert.sample_run request.json``. The model is loaded as
by a server, after a trial in quarantine. If its framework is not installed here, the
process runs in the converter's environment, which has it: all modules that it needs
import with NumPy alone.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.config import load_config
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.inference.blocking import submit_and_wait
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import TensorPayload
from pocketserve.repository.scan import ModelEntry
from pocketserve.service import Service
from pocketserve.tensors import Array, TensorSpec, to_array, to_tensor
from pocketserve_lab.compare.samples import (
    Facts,
    SampleError,
    facts_of,
    hash_samples,
    select_samples,
)
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.samples import (
    MAX_SAMPLES,
    MOVED_AXES,
    Samples,
    one_sample,
    prepare_samples,
    random_samples,
)
from pocketserve_lab.convert.tool_process import report
from pocketserve_lab.convert.variants import TIME_LIMIT_S, VariantSearch
from pocketserve_wire import DATATYPES, ApiError
from pocketserve_wire.oip import InferRequest

REQUEST_TIMEOUT_S = 600.0


def run_samples(document: Mapping[str, Any]) -> dict[str, Any]:
    """Run a version on samples; write inputs and outputs.

    Args:
        document: ``models_dir``, ``state_dir``, ``model``, ``version``; ``data``
            (samples), or ``arrays`` (an .npz of another version's inputs with its
            ``rows``, perhaps made of ``data``), or neither for random ones;
            ``layouts`` as of an outcome; ``variants``, of another version's result;
            ``folder``, for ``inputs.npz`` and ``outputs.npz``.

    Returns:
        ``variants``: inputs of other shapes as their ``axes`` and the ``inputs`` and
        ``outputs`` files, ``error`` for what this version rejects, or ``untested``;
        ``sample_shapes`` by input;
        ``runtime``, ``task``, ``labels``, ``count``, ``rows``, ``skipped``, ``random``,
        ``samples_sha256`` of data, ``prepares_otherwise``, whether this version
        prepares data differently from the other one, and ``inputs`` and ``outputs`` as
        name, datatype and shape.

    Raises:
        ConversionError: it cannot be loaded, or cannot be run on these samples.
    """
    folder = Path(document["folder"])
    with served_model(document) as (service, entry, model):
        task_facts = facts_of(entry, model)
        samples, digest = _samples(model, document, task_facts)
        prepares_otherwise = _prepares_otherwise(model, document, task_facts, samples)
        answer = partial(_answer, service, document["model"], document["version"])
        outputs = []
        for index in range(samples.number):
            outputs.append(answer(one_sample(samples, index)))
        whole_answer = partial(answer, row_by_row=False)
        variants = _variants(model, document, samples, whole_answer, folder)
        facts = {
            "runtime": model.runtime,
            "task": model.task.name,
            "labels": task_facts.labels,
            "inputs": list(map(_plain, model.inputs.specs)),
            "outputs": list(map(_plain, model.shown_outputs.specs)),
        }
    save_arrays(folder / "inputs.npz", samples.arrays)
    save_arrays(folder / "outputs.npz", _joined_outputs(outputs))
    return {
        **facts,
        "variants": variants,
        "sample_shapes": _sample_shapes(samples),
        "count": samples.number,
        "rows": samples.rows,
        "skipped": samples.skipped,
        "random": samples.random,
        "samples_sha256": digest,
        "prepares_otherwise": prepares_otherwise,
    }


def _sample_shapes(samples: Samples) -> dict[str, list[int]]:
    """Return the shape of each input of one sample."""
    shapes = {}
    for name, array in one_sample(samples, 0).items():
        shapes[name] = list(array.shape)
    return shapes


@contextmanager
def served_model(
    document: Mapping[str, Any],
) -> Iterator[tuple[Service, ModelEntry, LoadedModel]]:
    """Load a version, as a server does, for the block.

    Args:
        document: ``models_dir``, ``state_dir``, ``model`` and ``version``.

    Raises:
        ConversionError: it cannot be loaded; or a request in the block failed.
    """
    settings = {
        "models_dir": document["models_dir"],
        "state_dir": document["state_dir"],
        # Not used; but finding its default needs a package that a converter's
        # environment does not have.
        "token_file": Path(document["state_dir"]) / "token",
        "keep_alive": 0.0,
        "low_power": "off",
        "batching": False,
        "request_timeout": REQUEST_TIMEOUT_S,
    }
    service = Service(load_config(settings))
    try:
        with service.running(document["model"], document["version"]) as (entry, handle):
            yield service, entry, handle.model
    except SampleError as error:
        raise ConversionError(str(error)) from None
    except ApiError as error:
        raise ConversionError(error.message) from None
    finally:
        service.close()


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as .npz.

    Texts have a fixed length, so nothing is pickled.
    """
    plain = {}
    for name, array in arrays.items():
        plain[name] = array.astype(np.bytes_) if array.dtype == object else array
    np.savez(path, **plain)  # type: ignore[arg-type]  # NumPy's stubs take no arrays by name


def load_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays that :func:`save_arrays` wrote."""
    loaded = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            array = arrays[name]
            loaded[name] = array.astype(object) if array.dtype.kind == "S" else array
    return loaded


def _joined_outputs(answers: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join each output of all samples."""
    joined = {}
    for name in answers[0]:
        joined[name] = _joined([answer[name] for answer in answers])
    return joined


def _joined(arrays: Sequence[Array]) -> Array:
    """Join one output of all samples."""
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return np.concatenate([array.reshape(-1) for array in arrays])


def _plain(spec: TensorSpec) -> dict[str, Any]:
    """Return a tensor's description for JSON."""
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _samples(
    model: LoadedModel, document: Mapping[str, Any], facts: Facts
) -> tuple[Samples, str]:
    """Return the samples, and the hash of their data."""
    if document.get("arrays"):
        arrays = load_arrays(Path(document["arrays"]))
        layouts = document.get("layouts") or {}
        return _transferred(model, arrays, document["rows"], layouts), ""
    if document.get("data"):
        data = select_samples(Path(document["data"]), facts, MAX_SAMPLES)
        samples = prepare_samples(model, data)
        return samples, hash_samples(samples.used)
    return random_samples(model), ""


def _prepares_otherwise(
    model: LoadedModel, document: Mapping[str, Any], facts: Facts, transferred: Samples
) -> bool:
    """Return whether a version prepares data differently from the other version.

    That one's arrays were transferred. Data that are arrays already need no
    preparation, and may have other names here.
    """
    if not document.get("arrays") or not document.get("data"):
        return False
    if model.task.name == "tensors":
        return False
    data = select_samples(Path(document["data"]), facts, MAX_SAMPLES)
    if any(sample.name.endswith((".npy", ".npz")) for sample in data):
        return False
    try:
        own = prepare_samples(model, data).arrays
    except ConversionError:
        return True
    return any(
        _differs(own[name], array)
        for name, array in transferred.arrays.items()
        if array.dtype != object
    )


def _differs(first: Array, second: Array) -> bool:
    """Return whether two arrays of one shape have different numbers."""
    return first.shape == second.shape and not np.allclose(first, second, atol=1e-4)


def _transferred(
    model: LoadedModel,
    arrays: Mapping[str, Array],
    rows: Mapping[str, bool],
    layouts: Mapping[str, str],
) -> Samples:
    """Return another version's inputs as this one's.

    They are matched by name if all names agree, else by order. Channels are moved if a
    tool moved them.
    """
    specs = {spec.name: spec for spec in model.inputs.specs}
    if len(arrays) != len(specs):
        raise ConversionError(
            f"the result takes {len(specs)} inputs, and the original {len(arrays)}"
        )
    own_names = list(specs)
    if set(arrays) == set(specs):
        own_names = list(arrays)
    own_rows = {}
    moved = {}
    for own_name, (name, array) in zip(own_names, arrays.items(), strict=True):
        own_rows[own_name] = rows[name]
        moved[own_name] = _moved(array, layouts.get(name, ""))
    typed = {name: _typed(moved[name], spec) for name, spec in specs.items()}
    # One sample has no axis of samples, so its scalars have no length.
    lengths = [len(array) for array in arrays.values() if array.ndim]
    return Samples(typed, own_rows, max(lengths, default=1))


def _moved(array: Array, layout: str) -> Array:
    """Move the channels of a picture as the tool did."""
    axes = MOVED_AXES.get(layout)
    if axes is None or array.ndim != 4:
        return array
    return np.ascontiguousarray(array.transpose(axes))


def _typed(array: Array, spec: TensorSpec) -> Array:
    """Convert indices to this version's integer type: some tools change it."""
    if spec.datatype == "BYTES" or spec.quantization is not None or spec.open:
        return array
    dtype = np.dtype(DATATYPES[spec.datatype].typestr)
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return array.astype(dtype)
    return array


def _variants(
    model: LoadedModel,
    document: Mapping[str, Any],
    samples: Samples,
    answer: Callable[[Mapping[str, Array]], dict[str, Array]],
    folder: Path,
) -> list[dict[str, Any]]:
    """Run inputs of other shapes, and write inputs and outputs."""
    if "variants" in document:
        return _answer_variants(model, document, answer, folder)
    search = VariantSearch(
        model.inputs.specs,
        one_sample(samples, 0),
        takes_rows=all(samples.rows.values()),
        answer=answer,
    )
    plain = []
    for number, variant in enumerate(search.find(samples.other_samples)):
        inputs = folder / f"variant-{number}-inputs.npz"
        outputs = folder / f"variant-{number}-outputs.npz"
        save_arrays(inputs, variant.inputs)
        save_arrays(outputs, variant.outputs)
        plain.append(
            {"axes": variant.axes, "inputs": str(inputs), "outputs": str(outputs)}
        )
    return plain


def _answer_variants(
    model: LoadedModel,
    document: Mapping[str, Any],
    answer: Callable[[Mapping[str, Array]], dict[str, Array]],
    folder: Path,
) -> list[dict[str, Any]]:
    """Run another version's variants.

    A variant is ``untested`` if there is no time or memory for it: that says nothing
    about the sizes that the model takes.
    """
    deadline = time.monotonic() + TIME_LIMIT_S
    layouts = document.get("layouts") or {}
    plain = []
    for number, variant in enumerate(document.get("variants", [])):
        if time.monotonic() > deadline:
            plain.append({"axes": variant["axes"], "untested": "there was no time"})
            continue
        arrays = load_arrays(Path(variant["inputs"]))
        own = _transferred(model, arrays, document["rows"], layouts).arrays
        try:
            outputs = answer(own)
        except ApiError as error:
            outcome = "untested" if error.code.retryable else "error"
            plain.append({"axes": variant["axes"], outcome: error.message})
            continue
        path = folder / f"variant-{number}-outputs.npz"
        save_arrays(path, outputs)
        plain.append({"axes": variant["axes"], "outputs": str(path)})
    return plain


def _answer(
    service: Service,
    name: str,
    version: str,
    inputs: Mapping[str, Array],
    *,
    row_by_row: bool = True,
) -> dict[str, Array]:
    """Run one sample as a request."""
    tensors = [to_tensor(key, array) for key, array in inputs.items()]
    request = InferRequest(inputs=tensors, binary_output=True)
    payload = TensorPayload(request, row_by_row=row_by_row)
    call = InferenceCall(name, version, payload, service.request_options({}))
    response = submit_and_wait(service.submit, call)
    return {tensor.name: to_array(tensor) for tensor in response.outputs}


if __name__ == "__main__":
    # Errors are in the report.
    logging.disable(logging.WARNING)
    sys.exit(report(Path(sys.argv[1]), run_samples))
