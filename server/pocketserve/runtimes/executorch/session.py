"""Run ExecuTorch programs (``.pte``); the package has no build for Termux.

Observed behaviour that shapes this module:

* An invalid file, or one with texts that are not UTF-8, crashes the process while the
  error is logged; a truncated file is read beyond its end. So files are checked first.
  The data of a delegate such as XNNPACK has its own format and is not checked: about
  three of a thousand damaged files still crash the process.
* A method crashes after its program was freed. The session keeps both.
* A run holds the GIL.
* Tensors have no names. A tensor of variable size has only the maximum of each
  dimension. All of its dimensions count as free; a manifest may fix some.
* Numbers among the inputs are fixed at export and must be passed again.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.flatbuffers import BUDGET, FlatBuffer, FlatTable
from pocketserve.runtimes.base import (
    ModelLoadError,
    ModelSource,
    RuntimeMissingError,
    Signature,
)
from pocketserve.runtimes.executorch import INSTALL
from pocketserve.runtimes.framework_import import require_framework
from pocketserve.runtimes.model_files import file_errors, file_size, load_errors
from pocketserve.runtimes.torch.common import (
    error_message,
    explain_load_error,
    import_torch,
    leaf_array,
    to_torch,
)
from pocketserve.tensors import Array, TensorSpec

# ScalarType of the schema, which is torch's own numbering.
_DATATYPES = {
    0: "UINT8", 1: "INT8", 2: "INT16", 3: "INT32", 4: "INT64", 5: "FP16", 6: "FP32", 7: "FP64", 11: "BOOL",
    15: "BF16", 27: "UINT16", 28: "UINT32", 29: "UINT64",
}  # fmt: skip

# Types of values in the schema's union.
_INT, _BOOL, _DOUBLE, _TENSOR, _STRING = range(2, 7)
_PLAIN_RESULTS = {_INT: "INT64", _BOOL: "BOOL", _DOUBLE: "FP64", _STRING: "BYTES"}

# Error codes of the framework: internal (a delegate's), not supported, invalid
# argument.
_SIZE_ERRORS = ("0x1", "0x10", "0x12")


class _Value(NamedTuple):
    """An input or output of a method, from the file."""

    type: int
    number: int | float | None  # the value of a fixed number
    varies: bool  # whether it is a tensor of variable size


class _Method(NamedTuple):
    name: str
    inputs: Sequence[_Value]
    outputs: Sequence[_Value]


class ExecutorchRuntime:
    """Opens ExecuTorch programs."""

    platform = "executorch"
    option_keys: frozenset[str] = frozenset()
    fixed_threads = True  # its library has a pool of its own

    def open(self, source: ModelSource) -> ExecutorchSession:
        size = file_size(source.path)
        description = _read_method(source.path)
        torch = import_torch()
        runtime = require_framework(
            "executorch.runtime", "ExecuTorch", INSTALL, needs="Runtime"
        )
        try:
            title = f"executorch {metadata.version('executorch')}"
        except metadata.PackageNotFoundError as error:  # left by an uninstall
            raise RuntimeMissingError(
                f"ExecuTorch is not installed as a whole; run: {INSTALL}"
            ) from error
        with load_errors(
            lambda error: explain_load_error(source.path.name, title, error)
        ):
            program = runtime.Runtime.get().load_program(source.path)
            return ExecutorchSession(torch, program, description, title, size)


RUNTIME = ExecutorchRuntime()


class ExecutorchSession:
    """A method of a loaded program."""

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self,
        torch: Any,
        program: Any,
        description: _Method,
        runtime: str,
        file_bytes: int,
    ) -> None:
        self._torch = torch
        self._program = program
        self._method = program.load_method(description.name)
        meta = self._method.metadata
        self._values = description.inputs
        self._input_specs = _specs("input", description.inputs, meta.input_tensor_meta)
        self._output_specs = _specs(
            "output", description.outputs, meta.output_tensor_meta
        )
        self.inputs: Sequence[TensorSpec] = _without_none(self._input_specs)
        self.outputs: Sequence[TensorSpec] = _without_none(self._output_specs)
        self._maximum: dict[str, tuple[int, ...]] = {}
        self.memory_bytes = file_bytes
        self._read_sizes(meta)
        self.runtime = runtime
        self.device = "cpu"

    def _read_sizes(self, meta: Any) -> None:
        """Read the largest size of each input, and its memory."""
        for number, spec in enumerate(self._input_specs):
            if spec is not None:
                tensor = meta.input_tensor_meta(number)
                self._maximum[spec.name] = tuple(tensor.sizes())
                self.memory_bytes += tensor.nbytes()

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run; raise ``ValueError`` if sizes or types don't fit."""
        if self._method is None:
            raise RuntimeError("the session is closed")
        values = []
        for spec, value in zip(self._input_specs, self._values, strict=True):
            if spec is None:
                values.append(value.number)
            else:
                values.append(self._tensor(spec, inputs[spec.name]))
        try:
            results = self._method.execute(values)
        except RuntimeError as error:
            raise self._explained(error, inputs) from error
        arrays = {}
        for spec, result in zip(self._output_specs, results, strict=True):
            if spec is not None:
                arrays[spec.name] = leaf_array(self._torch, result, spec.datatype)
        return arrays

    def close(self) -> None:
        self._method = self._program = None

    def _tensor(self, spec: TensorSpec, array: Array) -> Any:
        maximum = self._maximum[spec.name]
        fits = len(array.shape) == len(maximum)
        for size, limit in zip(array.shape, maximum, strict=False):
            fits = fits and size <= limit
        if not fits:
            raise ValueError(
                f"input {spec.name!r} takes shapes up to {list(maximum)}, not "
                f"{list(array.shape)}"
            )
        return to_torch(self._torch, array, spec).contiguous()

    def _explained(self, error: RuntimeError, inputs: Mapping[str, Array]) -> Exception:
        """Add the reason, which the framework only logs, to an error."""
        code = str(error).rpartition("error ")[2].strip()
        varies = any(value.varies for value in self._values)
        is_size = varies and code in _SIZE_ERRORS
        if "set_inputs" not in str(error) and not is_size:
            return RuntimeError(error_message(error))
        shapes = []
        for spec in self.inputs:
            shape = list(inputs[spec.name].shape)
            shapes.append(f"{spec.name} {shape}")
        return ValueError(
            "the program cannot take inputs of these shapes or types: "
            f"{', '.join(shapes)} (error {code})"
        )


