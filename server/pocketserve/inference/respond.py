"""Turn a model's outputs into the tensors that callers see, or into Triton's classification extension."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.tasks.labels import label_of
from pocketserve.tensors import Array, TensorSpec, dequantize, to_tensor
from pocketserve_wire import Tensor
from pocketserve_wire.oip import RequestedOutput
from pocketserve_wire.tensor import invalid


def output_tensor(
    requested: RequestedOutput,
    spec: TensorSpec,
    array: Array,
    reals: bool,
    labels: Sequence[str],
    batch: tuple[int, ...],
) -> Tensor:
    """Return one output as a caller asked for it.

    Args:
        reals: the caller sent real numbers to a quantised model, and gets real numbers.
        batch: the first dimension of the model's first input, as a tuple; empty for a scalar.

    Raises:
        ApiError: INVALID_TENSOR for the classes of what is no number.
    """
    if reals and spec.quantization is not None:
        array = dequantize(array, spec)
    if requested.classification:
        # The rows of the model's configuration, see api/model_config.py.
        batched = array.ndim > 1 and (
            batch == (-1,) or batch == (1,) == array.shape[:1]
        )
        return _classes(requested, array, spec, labels, batched)
    return to_tensor(requested.name, array, "BF16" if spec.datatype == "BF16" else None)


def task_outputs(
    handle: ModelHandle, result: Mapping[str, Array], reals: bool
) -> dict[str, Array]:
    """Return one run's outputs by the names that callers see; real numbers where real numbers were sent."""
    outputs = {}
    for spec in handle.model.outputs.specs:
        array = result[handle.model.outputs.by_name[spec.name][1]]
        outputs[spec.name] = (
            dequantize(array, spec) if reals and spec.quantization else array
        )
    return outputs


def _classes(
    requested: RequestedOutput,
    array: Array,
    spec: TensorSpec,
    labels: Sequence[str],
    batched: bool,
) -> Tensor:
    """Return BYTES ``value:index[:label]``, best first, ties in order, NaN last."""
    if array.dtype.kind not in "iuf":
        raise invalid(
            f"output {requested.name!r}",
            f"classification needs numbers, not {spec.datatype}",
        )
    stacked = array if batched else array[np.newaxis]
    rows = stacked.reshape(
        stacked.shape[0], math.prod(stacked.shape[1:])
    )  # -1 fails on no rows
    count = min(requested.classification, rows.shape[1])
    # Sorting the negated double keeps ties in order of the class and puts NaN last.
    best = [
        np.argsort(-row.astype(np.float64), kind="stable")[:count].tolist()
        for row in rows
    ]
    texts = [
        _class_text(row, index, labels)
        for row, indices in zip(rows, best, strict=True)
        for index in indices
    ]
    return Tensor(
        requested.name, "BYTES", (rows.shape[0], count) if batched else (count,), texts
    )


def _class_text(row: Array, index: int, labels: Sequence[str]) -> bytes:
    value = (
        f"{float(row[index]):.6f}" if row.dtype.kind == "f" else str(int(row[index]))
    )
    label = f":{label_of(labels, index)}" if index < len(labels) else ""
    return f"{value}:{index}{label}".encode()
