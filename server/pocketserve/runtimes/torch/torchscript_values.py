"""What a TorchScript method takes and returns, as tensors of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.torch.common import flatten, leaf_array, match, to_torch
from pocketserve.tensors import Array, TensorSpec, datatype_of


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

    def parts(self) -> list[Argument] | None:
        """Return what a tuple consists of, such as the two states of an LSTM (``hc.0``, ``hc.1``); None for other
        types.
        """
        if not self.kind.startswith("Tuple["):
            return None
        return [Argument(f"{self.name}.{at}", kind) for at, kind in enumerate(split_types(self.kind[6:-1]))]

    def leaves(self) -> list[Argument]:
        """The argument itself, or the innermost parts of a tuple: each is an input."""
        parts = self.parts()
        return [self] if parts is None else [leaf for part in parts for leaf in part.leaves()]


def split_types(text: str) -> list[str]:
    """``Tensor, Tuple[int, int]`` at its outer commas."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


_SCALARS = {"int": "INT64", "float": "FP32", "bool": "BOOL", "str": "BYTES"}
_KINDS = {"int": "iu", "float": "iuf", "bool": "b", "str": "O"}
_WORDS = {"int": "whole numbers", "float": "numbers", "bool": "BOOL", "str": "texts"}
_LISTS = {f"List[{scalar}]": scalar for scalar in _SCALARS}


def value_of(torch: Any, argument: Argument, spec: TensorSpec, array: Array) -> Any:
    """Return what a method gets for an array: a tensor, or plain Python values where it takes those.

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
        free = (argument for argument in arguments if argument.name not in self._fixed)
        self._sent = [a for a in free if not a.optional or asked & {leaf.name for leaf in a.leaves()}]
        leaves = [leaf for argument in self._sent for leaf in argument.leaves()]
        declared = match([leaf.name for leaf in leaves], source.inputs, "input")
        self._specs = {leaf.name: declared.get(leaf.name) or _guess(leaf) for leaf in leaves}
        self.inputs = tuple(self._specs.values())

    def values(self, inputs: Mapping[str, Array]) -> list[tuple[Argument, Any]]:
        """Arguments with their values; those left out take their default.

        Raises:
            ValueError: an input is of the wrong kind.
        """
        filled = []
        for argument in self._arguments:
            if argument.name in self._fixed:
                filled.append((argument, self._fixed[argument.name]))
            elif argument in self._sent:
                filled.append((argument, self._value(argument, inputs)))
        return filled

    def _value(self, argument: Argument, inputs: Mapping[str, Array]) -> Any:
        parts = argument.parts()
        if parts is not None:
            return tuple(self._value(part, inputs) for part in parts)
        spec = self._specs[argument.name]
        return value_of(self._torch, argument, spec, inputs[spec.name])

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
    """Return what to show for an input that nothing describes."""
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


class Results:
    """Names and specs of a method's results.

    Args:
        names: the results' own names; None while they are not known.
        found: specs that a run gave, by own name.

    Attributes:
        outputs: what callers get; those that nothing describes as the runs so far gave them.

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
        self._open = {name for name, spec in self._specs.items() if spec.open}
        self._shapes: list[tuple[int, ...]] = []

    def arrays(self, torch: Any, result: Any) -> dict[str, Array]:
        """A result under the outputs' names.

        Raises:
            RuntimeError: it does not have the outputs that the model had at first, or that the manifest declares.
        """
        leaves = dict(flatten(result))
        try:
            specs = self._specs or match(list(leaves), self._declared, "output")
            arrays = {spec.name: leaf_array(torch, leaves[name], spec.datatype) for name, spec in specs.items()}
        except (KeyError, ModelLoadError):
            names = ", ".join(spec.name for spec in self.outputs)
            raise RuntimeError(f"the model returned {', '.join(leaves) or 'nothing'} instead of {names}") from None
        if self._open and (shapes := [array.shape for array in arrays.values()]) != self._shapes:
            self._shapes = shapes
            self._learn(arrays)
        return arrays

    def _learn(self, arrays: Mapping[str, Array]) -> None:
        """Describe what the file does not; sizes that differ from run to run, and the first one, are free."""
        self.outputs = tuple(
            self._seen(name, spec, arrays[spec.name]) if name in self._open else spec
            for name, spec in zip(self._specs, self.outputs, strict=True)
        )

    def _seen(self, name: str, spec: TensorSpec, array: Array) -> TensorSpec:
        seen = replace(spec, datatype=datatype_of(array.dtype), shape=(-1, *array.shape[1:])[: array.ndim], open=False)
        if spec.open:
            return seen
        if (spec.datatype, len(spec.shape)) != (seen.datatype, array.ndim):  # another rank or type: nothing is sure
            self._open.discard(name)
            return self._specs[name]
        sizes = (size if size == other else -1 for size, other in zip(spec.shape, seen.shape, strict=True))
        return replace(spec, shape=tuple(sizes))


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
            return [outline(kind.getElementType(), part) for part in _items(value)]
        case "DictType":
            return {key: outline(kind.getValueType(), part) for key, part in _entries(value).items()}
    raise LookupError(kind.kind())


