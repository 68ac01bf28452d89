"""A TFLite model as a tree of fields."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffer_tree import (
    FlatNode,
    FlatVector,
    SchemaField,
    TableField,
    UnionField,
    VectorField,
    read_tree,
)
from pocketserve.formats.flatbuffers import BUDGET, FlatBuffer
from pocketserve.runtimes.tflite.check import (
    TensorFlowOperatorError,
    check_tflite_graphs,
)

IDENTIFIER: Final = b"TFL3"

# TensorType.
FLOAT32 = 0
FLOAT16 = 1
INT8 = 9

# BuiltinOperator.
DEPTHWISE_CONV_2D = 4
DEQUANTIZE = 6
CALL = 31
CUSTOM = 32
DELEGATE = 51
BATCH_MATMUL = 126

_BYTES = VectorField()
_INT32 = VectorField(4)
_INT64 = VectorField(8)


def _vectors(*indices: int, of: VectorField = _INT64) -> dict[int, SchemaField]:
    return dict.fromkeys(indices, of)


_ARRAY: Final[Mapping[int, Mapping[int, SchemaField]]] = {
    1: _vectors(0, of=_INT32),
    2: _vectors(0, of=VectorField(2)),
    3: _vectors(0, of=_BYTES),
}
_DIMENSION: Final[Mapping[int, SchemaField]] = {
    3: UnionField(_ARRAY, 3),
    5: UnionField(_ARRAY, 3),
}
_SPARSITY: Final[Mapping[int, SchemaField]] = {
    **_vectors(0, 1, of=_INT32),
    2: TableField(_DIMENSION, 6, many=True),
}
_QUANTIZATION_DETAILS: Final[Mapping[int, Mapping[int, SchemaField]]] = {
    1: {0: VectorField(1, 16)},
    2: _vectors(3, of=_INT32),
    3: _vectors(3, of=_INT32),
}
_QUANTIZATION: Final[Mapping[int, SchemaField]] = {
    # Four bytes each: minima, maxima, scales.
    **_vectors(0, 1, 2, of=_INT32),
    3: _INT64,
    5: UnionField(_QUANTIZATION_DETAILS, 3),
}
_VARIANT: Final[Mapping[int, SchemaField]] = {0: _INT32}
_TENSOR: Final[Mapping[int, SchemaField]] = {
    0: _INT32,
    3: _BYTES,
    4: TableField(_QUANTIZATION, 7),
    6: TableField(_SPARSITY, 3),
    7: _INT32,
    9: TableField(_VARIANT, 3, many=True),
}
_OPTIONS: Final[Mapping[int, Mapping[int, SchemaField]]] = {
    3: _vectors(1, 2, of=_INT32),  # CONCAT_EMBEDDINGS
    8: _vectors(5, of=_BYTES),  # FULLY_CONNECTED
    17: _vectors(0, of=_INT32),  # RESHAPE
    30: _vectors(0, of=_INT32),  # SQUEEZE
    111: _vectors(0, 1, of=_BYTES),  # VAR_HANDLE
    115: _vectors(0, of=_INT32),  # BUCKETIZE
}
_STABLEHLO_OPTIONS: Final[Mapping[int, Mapping[int, SchemaField]]] = {
    2: _vectors(0),
    3: _vectors(0, 1, 2),
    4: {**_vectors(0, 1, 2, 3, 7, 10, 13), 4: _BYTES, 16: _INT32},
    5: {**_vectors(0, 2, 5, of=_BYTES), 4: _INT32},
    6: _vectors(0),
    7: _vectors(1, 2, 3),
    9: _vectors(0),
    10: _vectors(0, 1, 2),
    12: {**_vectors(0, 1, 2, 3), 4: _INT32},
    13: _vectors(0, 1, 2, 3, 4),
    16: _vectors(0, 1, 2, 4),
    17: _vectors(0),
    21: _vectors(0, 2, of=_BYTES),
    23: _vectors(0, of=_INT32),
}
_OPERATOR: Final[Mapping[int, SchemaField]] = {
    **_vectors(1, 2, 8, of=_INT32),
    4: UnionField(_OPTIONS, 126),
    # Some custom operators read numbers from it in place.
    5: VectorField(1, 16),
    7: _BYTES,
    12: UnionField(_STABLEHLO_OPTIONS, 23),
}
_NAME: Final[Mapping[int, SchemaField]] = {0: _BYTES}
_SIGNATURE: Final[Mapping[int, SchemaField]] = {
    0: TableField(_NAME, 2, many=True),
    1: TableField(_NAME, 2, many=True),
    2: _BYTES,
}
_GRAPH: Final[Mapping[int, SchemaField]] = {
    0: TableField(_TENSOR, 11, many=True),
    **_vectors(1, 2, of=_INT32),
    3: TableField(_OPERATOR, 14, many=True),
    4: _BYTES,
}
_MODEL: Final[Mapping[int, SchemaField]] = {
    1: TableField({1: _BYTES}, 4, many=True),  # operator codes
    2: TableField(_GRAPH, 6, many=True),
    3: _BYTES,
    4: TableField({0: VectorField(1, 16)}, 3, many=True),  # buffers
    5: _INT32,
    6: TableField(_NAME, 2, many=True),  # metadata
    7: TableField(_SIGNATURE, 5, many=True),
}
MODEL_FIELDS: Final = TableField(_MODEL, 8)
"""Newer models have weights in separate files, in fields 8 and 9."""


def read_tflite_model(path: Path) -> FlatNode:
    """Return the root of a model, mapped from its file.

    Weights after the description are part of it.

    Raises:
        DamagedFileError: it is no complete TFLite model, or newer than this schema.
    """
    try:
        # So that every number of a tensor, buffer and operator is in its range.
        check_tflite_graphs(path)
        with path.open("rb") as file:
            # It is closed with the last vector.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # ValueError: the file is empty.
    except (OSError, ValueError) as error:
        raise DamagedFileError(str(error)) from error
    except TensorFlowOperatorError as error:
        raise DamagedFileError(
            f"it has an operator that only TensorFlow runs, {error!s:.80}"
        ) from error
    view = memoryview(data)
    buffer = FlatBuffer(data, IDENTIFIER, BUDGET + len(data))
    model = read_tree(buffer, view, MODEL_FIELDS)
    _read_far_weights(model, view)
    return model


def _read_far_weights(model: FlatNode, view: memoryview) -> None:
    """Set weights after the description, in models beyond 2 GB."""
    for buffer in model.nodes(4):
        offset, size = buffer.number(1, "Q"), buffer.number(2, "Q")
        if offset > 1:
            buffer.set_child(0, FlatVector(view[offset : offset + size], 1, 16))
            buffer.remove(1)
            buffer.remove(2)


def operator_kind(code: FlatNode) -> int:
    """Return the BuiltinOperator of an operator code.

    TFLite takes the larger of an older and a newer field.
    """
    return max(code.number(0, "b"), code.number(3, "i"))
