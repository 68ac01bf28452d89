"""Triton's model configuration, as far as it applies.

The fields are those of ``model_config.proto`` in its JSON form; Triton's HTTP front writes 64-bit integers as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pocketserve.engine.lifecycle.handle import ModelHandle
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
    model, format = running.model, running.model.version.format
    inputs, outputs = model.inputs.specs, model.shown_outputs.specs
    rows = max_batch_size((*inputs, *outputs))
    pictures = task_named(model.task.name).takes_pictures
    labels = entry.manifest.labels if isinstance(entry.manifest.labels, str) else ""
    config: dict[str, Any] = {
        "name": entry.name,
        "platform": model.platform,
        "backend": format.triton or format.name,
        "version_policy": dict(entry.policy) or {"all": {}},
        "max_batch_size": rows,
        "input": [
            _tensor(spec, rows) | {"format": _format(spec) if pictures else NO_FORMAT}
            for spec in inputs
        ],
        "output": [
            _tensor(spec, rows) | {"label_filename": labels} for spec in outputs
        ],
        "instance_group": [
            {"name": entry.name, "kind": "KIND_CPU", "count": len(model.sessions)}
        ],
        "default_model_filename": model.version.path.name,
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
    tensor = {
        "name": spec.name,
        "data_type": DATATYPES[spec.datatype].protobuf_name,
        "dims": dims or [1],
    }
    return (
        tensor if dims else tensor | {"reshape": {"shape": []}}
    )  # the protocol has no empty dims


def _format(spec: TensorSpec) -> str:
    """Return the picture layout of an input, for Triton's client."""
    try:
        _, channels_first = picture_shape(spec)
    except ValueError:
        return NO_FORMAT
    return "FORMAT_NCHW" if channels_first else "FORMAT_NHWC"
