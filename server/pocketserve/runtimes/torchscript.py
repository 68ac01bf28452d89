"""Runs TorchScript archives (``torch.jit.save``), whatever their ending.

The file holds a program in TorchScript's own language, which cannot call Python. It could write files all the same
(``torch.save``) and read them (``torch.from_file``): files that name these are refused. TorchScript is no sandbox
beyond that. A forward run releases the GIL.

A file tells names and kinds of its inputs, but neither datatypes nor ranks of tensors; a manifest may.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.torch_common import (
    file_size,
    flatten,
    import_torch,
    input_fault,
    leaf_array,
    leaf_spec,
    load_error,
    match,
    one_line,
    to_torch,
    weight_bytes,
    zeros,
)
from pocketserve.runtimes.zip_kinds import BadZipError, kind_of_zip, members, read_member
from pocketserve.tensors import Array, TensorSpec

RESET_METHOD = "reset_states"
"""What stateful modules call it by custom, such as Silero's voice activity detectors."""

MAX_CODE_BYTES = 64 * 1024 * 1024
"""One source file of an archive; the largest known ones have a few megabytes."""

_GAP = r"(?:\s|\\|#[^\n]*\n)*"
_FILE_ACCESS = re.compile(rf"\b(?:torch|aten){_GAP}\.{_GAP}(save|from_file)\b")

_INSTEAD = {
    "state_dict": "holds weights without a model; build the model in a model.py and name this file as its weights",
    "pt2": "is an exported program; give it the ending .pt2",
    "aoti": "is a compiled package of native code, which is not served; serve the exported program",
    None: "is no TorchScript archive, or is damaged; save it again with torch.jit.save",
}


