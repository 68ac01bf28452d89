"""Rows by feature name, for a model that takes all features as one matrix.

Clients send a column for each feature, as MLServer's codec for pandas does, or rows that are objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.tasks.base import Task
from pocketserve.tasks.form import FormProvider
from pocketserve.tensors import Array, TensorSpec, to_array, to_tensor
from pocketserve_wire import DATATYPES, ApiError, ErrorCode, Tensor


def matrix_features(task: Task, bound: Bindings) -> list[str]:
    """Return the names of a matrix's columns.

    Empty if the input is no matrix or its columns have no names.
    """
    specs = bound.specs
    if not isinstance(task, FormProvider):
        return []
    if len(specs) != 1 or len(specs[0].shape) != 2:
        return []
    return [feature.name for feature in task.form().features]


def join_columns(
    tensors: Sequence[Tensor], bound: Bindings, task: Task
) -> Sequence[Tensor]:
    """Return one matrix for tensors that are named by features.

    Other tensors are returned unchanged.

    Raises:
        ApiError: INVALID_REQUEST for a feature too many or too few; INVALID_TENSOR for columns of different lengths.
    """
    features = matrix_features(task, bound)
    columns = {tensor.name: tensor for tensor in tensors}
    if columns.keys().isdisjoint(features):
        return tensors
    _check_names(columns, features, "inputs")
    spec = bound.specs[0]
    values = [_column(columns[name], spec) for name in features]
    lengths = {len(column) for column in values}
    if len(lengths) != 1:
        raise ApiError(
            ErrorCode.INVALID_TENSOR,
            "the inputs of the features have different numbers of rows",
        )
    return [to_tensor(spec.name, np.stack(values, axis=1))]


def rows_of_objects(rows: Sequence[Any], features: Sequence[str]) -> list[list[Any]]:
    """Return objects by feature name as rows in the model's order.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    matrix = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            text = f"instances[{index}] must be an object with the features {', '.join(features)}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        _check_names(row, features, f"instances[{index}]")
        matrix.append([row[name] for name in features])
    return matrix


def rows_of_columns(
    columns: Mapping[str, Any], features: Sequence[str]
) -> list[list[Any]]:
    """Return lists of values by feature name as rows.

    The rows are in the model's order. A single value is a row.

    Raises:
        ApiError: INVALID_REQUEST, INVALID_TENSOR.
    """
    _check_names(columns, features, "inputs")
    lists = []
    for name in features:
        values = columns[name]
        lists.append(values if isinstance(values, list) else [values])
    if len({len(values) for values in lists}) != 1:
        raise ApiError(
            ErrorCode.INVALID_TENSOR, "the features have different numbers of values"
        )
    return [list(row) for row in zip(*lists, strict=True)]


def _check_names(
    names: Mapping[str, Any], features: Sequence[str], location: str
) -> None:
    expected = dict.fromkeys(features)
    if names.keys() == expected.keys():
        return
    takes = f"the model takes {', '.join(features)}"
    for name in names:
        if name not in expected:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{location}: unknown feature {name!r:.80}; {takes}",
            )
    for name in features:
        if name not in names:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{location}: feature {name!r:.80} is missing; {takes}",
            )


def _column(tensor: Tensor, spec: TensorSpec) -> Array:
    """Return the values of one feature in the matrix's datatype."""
    location = f"input {tensor.name!r}"
    shape = tensor.shape
    if not shape or shape[1:] not in ((), (1,)):
        raise _misfit(
            f"{location}: a feature has shape [rows] or [rows, 1], got {list(shape)}"
        )
    datatype = "FP32" if spec.quantization is not None else spec.datatype
    target = np.dtype(DATATYPES[datatype].typestr)
    array = to_array(tensor).reshape(-1)
    is_number = tensor.datatype not in ("BYTES", "BF16")
    fits = is_number and np.can_cast(array.dtype, target, "same_kind")
    if not fits or datatype == "BF16":
        raise _misfit(
            f"{location}: {tensor.datatype} does not fit the model's {datatype}"
        )
    with np.errstate(over="ignore"):
        values = array.astype(target)
    if _is_lossy(array, values):
        raise _misfit(
            f"{location}: it holds values that do not fit the model's {datatype}"
        )
    return values


def _is_lossy(array: Array, values: Array) -> bool:
    """Return whether a conversion changed integers or overflowed."""
    if values.dtype.kind in "iu":
        return not np.array_equal(values, array)
    if values.dtype.kind == "f":
        return bool(np.isinf(values).sum() > np.isinf(array).sum())
    return False


def _misfit(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_TENSOR, text)
