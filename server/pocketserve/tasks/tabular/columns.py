"""Tables for models with an input for each column, as scikit-learn's pipelines are exported to ONNX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pocketserve.tasks import arrays
from pocketserve.tasks.base import invalid_input
from pocketserve.tensors import Array, TensorSpec, datatype_of


def is_column(spec: TensorSpec) -> bool:
    """Return whether an input takes one value a row."""
    return not spec.open and spec.shape[:1] in ((1,), (-1,)) and spec.shape[1:] in ((), (1,))


def table_of(columns: Sequence[TensorSpec]) -> TensorSpec:
    """The table that such inputs are together, for shapes and messages; each column has a datatype of its own."""
    kinds = {spec.datatype for spec in columns}
    return TensorSpec("row", kinds.pop() if len(kinds) == 1 else "FP64", (-1, len(columns)))


def split_rows(rows: Sequence[Any], columns: Sequence[TensorSpec]) -> dict[str, Array]:
    """Rows of JSON values, or one flat list of whole rows, as an array for each input.

    Raises:
        ApiError: INVALID_INPUT, INVALID_TENSOR.
    """
    width = len(columns)
    nested = [isinstance(row, list) for row in rows]
    if any(nested) and not all(nested):
        raise invalid_input(f"row {nested.index(False)} is no array, others are")
    if not any(nested):
        rows = [rows[start : start + width] for start in range(0, len(rows), width)]
    return {
        spec.name: arrays.fit_values([[row[i]] if len(spec.shape) == 2 else row[i] for row in rows], spec)
        for i, spec in enumerate(columns)
    }


def split_array(array: Array, columns: Sequence[TensorSpec]) -> dict[str, Array]:
    """An array of rows as an array for each input.

    Raises:
        ApiError: INVALID_INPUT.
    """
    table = arrays.fit_array(array, dataclasses.replace(table_of(columns), datatype=datatype_of(array.dtype)))
    return {
        spec.name: arrays.fit_array(table[:, i : i + 1] if len(spec.shape) == 2 else table[:, i], spec)
        for i, spec in enumerate(columns)
    }