# --- What a method takes


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a method; ``type`` is written as in Python, such as ``Optional[int]``."""

    name: str
    type: str
    default: Any = None
    optional: bool = False

    @property
    def kind(self) -> str:
        """The type without ``Optional``."""
        return self.type[9:-1] if self.type.startswith("Optional[") else self.type


_SCALARS = {"int": "INT64", "float": "FP32", "bool": "BOOL", "str": "BYTES"}
_KINDS = {"int": "iu", "float": "iuf", "bool": "b", "str": "O"}
_WORDS = {"int": "whole numbers", "float": "numbers", "bool": "BOOL", "str": "texts"}
_LISTS = {f"List[{scalar}]": scalar for scalar in _SCALARS}


def value_of(torch: Any, argument: Argument, spec: TensorSpec, array: Array) -> Any:
    """What a method gets for an array: a tensor, or plain Python values where it takes those.

    Raises:
        ValueError: the array is of another kind.
    """
    if argument.kind == "Tensor":
        return to_torch(torch, array, spec)
    scalar = _LISTS.get(argument.kind, argument.kind)
    if array.dtype.kind not in _KINDS[scalar]:
        raise ValueError(f"input {spec.name!r} takes {_WORDS[scalar]}, not {array.dtype}")
    items = [_plain(scalar, item) for item in array.reshape(-1).tolist()]
    if argument.kind in _LISTS:
        return items
    if len(items) != 1:
        raise ValueError(f"input {spec.name!r} takes one value, not {len(items)}")
    return items[0]


def _plain(scalar: str, item: Any) -> Any:
    if scalar == "str":
        return item.decode() if isinstance(item, bytes) else str(item)
    return float(item) if scalar == "float" else item


class Parameters:
    """How a method's arguments are filled: from inputs, from the manifest's fixed values, or by default.

    Args:
        arguments: without ``self``.

    Attributes:
        inputs: what callers send, in the method's order.

    Raises:
        ModelLoadError: an argument can be filled by none of them, or the manifest names one that is not there.
    """

    def __init__(self, torch: Any, arguments: Sequence[Argument], source: ModelSource) -> None:
        self._torch = torch
        self._arguments = arguments
        self._fixed = _fixed_values(torch, arguments, source.options.get("arguments", {}))
        asked = {spec.name for spec in source.inputs}
        open_ones = [a for a in arguments if a.name not in self._fixed and (not a.optional or a.name in asked)]
        declared = match([a.name for a in open_ones], source.inputs, "input")
        self._sent = {a.name: declared.get(a.name) or _guess(a) for a in open_ones}
        self.inputs = tuple(self._sent.values())

    def values(self, inputs: Mapping[str, Array]) -> list[tuple[Argument, Any]]:
        """Arguments with their values; those left out take their default.

        Raises:
            ValueError: an input is of the wrong kind.
        """
        filled = []
        for argument in self._arguments:
            if argument.name in self._fixed:
                filled.append((argument, self._fixed[argument.name]))
            elif (spec := self._sent.get(argument.name)) is not None:
                filled.append((argument, value_of(self._torch, argument, spec, inputs[spec.name])))
        return filled

    def positional(self, inputs: Mapping[str, Array]) -> list[Any]:
        """The same for callers without keywords: defaults are spelled out up to the last value that is given.

        Raises:
            ValueError: an input is of the wrong kind.
        """
        given = {argument.name: value for argument, value in self.values(inputs)}
        last = max((at for at, a in enumerate(self._arguments) if a.name in given), default=-1)
        return [given.get(argument.name, argument.default) for argument in self._arguments[: last + 1]]


def _fixed_values(torch: Any, arguments: Sequence[Argument], fixed: Any) -> dict[str, Any]:
    if not isinstance(fixed, dict):
        raise ModelLoadError("model.toml: arguments must be a table of keyword arguments")
    known = {argument.name: argument for argument in arguments}
    values = {}
    for name, value in fixed.items():
        if name not in known:
            raise ModelLoadError(
                f"model.toml: arguments names {name!r}, the model takes {', '.join(known) or 'nothing'}"
            )
        values[name] = _fixed_value(torch, known[name], value)
    return values


def _fixed_value(torch: Any, argument: Argument, value: Any) -> Any:
    """A manifest's value in the argument's own type: nothing else may reach the lite interpreter (see ``ptl``)."""
    scalar = _LISTS.get(argument.kind, argument.kind)
    items = value if isinstance(value, list) else [value]
    try:
        if argument.kind == "Tensor":
            return torch.tensor(value)
        if scalar not in _SCALARS or isinstance(value, list) != (argument.kind in _LISTS):
            raise TypeError
        wanted = (int, float) if scalar == "float" else {"int": int, "bool": bool, "str": str}[scalar]
        if not all(isinstance(item, wanted) and (scalar == "bool" or type(item) is not bool) for item in items):
            raise TypeError
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ModelLoadError(
            f"model.toml: arguments.{argument.name} must be {argument.type}, not {value!r:.80}"
        ) from None
    items = [float(item) for item in items] if scalar == "float" else items
    return items if argument.kind in _LISTS else items[0]


def _guess(argument: Argument) -> TensorSpec:
    """What to show for an input that nothing describes."""
    if argument.kind == "Tensor":
        return TensorSpec(argument.name, "FP32", (-1,), open=True)
    if argument.kind in _SCALARS:
        return TensorSpec(argument.name, _SCALARS[argument.kind], (), open=True)
    if argument.kind in _LISTS:
        return TensorSpec(argument.name, _SCALARS[_LISTS[argument.kind]], (-1,), open=True)
    raise ModelLoadError(
        f"the model's argument {argument.name!r} is of type {argument.type}, which no tensor can carry; wrap the model "
        "in a module that takes tensors"
    )


# --- What a method returns


class Results:
    """Names and specs of a method's results.

    Args:
        names: the results' own names; None while they are not known.
        found: specs that a run gave, by own name.

    Attributes:
        outputs: what callers get.

    Raises:
        ModelLoadError: nothing tells the names, or the manifest names others.
    """

    def __init__(
        self, names: Sequence[str] | None, declared: Sequence[TensorSpec], found: Mapping[str, TensorSpec]
    ) -> None:
        self._declared = declared
        if names is None and not declared:
            raise ModelLoadError(
                "the file does not tell how many outputs the model has; declare [[inputs]] or [[outputs]] in model.toml"
            )
        named = {} if names is None else match(names, declared, "output")
        self._specs = {
            name: named.get(name) or found.get(name) or TensorSpec(name, "FP32", (-1,), open=True)
            for name in names or ()
        }
        self.outputs = tuple(self._specs.values()) if names is not None else tuple(declared)

    def arrays(self, torch: Any, result: Any) -> dict[str, Array]:
        """A result under the outputs' names.

        Raises:
            RuntimeError: it does not have the outputs that the model had at first, or that the manifest declares.
        """
        leaves = dict(flatten(result))
        try:
            specs = self._specs or match(list(leaves), self._declared, "output")
            return {spec.name: leaf_array(torch, leaves[name], spec.datatype) for name, spec in specs.items()}
        except (KeyError, ModelLoadError):
            names = ", ".join(spec.name for spec in self.outputs)
            raise RuntimeError(f"the model returned {', '.join(leaves) or 'nothing'} instead of {names}") from None


def outline(kind: Any, value: Any = None) -> Any:
    """A stand-in for a result, as far as the program's text tells it: nested as it is, with None for each leaf.

    Args:
        kind: the type.
        value: the graph's value of it, which tells the keys of dictionaries and the lengths of lists.

    Raises:
        LookupError: only a run can tell.
    """
    match kind.kind():
        case "TensorType" | "IntType" | "FloatType" | "BoolType" | "StringType" | "NoneType" | "NumberType":
            return None
        case "OptionalType":
            return outline(kind.getElementType(), value)
        case "TupleType":
            parts = _made_by(value, "prim::TupleConstruct") or [None] * len(kind.elements())
            items = [outline(item, part) for item, part in zip(kind.elements(), parts, strict=True)]
            fields = field_names(kind.str())
            return dict(zip(fields, items, strict=True)) if fields else items
        case "ListType":
            if kind.getElementType().kind() in ("IntType", "FloatType", "BoolType", "StringType"):
                return None
            return [outline(kind.getElementType(), part) for part in _known(_made_by(value, "prim::ListConstruct"))]
        case "DictType":
            parts = _known(_made_by(value, "prim::DictConstruct"))
            return {
                _known(k.toIValue()): outline(kind.getValueType(), v)
                for k, v in zip(parts[::2], parts[1::2], strict=True)
            }
    raise LookupError(kind.kind())


def _made_by(value: Any, operation: str) -> list[Any] | None:
    """The parts that a value is put together from, if it is by that operation and nothing else is done to it."""
    if value is None or value.node().kind() != operation or len(value.uses()) != 1:
        return None
    return list(value.node().inputs())


def _known(value: Any) -> Any:
    if value is None:
        raise LookupError("not in the text")
    return value


def field_names(text: str) -> list[str]:
    """The fields of ``NamedTuple(a : Tensor, b : (int, int))``; none for other types."""
    fields, depth = [], 0
    for part in text.removeprefix("NamedTuple(").split(", ") if text.startswith("NamedTuple(") else ():
        if depth == 0:
            fields.append(part.partition(" : ")[0])
        depth += sum(part.count(left) for left in "([") - sum(part.count(right) for right in ")]")
    return fields


# --- Sessions


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded model, as both interpreters offer it.

    Attributes:
        run: the method, called with an input's arrays by name.
        reset: forgets the state; None where the model keeps none.
    """

    torch: Any
    parameters: Parameters
    run: Callable[[Mapping[str, Array]], Any]
    reset: Callable[[], Any] | None
    runtime: str
    memory_bytes: int
    names: Sequence[str] | None


