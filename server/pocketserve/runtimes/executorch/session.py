"""Runs ExecuTorch programs (``.pte``). The package has no build for Termux: this is for computers.

What shapes the code below, found by running it:

* A file that is none, or with texts that are not UTF-8, ends the process while the error is logged; one that is cut
  short is read beyond its end. So files are checked before the framework sees them.
  What a delegate such as XNNPACK keeps in the file is its own format and is not checked: of a thousand damaged files
  about three still end the process. Programs from strangers belong into a process of their own.
* A method whose program was freed crashes. Both are kept together.
* The GIL is held for the whole of a run: nothing else in the process moves meanwhile.
* The file names no tensors. Of a tensor whose sizes vary it tells only that, and the greatest size of each dimension;
  not which of them vary. All of them count as free, and a manifest may fix the others.
* Plain numbers among the inputs are fixed at export; the same ones must be passed again.
"""

from __future__ import annotations

import importlib
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.flatbuffers import BUDGET, FlatBuffer, FlatTable
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Signature
from pocketserve.runtimes.executorch import INSTALL
from pocketserve.runtimes.torch.common import error_message, file_size, import_torch, leaf_array, load_error, to_torch
from pocketserve.tensors import Array, TensorSpec

_HOW_TO_INSTALL = f"ExecuTorch is not usable ({{}}); run: {INSTALL}"

# ScalarType of the schema, which is torch's own numbering.
_DATATYPES = {
    0: "UINT8", 1: "INT8", 2: "INT16", 3: "INT32", 4: "INT64", 5: "FP16", 6: "FP32", 7: "FP64", 11: "BOOL",
    15: "BF16", 27: "UINT16", 28: "UINT32", 29: "UINT64",
}  # fmt: skip

_NULL, _INT, _BOOL, _DOUBLE, _TENSOR, _STRING = range(1, 7)
_PLAIN_RESULTS = {_INT: "INT64", _BOOL: "BOOL", _DOUBLE: "FP64", _STRING: "BYTES"}

# Of the framework's error codes: internal (a delegate's own), not supported, invalid argument.
_SIZE_ERRORS = ("0x1", "0x10", "0x12")


