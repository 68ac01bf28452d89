"""The process that runs a model on samples: ``python -m pocketserve_lab.convert.sample_run request.json``.

The model is loaded as a server loads it, in quarantine first. Where its framework is not installed here, the process
runs in the converter's environment, which has it: all that is needed of ours imports with NumPy alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    Samples,
    one_sample,
    prepare_samples,
    random_samples,
)
from pocketserve_lab.convert.tool_process import report
from pocketserve_wire import DATATYPES, ApiError
from pocketserve_wire.oip import InferRequest

REQUEST_TIMEOUT_S = 600.0


def run_samples(document: Mapping[str, Any]) -> dict[str, Any]:
    """Load a version, run it on samples, and write inputs and outputs as ``.npz`` files.

    Args:
        document: ``models_dir``, ``state_dir``, ``model``, ``version``; ``data`` (samples), or ``arrays`` (an .npz of
            inputs by the names of another version, with its ``rows``, that it may have made of ``data``), or neither
            for made-up ones; ``layouts`` as of an outcome; ``folder``, where ``inputs.npz`` and ``outputs.npz`` are
            written.

    Returns:
        ``runtime``, ``task``, ``labels``, ``count``, ``rows``, ``skipped``, ``random``, ``samples_sha256`` of data,
        whether this version ``prepares_otherwise`` than the other one, and ``inputs`` and ``outputs`` as name, datatype
        and shape.

    Raises:
        ConversionError: it cannot be loaded, run, or given these samples.
    """
    with served_model(document) as (service, entry, model):
        name, version = document["model"], document["version"]
        task_facts = facts_of(entry, model)
        samples, digest = _samples(model, document, task_facts)
        prepares_otherwise = _prepares_otherwise(model, document, task_facts, samples)
        outputs = [
            _answer(service, name, version, one_sample(samples, at))
            for at in range(samples.number)
        ]
        specs = {"inputs": model.inputs.specs, "outputs": model.shown_outputs.specs}
        facts = {
            "runtime": model.runtime,
            "task": model.task.name,
            "labels": task_facts.labels,
        }
    folder = Path(document["folder"])
    save_arrays(folder / "inputs.npz", samples.arrays)
    save_arrays(
        folder / "outputs.npz",
        {key: _joined([answer[key] for answer in outputs]) for key in outputs[0]},
    )
    return {
        **facts,
        "count": samples.number,
        "rows": samples.rows,
        "skipped": samples.skipped,
        "random": samples.random,
        "samples_sha256": digest,
        "prepares_otherwise": prepares_otherwise,
        **{key: [_plain(spec) for spec in value] for key, value in specs.items()},
    }


@contextmanager
def served_model(
    document: Mapping[str, Any],
) -> Iterator[tuple[Service, ModelEntry, LoadedModel]]:
    """Load a version as a server does, and hold it while the block runs.

    Args:
        document: ``models_dir``, ``state_dir``, ``model`` and ``version``.

    Raises:
        ConversionError: it cannot be loaded; or what a request in the block was refused for.
    """
    # Not used; but its default asks a package for the place, which a converter's environment does not have.
    settings = {"token_file": Path(document["state_dir"]) / "token", "keep_alive": 0.0}
    settings |= {
        "models_dir": document["models_dir"],
        "state_dir": document["state_dir"],
    }
    config = load_config(
        {
            **settings,
            "low_power": "off",
            "batching": False,
            "request_timeout": REQUEST_TIMEOUT_S,
        }
    )
    service = Service(config)
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
    """Write arrays as .npz; texts are stored with their length fixed, so that nobody has to unpickle them."""
    plain = {
        name: array.astype(np.bytes_) if array.dtype == object else array
        for name, array in arrays.items()
    }
    np.savez(path, **plain)  # type: ignore[arg-type]  # NumPy's stubs take no arrays by name


def load_arrays(path: Path) -> dict[str, Array]:
    """Read what :func:`save_arrays` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        loaded = {name: arrays[name] for name in arrays.files}
    return {
        name: array.astype(object) if array.dtype.kind == "S" else array
        for name, array in loaded.items()
    }


