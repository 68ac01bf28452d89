"""Check that a ``.tflite`` file is complete before a framework reads it.

ai-edge-litert checks this itself; tflite-runtime, the package in Termux, crashes the
process instead. The check is partial: a file that passes may still be damaged. Field
numbers are those of TensorFlow Lite's ``schema.fbs``.

TensorFlow's own interpreter runs any TensorFlow operator, even ``WriteFile``, as a
custom operator whose name begins with ``Flex``. The operator's options decide which one
runs, not the name. All of them are rejected.
"""

from __future__ import annotations

from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.flatbuffers import BUDGET, FlatBuffer, FlatTable
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_files import file_errors

_CUSTOM = 32  # the kind of named operators
# VAR_HANDLE, READ_VARIABLE and ASSIGN_VARIABLE
_STATE_OPERATORS = frozenset({142, 143, 144})


class TensorFlowOperatorError(Exception):
    """A model uses a TensorFlow operator; the text is its name."""


def check_file(path: Path) -> tuple[int, bool]:
    """Check a file; return its size and whether the model keeps state."""
    try:
        with file_errors(path.name):
            with path.open("rb") as file:
                head = file.read(8)
            if head[4:] != b"TFL3":
                raise ModelLoadError(
                    f"{path.name} is not a TFLite model (bytes 4 to 7 are not TFL3); "
                    "copy "
                    "or convert the file again"
                )
            return path.stat().st_size, check_tflite_graphs(path)
    except TensorFlowOperatorError as error:
        raise ModelLoadError(
            f"{path.name} uses TensorFlow operators ({error!s:.80}), which may do more "
            "than compute and are not run; convert the model with TFLite's built-in "
            "operators only"
        ) from error


def check_tflite_graphs(path: Path) -> bool:
    """Check operators and offsets; return whether the model keeps state."""
    with mapped(path) as data:
        buffer = FlatBuffer(data, b"TFL3", BUDGET + len(data))
        return _check_parts(buffer.root(), len(data))


def _check_parts(model: FlatTable, size: int) -> bool:
    """Check a Model: 1 operator codes, 2 subgraphs, 4 buffers."""
    codes = model.tables(1, _operator_kind)
    buffers = len(model.tables(4, lambda buffer: _check_buffer(buffer, size)))
    graphs = model.tables(
        2, lambda graph: _check_graph(graph, len(codes), buffers, size)
    )
    if not graphs:
        raise DamagedFileError("there is no graph in it")
    return any(graphs) or not _STATE_OPERATORS.isdisjoint(codes)


def _check_buffer(buffer: FlatTable, size: int) -> None:
    """Check a Buffer: 0 data, or 1 offset and 2 size in the file."""
    buffer.extent(0)
    _check_extent(buffer, 1, size)


def _check_extent(table: FlatTable, number: int, size: int) -> None:
    """Check an offset in the file and the size in the following field."""
    if table.integer(number, "Q") + table.integer(number + 1, "Q") > size:
        raise DamagedFileError("weights lie beyond its end")


def _operator_kind(code: FlatTable) -> int:
    """Return the kind of an OperatorCode.

    Fields: 0 kind in older files, 1 custom name, 3 kind. TFLite uses the larger kind.
    """
    name = code.text(1)
    kind = max(code.integer(0, "b"), code.integer(3, "i"))
    if kind == _CUSTOM and name.startswith("Flex"):
        raise TensorFlowOperatorError(name)
    return kind


def _check_graph(graph: FlatTable, codes: int, buffers: int, size: int) -> bool:
    """Check a SubGraph; return whether it has variables.

    Fields: 0 tensors, 1 inputs, 2 outputs, 3 operators.
    """
    variables = graph.tables(0, lambda tensor: _check_tensor(tensor, buffers))
    _check_indices(graph.integers(1, "i") + graph.integers(2, "i"), len(variables))
    graph.tables(
        3, lambda operator: _check_operator(operator, codes, len(variables), size)
    )
    return any(variables)


def _check_tensor(tensor: FlatTable, buffers: int) -> bool:
    """Check a Tensor; return whether it is a variable.

    Fields: 0 shape, 2 buffer, 3 name, 5 is variable, 7 signature.
    """
    tensor.text(3)
    tensor.integers(0, "i")
    tensor.integers(7, "i")
    if tensor.integer(2, "I") >= max(buffers, 1):
        raise DamagedFileError("a tensor's weights are not there")
    return bool(tensor.integer(5, "B"))


def _check_operator(operator: FlatTable, codes: int, tensors: int, size: int) -> None:
    """Check an Operator.

    Fields: 0 code, 1 inputs, 2 outputs, 4 options; 9 offset and 10 size of large custom
    options in the file.
    """
    if operator.integer(0, "I") >= codes:
        raise DamagedFileError("an operator's kind is not there")
    _check_indices(operator.integers(1, "i") + operator.integers(2, "i"), tensors)
    operator.table(4)
    _check_extent(operator, 9, size)


def _check_indices(indices: tuple[int, ...], tensors: int) -> None:
    for index in indices:
        # -1 is an omitted optional input.
        if not -1 <= index < tensors:
            raise DamagedFileError("a tensor that is used is not there")