@dataclass(frozen=True, slots=True)
class End:
    """One input or output of a method, as the file describes it.

    Attributes:
        kind: the number of the value's type in the schema's union.
        value: of a plain number, which is fixed.
        varies: whether a tensor's sizes do.
    """

    kind: int
    value: Any
    varies: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A method in the file."""

    name: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]


class ExecutorchRuntime:
    """Opens ExecuTorch programs."""

    platform = "executorch"
    option_keys: frozenset[str] = frozenset()
    fixed_threads = True  # its library has a pool of its own

    def open(self, source: ModelSource) -> ExecutorchSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        name = source.path.name
        size = file_size(source.path)
        plan = _chosen(name, read_plans(source.path))
        torch, runtime, title = _import()
        try:
            program = runtime.Runtime.get().load_program(source.path)
            method = program.load_method(plan.name)
            return ExecutorchSession(torch, (program, method), plan, title, size)
        except ModelLoadError:
            raise
        except Exception as error:
            raise load_error(name, title, error) from error


RUNTIME = ExecutorchRuntime()
"""The runtime of the kind ``executorch``."""


class ExecutorchSession:
    """One loaded method.

    Args:
        loaded: the program and its method; the first is held so that the second stays valid.
        plan: what the file says of the method.
        runtime: the framework with its version.
        file_bytes: size of the file.

    Raises:
        ModelLoadError: it takes or returns what the protocol cannot carry.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(self, torch: Any, loaded: tuple[Any, Any], plan: Plan, runtime: str, file_bytes: int) -> None:
        self._torch = torch
        self._loaded: tuple[Any, Any] | None = loaded
        meta = loaded[1].metadata
        self._ends = plan.inputs
        self._takes = _specs("input", plan.inputs, meta.input_tensor_meta)
        self._gives = _specs("output", plan.outputs, meta.output_tensor_meta)
        self.inputs: Sequence[TensorSpec] = [spec for spec in self._takes if spec is not None]
        self.outputs: Sequence[TensorSpec] = [spec for spec in self._gives if spec is not None]
        tensors = [number for number, end in enumerate(plan.inputs) if end.kind == _TENSOR]
        self._most = {f"input_{number}": tuple(meta.input_tensor_meta(number).sizes()) for number in tensors}
        self.runtime = runtime
        self.device = "cpu"
        self.memory_bytes = file_bytes + sum(meta.input_tensor_meta(number).nbytes() for number in tensors)

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: the program cannot take these sizes or types.
        """
        if self._loaded is None:
            raise RuntimeError("the session is closed")
        values = [
            end.value if spec is None else self._tensor(spec, inputs[spec.name])
            for spec, end in zip(self._takes, self._ends, strict=True)
        ]
        try:
            results = self._loaded[1].execute(values)
        except RuntimeError as error:
            raise self._explained(error, inputs) from error
        return {
            spec.name: leaf_array(self._torch, result, spec.datatype)
            for spec, result in zip(self._gives, results, strict=True)
            if spec is not None
        }

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._loaded = None

    def _tensor(self, spec: TensorSpec, array: Array) -> Any:
        maximum = self._most[spec.name]
        if len(array.shape) != len(maximum) or any(
            size > bound for size, bound in zip(array.shape, maximum, strict=True)
        ):
            raise ValueError(f"input {spec.name!r} takes shapes up to {list(maximum)}, not {list(array.shape)}")
        return to_torch(self._torch, array, spec).contiguous()

    def _explained(self, error: RuntimeError, inputs: Mapping[str, Array]) -> Exception:
        """The framework tells a number and logs the reason."""
        code = str(error).rpartition("error ")[2].strip()
        varies = any(end.varies for end in self._ends)
        if "set_inputs" in str(error) or (varies and code in _SIZE_ERRORS):
            shapes = ", ".join(f"{spec.name} {list(inputs[spec.name].shape)}" for spec in self.inputs)
            return ValueError(f"the program cannot take inputs of these shapes or types: {shapes} (error {code})")
        return RuntimeError(error_message(error))


def _specs(role: str, ends: Sequence[End], meta: Any) -> list[TensorSpec | None]:
    """A spec for each end that callers see; None for inputs that are fixed, and for results that are nothing."""
    return [_spec(f"{role}_{number}", end, meta, number) for number, end in enumerate(ends)]


def _spec(name: str, end: End, meta: Any, number: int) -> TensorSpec | None:
    if end.kind == _TENSOR:
        tensor = meta(number)
        datatype = _DATATYPES.get(tensor.dtype())
        if datatype is None:
            raise ModelLoadError(f"{name} is of a type (number {tensor.dtype()}) that the protocol does not have")
        return TensorSpec(name, datatype, tuple(-1 if end.varies else int(size) for size in tensor.sizes()))
    if name.startswith("output") and end.kind in _PLAIN_RESULTS:
        return TensorSpec(name, _PLAIN_RESULTS[end.kind], ())
    return None


def _import() -> tuple[Any, Any, str]:
    """PyTorch, ExecuTorch's runtime, and its title with the version.

    Raises:
        RuntimeMissingError: one of them is missing or broken.
    """
    torch = import_torch()
    try:
        return torch, importlib.import_module("executorch.runtime"), f"executorch {metadata.version('executorch')}"
    except Exception as error:  # a native library that does not fit raises OSError, among others
        raise RuntimeMissingError(
            _HOW_TO_INSTALL.format(f"{type(error).__name__}: {error_message(error, 200)}")
        ) from None


def _chosen(name: str, plans: Sequence[Plan]) -> Plan:
    named = [plan for plan in plans if plan.name == "forward"] or list(plans)
    if len(named) != 1:
        methods = ", ".join(plan.name for plan in plans) or "none"
        raise ModelLoadError(f"{name} has no method forward to serve, but {methods}; export one method as forward")
    return named[0]


# --- The file. Numbers of fields are those of ExecuTorch's program.fbs


def read_plans(path: Path) -> tuple[Plan, ...]:
    """The methods of a program, after checks of what the framework does not check.

    Raises:
        ModelLoadError: the file is no program, or is not whole.
    """
    try:
        with mapped(path) as data:
            identifier = data[4:8]
            if identifier[:2] != b"ET" or not identifier[2:].isdigit():
                raise ModelLoadError(
                    f"{path.name} is no ExecuTorch program (bytes 4 to 7 are not ETnn); export it again"
                )
            base, size = _extent(data)
            program = FlatBuffer(data, identifier, BUDGET + size).root()
            _check_segments(program, base, len(data))
            _check_texts(program)
            return program.tables(1, _plan)
    except (DamagedFileError, OSError) as error:
        raise ModelLoadError(f"{path.name} is damaged or cut short ({error_message(error)}); copy it again") from error


def _extent(data: mmap.mmap) -> tuple[int, int]:
    """Return where segments begin, and the program's own length; both from the header behind the identifier."""
    head = data[8:32]
    if head[:2] != b"eh" or not head[2:4].isdigit():
        return len(data), len(data)
    size, base = struct.unpack_from("<QQ", head, 8) if len(head) == 24 else (1, 0)
    if size > len(data) or base > len(data):
        raise DamagedFileError("its parts lie outside the file")
    return base, size