class ScriptSession:
    """One loaded program.

    Args:
        opener: loads the file; used twice where a run on zeros is needed, which must leave no state behind.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(self, opener: Callable[[], Program], source: ModelSource) -> None:
        program = opener()
        self.inputs: Sequence[TensorSpec] = program.parameters.inputs
        names, found = program.names, dict[str, TensorSpec]()
        if not source.outputs and not any(spec.open for spec in self.inputs):
            names, found = _probe(program)
            program = opener()
        self._results = Results(names, source.outputs, found)
        self._program: Program | None = program
        self.outputs: Sequence[TensorSpec] = self._results.outputs
        self.runtime = program.runtime
        self.device = "cpu"
        self.memory_bytes = program.memory_bytes

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: the model cannot take these sizes, types or values.
        """
        program = self._ready()
        try:
            result = program.run(inputs)
        except Exception as error:
            if (fault := input_fault(error, program.torch.jit.Error)) is not None:
                raise fault from error
            raise RuntimeError(one_line(error, 500)) from error
        return self._results.arrays(program.torch, result)

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._program = None

    def _ready(self) -> Program:
        if self._program is None:
            raise RuntimeError("the session is closed")
        return self._program


class StatefulSession(ScriptSession):
    """One loaded program that keeps state from run to run."""

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`."""
        program = self._ready()
        assert program.reset is not None
        program.reset()


def open_session(opener: Callable[[], Program], source: ModelSource) -> ScriptSession:
    """A session of the class that fits the program."""
    first: list[Program] = [opener()]

    def again() -> Program:
        # The program that told whether there is state serves; only a probe makes a second one necessary.
        return first.pop() if first else opener()

    return (ScriptSession if first[0].reset is None else StatefulSession)(again, source)


def _probe(program: Program) -> tuple[Sequence[str] | None, dict[str, TensorSpec]]:
    """What a run on zeros tells of the outputs.

    A model that refuses zeros (a sampling rate of 0) is no fault where its text tells the outputs.
    """
    inputs = program.parameters.inputs
    batched = bool(inputs) and inputs[0].shape[:1] == (-1,)
    try:
        leaves = flatten(program.run({spec.name: zeros(spec) for spec in inputs}))
    except Exception as error:
        if program.names is not None:
            return program.names, {}
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in inputs)
        raise ModelLoadError(
            f"a first run on zeros ({shapes}) failed: {one_line(error)}; check [[inputs]] or declare [[outputs]] in "
            "model.toml"
        ) from error
    try:
        found = {name: leaf_spec(program.torch, name, leaf, batched) for name, leaf in leaves if leaf is not None}
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"the model's results cannot be served: {error}") from error
    return list(found), found


def chosen_reset(source: ModelSource, has_method: Callable[[str], bool]) -> str | None:
    """The name of the method that resets a module, or None.

    Raises:
        ModelLoadError: the manifest names one that the model does not have.
    """
    name = source.options.get("reset")
    if name is None:
        return RESET_METHOD if has_method(RESET_METHOD) else None
    if not isinstance(name, str) or not has_method(name):
        raise ModelLoadError(f"model.toml: reset names {name!r:.80}, but the model has no method of that name")
    return name


def refuse_file_access(path: Path) -> None:
    """Refuse a program that reads or writes files when it runs, or already when it is loaded.

    Raises:
        ModelLoadError: it does, or its text cannot be read.
    """
    try:
        # PyTorch's reader takes names in any case.
        texts = [member for member in members(path) if member.name.lower().startswith("code/")]
        for text in texts:
            found = text.name.lower().endswith(".py") and _FILE_ACCESS.search(
                read_member(path, text, MAX_CODE_BYTES).decode("utf-8", errors="replace")
            )
            if found:
                raise ModelLoadError(f"{path.name} calls torch.{found[1]}, which opens files; it is not run")
    except (BadZipError, OSError) as error:
        raise ModelLoadError(f"{path.name} is damaged ({error}); copy it again") from error


# --- The runtime


class TorchScriptRuntime:
    """Opens TorchScript archives."""

    platform = "pytorch_torchscript"
    option_keys = frozenset({"arguments", "reset"})

    def open(self, source: ModelSource) -> ScriptSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        file_size(source.path)
        kind = kind_of_zip(source.path)
        if kind not in ("torchscript", "ptl"):  # mobile files keep the whole program beside the other form
            raise ModelLoadError(f"{source.path.name} {_INSTEAD[kind]}")
        torch = import_torch()
        refuse_file_access(source.path)
        torch.set_num_threads(source.threads)
        try:
            return open_session(lambda: load_script(torch, source), source)
        except ModelLoadError:
            raise
        except Exception as error:
            raise load_error(source.path.name, f"torch {torch.__version__}", error) from error


RUNTIME = TorchScriptRuntime()
"""The runtime of the kind ``torchscript``."""


def load_script(torch: Any, source: ModelSource) -> Program:
    """Load a program for the full interpreter.

    Raises:
        Exception: whatever PyTorch raises.
    """
    module = torch.jit.load(str(source.path), map_location="cpu").eval()
    if not module._c._has_method("forward"):
        raise ModelLoadError(f"{source.path.name} has no method forward")
    schema = module.forward.schema
    arguments = [
        Argument(a.name, a.type.annotation_str, a.default_value, a.has_default_value()) for a in schema.arguments[1:]
    ]
    parameters = Parameters(torch, arguments, source)

    def run(inputs: Mapping[str, Array]) -> Any:
        values = {argument.name: value for argument, value in parameters.values(inputs)}
        with torch.inference_mode():
            return module(**values)

    reset = chosen_reset(source, lambda name: _is_reset(module, name))
    # A frozen module keeps its weights in the program, where they are not counted.
    weights = weight_bytes((*module.parameters(), *module.buffers()))
    return Program(
        torch,
        parameters,
        run,
        getattr(module, reset) if reset else None,
        f"torch {torch.__version__} (TorchScript)",
        max(weights, file_size(source.path)),
        read_outline(module),
    )


def _is_reset(module: Any, name: str) -> bool:
    """Whether a module has a method of that name that can be called with nothing."""
    if not module._c._has_method(name):
        return False
    return all(argument.has_default_value() for argument in getattr(module, name).schema.arguments[1:])


def read_outline(module: Any) -> list[str] | None:
    """Names of the results, as far as the program's text tells them."""
    try:
        value = next(iter(module.inlined_graph.outputs()))
        return [name for name, _ in flatten(outline(module.forward.schema.returns[0].type, value))]
    except Exception:  # the graph's interface is not documented; without it a run tells
        return None