def _without_none(specs: Sequence[TensorSpec | None]) -> list[TensorSpec]:
    return [spec for spec in specs if spec is not None]


def _specs(role: str, values: Sequence[_Value], meta: Any) -> list[TensorSpec | None]:
    """Return the specs of values.

    Fixed inputs and results without a value have None.
    """
    specs: list[TensorSpec | None] = []
    for number, value in enumerate(values):
        name = f"{role}_{number}"
        spec = None
        if value.type == _TENSOR:
            spec = _tensor_spec(name, value, meta(number))
        elif role == "output" and value.type in _PLAIN_RESULTS:
            spec = TensorSpec(name, _PLAIN_RESULTS[value.type], ())
        specs.append(spec)
    return specs


def _tensor_spec(name: str, value: _Value, tensor: Any) -> TensorSpec:
    datatype = _DATATYPES.get(tensor.dtype())
    if datatype is None:
        raise ModelLoadError(
            f"{name} has a type (number {tensor.dtype()}) that the protocol doesn't "
            "support"
        )
    shape = tuple(map(int, tensor.sizes()))
    if value.varies:
        shape = (-1,) * len(shape)
    return TensorSpec(name, datatype, shape)


# --- The file. Numbers of fields are those of ExecuTorch's program.fbs


def _read_method(path: Path) -> _Method:
    """Check the program; return the method ``forward`` or the only one."""
    with file_errors(path.name, remedy="copy it again"), mapped(path) as data:
        identifier = data[4:8]
        if identifier[:2] != b"ET" or not identifier[2:].isdigit():
            raise ModelLoadError(
                f"{path.name} is not an ExecuTorch program (bytes 4 to 7 are not ETnn); "
                "export it again"
            )
        base, size = _extent(data)
        program = FlatBuffer(data, identifier, BUDGET + size).root()
        _check_segments(program, base, len(data))
        _check_texts(program)
        # ExecutionPlan: 0 name, 3 inputs, 4 outputs.
        methods = program.tables(
            1, lambda plan: _Method(plan.text(0), _values(plan, 3), _values(plan, 4))
        )
    return _chosen_method(path.name, methods)