def _joined(arrays: Sequence[Array]) -> Array:
    """Return one output of all samples: stacked, or where their shapes differ, flat."""
    alike = len({array.shape for array in arrays}) == 1
    return (
        np.stack(arrays)
        if alike
        else np.concatenate([array.reshape(-1) for array in arrays])
    )


def _plain(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _samples(
    model: LoadedModel, document: Mapping[str, Any], facts: Facts
) -> tuple[Samples, str]:
    """Return the samples, and the hash of the data that they were made of."""
    if document.get("arrays"):
        arrays = load_arrays(Path(document["arrays"]))
        return _transferred(
            model, arrays, document["rows"], document.get("layouts") or {}
        ), ""
    if document.get("data"):
        data = select_samples(Path(document["data"]), facts, MAX_SAMPLES)
        samples = prepare_samples(model, data)
        return samples, hash_samples(samples.used)
    return random_samples(model), ""


def _prepares_otherwise(
    model: LoadedModel, document: Mapping[str, Any], facts: Facts, transferred: Samples
) -> bool:
    """Return whether a version makes other numbers of the data than the version whose arrays were transferred.

    Data that are arrays already tell nothing, and their names may be others here.
    """
    if not (document.get("arrays") and document.get("data")):
        return False
    data = select_samples(Path(document["data"]), facts, MAX_SAMPLES)
    if model.task.name == "tensors" or any(
        sample.name.endswith((".npy", ".npz")) for sample in data
    ):
        return False
    try:
        own = prepare_samples(model, data).arrays
    except ConversionError:
        return True
    pairs = (
        (own[name], array)
        for name, array in transferred.arrays.items()
        if array.dtype != object
    )
    return any(
        first.shape == second.shape and not np.allclose(first, second, atol=1e-4)
        for first, second in pairs
    )


def _transferred(
    model: LoadedModel,
    arrays: Mapping[str, Array],
    rows: Mapping[str, bool],
    layouts: Mapping[str, str],
) -> Samples:
    """Return another version's inputs as this one's: by name, else in order; channels moved where a tool moved them."""
    specs = model.inputs.specs
    if len(arrays) != len(specs):
        raise ConversionError(
            f"the result takes {len(specs)} inputs, and the original {len(arrays)}"
        )
    by_name = set(arrays) == {spec.name for spec in specs}
    order = [spec.name for spec in specs]
    names = {
        old: old if by_name else new for old, new in zip(arrays, order, strict=True)
    }
    moved = {
        names[old]: _moved(array, layouts.get(old, "")) for old, array in arrays.items()
    }
    typed = {spec.name: _typed(moved[spec.name], spec) for spec in specs}
    return Samples(
        typed,
        {names[old]: flag for old, flag in rows.items()},
        max(map(len, arrays.values())),
    )


def _moved(array: Array, layout: str) -> Array:
    axes = {"NHWC": (0, 2, 3, 1), "NCHW": (0, 3, 1, 2)}.get(layout)
    return (
        array
        if axes is None or array.ndim != 4
        else np.ascontiguousarray(array.transpose(axes))
    )


def _typed(array: Array, spec: TensorSpec) -> Array:
    """Return indices in the integers that this version takes: some tools write others."""
    dtype = (
        np.dtype(DATATYPES[spec.datatype].typestr)
        if spec.datatype != "BYTES"
        else array.dtype
    )
    both_integer = (
        array.dtype.kind in "iu" and dtype.kind in "iu" and spec.quantization is None
    )
    return array.astype(dtype) if both_integer and not spec.open else array


def _answer(
    service: Service, name: str, version: str, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Run one sample as a request."""
    tensors = [to_tensor(key, array) for key, array in inputs.items()]
    payload = TensorPayload(
        InferRequest(inputs=tensors, binary_output=True), row_by_row=True
    )
    response = submit_and_wait(
        service.submit,
        InferenceCall(name, version, payload, service.request_options({})),
    )
    return {tensor.name: to_array(tensor) for tensor in response.outputs}


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # a fault is in the report
    sys.exit(report(Path(sys.argv[1]), run_samples))
