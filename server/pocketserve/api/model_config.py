"""Triton's model configuration, as far as it applies.

The fields are those of ``model_config.proto`` in its JSON form; Triton's HTTP front writes 64-bit integers as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.repository.scan import ModelEntry
from pocketserve.task_registry import task_named
from pocketserve.tasks.vision.picture_input import picture_shape
from pocketserve.tensors import TensorSpec
from pocketserve_wire import DATATYPES

MAX_BATCH_SIZE = (
    1024  # rows of one request, for clients that ask; as many as ``max_batch`` may be
)
NO_FORMAT = "FORMAT_NONE"


def triton_config(entry: ModelEntry, running: ModelHandle) -> dict[str, Any]:
    """Describe a loaded version as Triton's ``GET /v2/models/NAME/config`` does."""
    model = running.model
    version = model.version
    inputs, outputs = model.inputs.specs, model.shown_outputs.specs
    rows = max_batch_size((*inputs, *outputs))
    instances = {"name": entry.name, "kind": "KIND_CPU", "count": len(model.sessions)}
    config: dict[str, Any] = {
        "name": entry.name,
        "platform": model.platform,
        "backend": version.format.triton or version.format.name,
        "version_policy": dict(entry.policy) or {"all": {}},
        "max_batch_size": rows,
        "input": _inputs(model, rows),
        "output": _outputs(entry, model, rows),
        "instance_group": [instances],
        "default_model_filename": version.path.name,
        "parameters": {"runtime": {"string_value": model.runtime}},
    }
    if running.queue.batches:
        config["dynamic_batching"] = {}
    if running.sequences is not None:
        idle = int(entry.manifest.state.max_idle * 1e6)
        config["sequence_batching"] = {
            "max_sequence_idle_microseconds": idle,
            "direct": {},
        }
    return config


def _inputs(model: LoadedModel, rows: int) -> list[dict[str, Any]]:
    takes_pictures = task_named(model.task.name).takes_pictures
    inputs = []
    for spec in model.inputs.specs:
        tensor = _tensor(spec, rows)
        tensor["format"] = _format(spec) if takes_pictures else NO_FORMAT
        inputs.append(tensor)
    return inputs


def _outputs(entry: ModelEntry, model: LoadedModel, rows: int) -> list[dict[str, Any]]:
    labels = entry.manifest.labels
    outputs = []
    for spec in model.shown_outputs.specs:
        tensor = _tensor(spec, rows)
        tensor["label_filename"] = labels if isinstance(labels, str) else ""
        outputs.append(tensor)
    return outputs


def max_batch_size(specs: Iterable[TensorSpec]) -> int:
    """Return the rows that all first dimensions count, or 0.

    Files whose batch is fixed to one count as taking one row: Triton's image client wants a picture's sizes alone.
    """
    firsts = {None if spec.open else spec.shape[:1] for spec in specs}
    if firsts == {(-1,)}:
        return MAX_BATCH_SIZE
    return 1 if firsts == {(1,)} else 0


def _tensor(spec: TensorSpec, rows: int) -> dict[str, Any]:
    dims = list(spec.shape[1:] if rows else spec.shape)
    tensor: dict[str, Any] = {
        "name": spec.name,
        "data_type": DATATYPES[spec.datatype].protobuf_name,
        "dims": dims or [1],
    }
    if not dims:  # the protocol has no empty dims
        tensor["reshape"] = {"shape": []}
    return tensor


def _format(spec: TensorSpec) -> str:
    """Return the picture layout of an input, for Triton's client."""
    try:
        _, channels_first = picture_shape(spec)
    except ValueError:
        return NO_FORMAT
    return "FORMAT_NCHW" if channels_first else "FORMAT_NHWC"