def _check_segments(program: FlatTable, base: int, size: int) -> None:
    """Program: 4 segments. DataSegment: 0 offset, 1 size."""
    for offset, length in program.tables(4, lambda segment: (segment.integer(0, "Q"), segment.integer(1, "Q"))):
        if base + offset + length > size:
            raise DamagedFileError("its weights lie outside the file")


def _check_texts(program: FlatTable) -> None:
    """Program: 1 plans, 7 named data. Plan: 0 name, 2 values, 6 operators, 7 delegates. All that may be logged."""
    texts = list(program.tables(7, lambda named: named.text(0)))
    for plan in program.tables(1, lambda plan: plan):
        texts.append(plan.text(0))
        texts += [text for pair in plan.tables(6, lambda one: (one.text(0), one.text(1))) for text in pair]
        texts += plan.tables(7, lambda delegate: delegate.text(0))
        texts += [key for keys in plan.tables(7, _keys) for key in keys]
    if any("\N{REPLACEMENT CHARACTER}" in text for text in texts):
        raise DamagedFileError("a name in it is not UTF-8")


def _keys(delegate: FlatTable) -> tuple[str, ...]:
    """BackendDelegate: 2 compile specs. CompileSpec: 0 key."""
    return delegate.tables(2, lambda spec: spec.text(0))


def _plan(plan: FlatTable) -> Plan:
    """ExecutionPlan: 0 name, 2 values, 3 inputs, 4 outputs."""
    return Plan(plan.text(0), _ends(plan, 3), _ends(plan, 4))


def _ends(plan: FlatTable, number: int) -> tuple[End, ...]:
    values = [plan.element(2, index) if index >= 0 else None for index in plan.integers(number, "i")]
    if any(value is None for value in values):
        raise DamagedFileError("an input or output is not there")
    return tuple(_end(value) for value in values if value is not None)


def _end(value: FlatTable) -> End:
    """EValue: 0 kind, 1 value. Tensor: 8 shape dynamism. Int, Bool, Double: 0 value."""
    kind, content = value.integer(0, "B"), value.table(1)
    code = {_INT: "q", _BOOL: "?", _DOUBLE: "d"}.get(kind)
    number = content.integer(0, code) if content is not None and code is not None else None
    if isinstance(number, float) and not math.isfinite(number):
        raise DamagedFileError("a number is infinite or not a number")
    return End(kind, number, kind == _TENSOR and content is not None and content.integer(8, "b") != 0)