def _made_by(value: Any, operation: str) -> list[Any] | None:
    """The parts that a value is put together from, if it is by that operation and nothing else is done to it."""
    if value is None or value.node().kind() != operation or len(value.uses()) != 1:
        return None
    return list(value.node().inputs())


def _items(value: Any) -> list[Any]:
    """The elements of a list: those that it is made of, and those that are appended one by one."""
    return [*_started(value, "prim::ListConstruct"), *(item for (item,) in _added(value, "aten::append"))]


def _entries(value: Any) -> dict[Any, Any]:
    """A dictionary's values by key: those that it is made of, and those that are set one by one."""
    # A call of dict() or OrderedDict() without anything makes an empty one too.
    parts = _started(value, "prim::DictConstruct", "aten::dict")
    pairs = [*zip(parts[::2], parts[1::2], strict=True), *_added(value, "aten::_set_item")]
    return {_known(key.toIValue()): part for key, part in pairs}


_READING = frozenset(
    {
        "prim::Return",
        "prim::TupleConstruct",
        "prim::ListConstruct",
        "prim::DictConstruct",
        "aten::__getitem__",
        "aten::len",
    }
)
"""Uses that leave a list or dictionary as it is."""


_ADDING = frozenset({"aten::append", "aten::_set_item"})
_PLAIN = frozenset({"TensorType", "IntType", "FloatType", "BoolType", "StringType"})


def _only_reads(node: Any) -> bool:
    """Return whether a use leaves a list or dictionary as it is, and gives it to nothing that it is taken out of
    again.
    """
    kind = node.kind()
    if kind == "aten::__getitem__":
        return node.output().type().kind() in _PLAIN
    if kind.endswith("Construct") and kind in _READING:
        held = node.output()
        users = (use.user for use in held.uses())
        return all(next(user.inputs()) == held if user.kind() in _ADDING else _only_reads(user) for user in users)
    return kind in _READING


def _started(value: Any, operation: str, empty: str = "") -> list[Any]:
    """Return what a list or dictionary is made of by an operation, or nothing where another one makes it empty."""
    if value is None or value.node().kind() not in (operation, empty):
        raise LookupError("not in the text")
    parts = list(value.node().inputs())
    if parts and value.node().kind() == empty:
        raise LookupError("made out of something else")
    return parts


def _added(value: Any, operation: str) -> list[tuple[Any, ...]]:
    """Return what an operation adds to a list or dictionary, in the order of the text.

    Raises:
        LookupError: it is added in a branch or loop, or something else is done to the value.
    """
    kinds = [use.user.kind() for use in value.uses()]
    if any(use.user.kind() != operation and not _only_reads(use.user) for use in value.uses()):
        raise LookupError("changed in some other way")
    steps = [node for node in value.node().owningBlock().nodes() if node.kind() == operation]
    steps = [node for node in steps if next(node.inputs()) == value]
    if len(steps) != kinds.count(operation):
        raise LookupError("depends on the input")
    return [tuple(node.inputs())[1:] for node in steps]


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