def _check_segments(program: FlatTable, base: int, file_bytes: int) -> None:
    """Check that the weights lie in the file.

    Program: 4 segments. DataSegment: 0 offset, 1 size.
    """
    segments = program.tables(
        4, lambda part: (part.integer(0, "Q"), part.integer(1, "Q"))
    )
    for offset, length in segments:
        if base + offset + length > file_bytes:
            raise DamagedFileError("its weights lie outside the file")


def _chosen_method(file_name: str, methods: Sequence[_Method]) -> _Method:
    """Return the method ``forward``, or the only one."""
    choices = [method for method in methods if method.name == "forward"] or methods
    if len(choices) != 1:
        names = ", ".join(method.name for method in methods) or "none"
        raise ModelLoadError(
            f"{file_name} has no method forward to serve, but {names}; export one "
            "method as forward"
        )
    return choices[0]


def _extent(data: mmap.mmap) -> tuple[int, int]:
    """Return the start of segments and the program's length, from the header."""
    head = data[8:32]
    if head[:2] != b"eh" or not head[2:4].isdigit():
        return len(data), len(data)
    size = 1
    base = 0
    if len(head) == 24:
        size, base = struct.unpack_from("<QQ", head, 8)
    if size > len(data) or base > len(data):
        raise DamagedFileError("its parts lie outside the file")
    return base, size


def _check_texts(program: FlatTable) -> None:
    """Check all texts that may be logged.

    Program: 1 plans, 7 named data. Plan: 0 name, 6 operators, 7 delegates. Delegate: 0 id, 2 options.
    """
    texts = list(program.tables(7, lambda data: data.text(0)))
    for plan in program.tables(1, lambda plan: plan):
        texts.append(plan.text(0))
        for operator in plan.tables(6, lambda operator: operator):
            texts += operator.text(0), operator.text(1)
        for delegate in plan.tables(7, lambda delegate: delegate):
            texts += (
                delegate.text(0),
                *delegate.tables(2, lambda option: option.text(0)),
            )
    if any("\N{REPLACEMENT CHARACTER}" in text for text in texts):
        raise DamagedFileError("a name in it is not UTF-8")


def _values(plan: FlatTable, field: int) -> list[_Value]:
    """Return the inputs or outputs of a plan.

    ExecutionPlan: 2 values. EValue: 0 type, 1 value. Tensor: 8 shape dynamism. Int,
    Bool, Double: 0 value.
    """
    values = []
    for index in plan.integers(field, "i"):
        entry = None
        if index >= 0:
            entry = plan.element(2, index)
        if entry is None:
            raise DamagedFileError("an input or output is not there")
        values.append(_value(entry))
    return values


_NUMBER_CODES = {_INT: "q", _BOOL: "?", _DOUBLE: "d"}


def _value(entry: FlatTable) -> _Value:
    """Read a value: its kind, a fixed number, and whether its sizes vary."""
    kind = entry.integer(0, "B")
    content = entry.table(1)
    if content is None:
        return _Value(kind, None, False)
    number: int | float | None = None
    code = _NUMBER_CODES.get(kind)
    if code is not None:
        number = content.integer(0, code)
    if isinstance(number, float) and not math.isfinite(number):
        raise DamagedFileError("a number is infinite or not a number")
    varies = False
    if kind == _TENSOR:
        varies = content.integer(8, "b") != 0
    return _Value(kind, number, varies)
