"""Find the operators at the start of a TFLite model that rescale its pixels.

Field numbers and operator codes are those of ``schema.fbs``.
"""

from __future__ import annotations

import struct
from typing import Final

from pocketserve.formats.flatbuffers import FlatTable
from pocketserve.runtimes.rescaling import rescales_pixels

MAX_OPERATORS = 4
"""The operators to look at; the one after the input comes first."""

_FLOAT32: Final = 0
_OPERATORS: Final = {0: "add", 18: "mul", 41: "sub", 42: "div"}
_MAX_CONSTANT_BYTES: Final = 16
_MAX_OLD_CODE: Final = 127


def takes_unscaled_pixels(root: FlatTable) -> bool:
    """Return whether the first graph rescales its only input from 0..255 itself.

    Model: 1 operator codes, 2 subgraphs, 4 buffers. SubGraph: 0 tensors, 1 inputs,
    3 operators. Operator: 0 code, 1 inputs. Tensor: 1 type, 2 buffer.
    """
    graph = root.element(2, 0)
    if graph is None:
        return False
    inputs = graph.integers(1, "i")
    if len(inputs) != 1:
        return False
    for position in range(MAX_OPERATORS):
        operator = graph.element(3, position)
        if operator is None:
            return False
        operands = operator.integers(1, "i")
        if inputs[0] not in operands:
            continue
        if len(operands) != 2:
            return False
        comes_first = operands[1] == inputs[0]
        values = _constant(root, graph, operands[0 if comes_first else 1])
        code = _code(root, operator.integer(0, "I"))
        return rescales_pixels(_OPERATORS.get(code, ""), values, comes_first)
    return False


def _code(root: FlatTable, number: int) -> int:
    """Return an operator's code: 3 in new files, 0 in those with old codes only."""
    entry = root.element(1, number)
    if entry is None:
        return -1
    return max(entry.integer(3, "i"), min(entry.integer(0, "b"), _MAX_OLD_CODE))


def _constant(root: FlatTable, graph: FlatTable, number: int) -> tuple[float, ...]:
    """Return the numbers of a small constant; empty for other tensors."""
    if number < 0:
        return ()
    tensor = graph.element(0, number)
    if tensor is None or tensor.integer(1, "b") != _FLOAT32:
        return ()
    buffer = root.element(4, tensor.integer(2, "I"))
    if buffer is None or not 0 < buffer.extent(0) <= _MAX_CONSTANT_BYTES:
        return ()
    raw = buffer.blob(0, _MAX_CONSTANT_BYTES)
    count = len(raw) // 4
    return struct.unpack_from(f"<{count}f", raw)
