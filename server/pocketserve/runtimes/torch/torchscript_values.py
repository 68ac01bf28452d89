"""Arguments and results of a TorchScript method, as tensors of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.torch.common import (
    flatten,
    keyword_arguments,
    leaf_array,
    match_specs,
    to_torch,
)
from pocketserve.tensors import Array, TensorSpec, datatype_of

# By PyTorch's type: datatype of the protocol, kinds of NumPy arrays, noun, type of a manifest's values.
_SCALARS: Mapping[str, tuple[str, str, str, Any]] = {
    "IntType": ("INT64", "iu", "whole numbers", int),
    "FloatType": ("FP32", "iuf", "numbers", int | float),
    "BoolType": ("BOOL", "b", "BOOL", bool),
    "StringType": ("BYTES", "O", "texts", str),
}


class Argument:
    """An argument of a method, or a part of one that is a tuple.

    Attributes:
        kind: PyTorch's type of the value, or of the elements of a list.
        parts: of a tuple, such as the two states of an LSTM (``hc.0``, ``hc.1``).
    """

    def __init__(self, name: str, type: Any, optional: bool = False) -> None:
        self.name = name
        self.type = type.annotation_str
        self.optional = optional
        if type.kind() == "OptionalType":
            type = type.getElementType()
        self.is_list = type.kind() == "ListType"
        self.kind = type.getElementType().kind() if self.is_list else type.kind()
        self.is_tensor = type.kind() == "TensorType"
        elements = (
            type.elements() if type.annotation_str.startswith("Tuple[") else ()
        )  # no named tuple
        self.parts = [
            Argument(f"{name}.{at}", element) for at, element in enumerate(elements)
        ]

    def leaves(self) -> list[Argument]:
        """Return the argument itself, or the innermost parts of a tuple: each is an input."""
        return [leaf for part in self.parts for leaf in part.leaves()] or [self]


class Parameters:
    """A method's arguments (without ``self``): from inputs, from the manifest's fixed values, or by default."""

    def __init__(
        self, torch: Any, arguments: Sequence[Argument], source: ModelSource
    ) -> None:
        self._torch = torch
        self._fixed = _fixed_values(torch, arguments, keyword_arguments(source))
        declared = {spec.name for spec in source.inputs}
        free = [argument for argument in arguments if argument.name not in self._fixed]
        self._sent = [
            a
            for a in free
            if not a.optional or declared & {leaf.name for leaf in a.leaves()}
        ]
        leaves = [leaf for argument in self._sent for leaf in argument.leaves()]
        specs = match_specs([leaf.name for leaf in leaves], source.inputs, "input")
        self._specs = {
            leaf.name: specs.get(leaf.name) or _open_spec(leaf) for leaf in leaves
        }
        self.inputs = tuple(self._specs.values())

    def values(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Return the arguments by name, without those that take their default; ValueError for the wrong kind."""
        return self._fixed | {
            argument.name: self._value(argument, inputs) for argument in self._sent
        }

    def _value(self, argument: Argument, inputs: Mapping[str, Array]) -> Any:
        """Return a tensor, or plain Python values where the method takes those."""
        if argument.parts:
            return tuple(self._value(part, inputs) for part in argument.parts)
        spec = self._specs[argument.name]
        array = inputs[spec.name]
        if argument.is_tensor:
            return to_torch(self._torch, array, spec)
        _, kinds, noun, _ = _SCALARS[argument.kind]
        if array.dtype.kind not in kinds:
            raise ValueError(f"input {spec.name!r} takes {noun}, not {array.dtype}")
        items = array.reshape(-1).tolist()
        if argument.kind == "StringType":
            items = [
                item.decode() if isinstance(item, bytes) else str(item)
                for item in items
            ]
        elif argument.kind == "FloatType":
            items = list(map(float, items))
        if argument.is_list:
            return items
        if len(items) != 1:
            raise ValueError(f"input {spec.name!r} takes one value, not {len(items)}")
        return items[0]


def _fixed_values(
    torch: Any, arguments: Sequence[Argument], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    by_name = {argument.name: argument for argument in arguments}
    for name in fixed:
        if name not in by_name:
            raise ModelLoadError(
                f"model.toml: arguments names {name!r}, the model takes {', '.join(by_name) or 'nothing'}"
            )
    return {
        name: _fixed_value(torch, by_name[name], value) for name, value in fixed.items()
    }


def _fixed_value(torch: Any, argument: Argument, value: Any) -> Any:
    """Return a manifest's value in the argument's type."""
    try:
        if argument.is_tensor:
            return torch.tensor(value)
        items = value if argument.is_list else [value]
        expected = _SCALARS[argument.kind][3]
        fits = all(
            isinstance(item, expected) and (expected is bool or type(item) is not bool)
            for item in items
        )
        if not fits or isinstance(value, list) != argument.is_list:
            raise TypeError
        items = list(map(float, items)) if argument.kind == "FloatType" else items
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        raise ModelLoadError(
            f"model.toml: arguments.{argument.name} must be {argument.type}, not {value!r:.80}"
        ) from None
    return items if argument.is_list else items[0]


def _open_spec(argument: Argument) -> TensorSpec:
    """Return the default spec of an input without a description."""
    if argument.is_tensor:
        return TensorSpec(argument.name, "FP32", (-1,), open=True)
    if argument.kind in _SCALARS:
        return TensorSpec(
            argument.name,
            _SCALARS[argument.kind][0],
            (-1,) if argument.is_list else (),
            open=True,
        )
    raise ModelLoadError(
        f"the model's argument {argument.name!r} is of type {argument.type}, which no tensor can carry; wrap the model "
        "in a module that takes tensors"
    )


class Results:
    """Names and specs of a method's results.

    Args:
        names: the method's names of its results; None while they are not known.
        probed: specs that a run gave, by such a name.

    Attributes:
        outputs: what callers get; those that nothing describes as the runs so far gave them.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        declared: Sequence[TensorSpec],
        probed: Mapping[str, TensorSpec],
    ) -> None:
        self._declared = declared
        if names is None and not declared:
            raise ModelLoadError(
                "the file does not tell how many outputs the model has; declare [[inputs]] or [[outputs]] in model.toml"
            )
        specs = {} if names is None else match_specs(names, declared, "output")
        self._specs = {
            name: specs.get(name)
            or probed.get(name)
            or TensorSpec(name, "FP32", (-1,), open=True)
            for name in names or ()
        }
        self.outputs = (
            tuple(self._specs.values()) if names is not None else tuple(declared)
        )
        self._open = {name for name, spec in self._specs.items() if spec.open}
        self._shapes: list[tuple[int, ...]] = []

    def arrays(self, torch: Any, result: Any) -> dict[str, Array]:
        """Return a result by output names; raise ``RuntimeError`` if they differ."""
        leaves = dict(flatten(result))
        try:
            specs = self._specs or match_specs(list(leaves), self._declared, "output")
            arrays = {
                spec.name: leaf_array(torch, leaves[name], spec.datatype)
                for name, spec in specs.items()
            }
        except (KeyError, ModelLoadError):
            names = ", ".join(spec.name for spec in self.outputs)
            raise RuntimeError(
                f"the model returned {', '.join(leaves) or 'nothing'} instead of {names}"
            ) from None
        if (
            self._open
            and (shapes := [array.shape for array in arrays.values()]) != self._shapes
        ):
            self._shapes = shapes
            self.outputs = tuple(
                self._learned(name, spec, arrays[spec.name])
                if name in self._open
                else spec
                for name, spec in zip(self._specs, self.outputs, strict=True)
            )
        return arrays

    def _learned(self, name: str, spec: TensorSpec, array: Array) -> TensorSpec:
        """Describe an output from runs on zeros; the first size is free."""
        shape = (-1, *array.shape[1:])[: array.ndim]
        datatype = datatype_of(array.dtype)
        if spec.open:
            return spec._replace(datatype=datatype, shape=shape, open=False)
        if (spec.datatype, len(spec.shape)) != (
            datatype,
            array.ndim,
        ):  # another rank or type: nothing is sure
            self._open.discard(name)
            return self._specs[name]
        return spec._replace(
            shape=tuple(
                a if a == b else -1 for a, b in zip(spec.shape, shape, strict=True)
            )
        )


# --- Names of results, as far as the program's text tells them

_PLAIN = frozenset({"TensorType", "IntType", "FloatType", "BoolType", "StringType"})
_ADDING = frozenset({"aten::append", "aten::_set_item"})
_BUILDING = frozenset(
    {"prim::TupleConstruct", "prim::ListConstruct", "prim::DictConstruct"}
)


def result_structure(kind: Any, value: Any = None) -> Any:
    """Return a stand-in for a result: nested as it is, with None for each leaf; LookupError where only a run can tell.

    Args:
        kind: the type.
        value: the graph's value of it, which tells the keys of dictionaries and the lengths of lists.
    """
    match kind.kind():
        case "OptionalType":
            return result_structure(kind.getElementType(), value)
        case "TupleType":
            parts = [None] * len(kind.elements())
            if (
                value is not None
                and value.node().kind() == "prim::TupleConstruct"
                and len(value.uses()) == 1
            ):
                parts = list(value.node().inputs())
            items = [
                result_structure(item, part)
                for item, part in zip(kind.elements(), parts, strict=True)
            ]
            fields = field_names(kind.str())
            return dict(zip(fields, items, strict=True)) if fields else items
        case "ListType":
            element = kind.getElementType()
            if element.kind() != "TensorType" and element.kind() in _PLAIN:
                return None
            parts = _initial(value, "prim::ListConstruct") + [
                item for (item,) in _added(value, "aten::append")
            ]
            return [result_structure(element, part) for part in parts]
        case "DictType":
            # A call of dict() or OrderedDict() without anything makes an empty one too.
            parts = _initial(value, "prim::DictConstruct", "aten::dict")
            pairs = [
                *zip(parts[::2], parts[1::2], strict=True),
                *_added(value, "aten::_set_item"),
            ]
            keys = [key.toIValue() for key, _ in pairs]
            if None in keys:
                raise LookupError("a key is not in the text")
            parts_by_key = dict(zip(keys, (part for _, part in pairs), strict=True))
            return {
                key: result_structure(kind.getValueType(), part)
                for key, part in parts_by_key.items()
            }
        case "NoneType" | "NumberType":
            return None
    if kind.kind() in _PLAIN:
        return None
    raise LookupError(kind.kind())


def _initial(value: Any, operation: str, empty: str = "") -> list[Any]:
    """Return the items of a list or dictionary literal."""
    if value is None or value.node().kind() not in (operation, empty):
        raise LookupError("not in the text")
    parts = list(value.node().inputs())
    if parts and value.node().kind() == empty:
        raise LookupError("made out of something else")
    return parts


def _added(value: Any, operation: str) -> list[tuple[Any, ...]]:
    """Return what an operation adds to a list or dictionary, in the order of the text, if no branch or loop does."""
    users = [use.user for use in value.uses()]
    if any(user.kind() != operation and not _only_reads(user) for user in users):
        raise LookupError("changed in some other way")
    steps = [
        node for node in value.node().owningBlock().nodes() if node.kind() == operation
    ]
    steps = [node for node in steps if next(node.inputs()) == value]
    if len(steps) != sum(user.kind() == operation for user in users):
        raise LookupError("depends on the input")
    return [tuple(node.inputs())[1:] for node in steps]


def _only_reads(node: Any) -> bool:
    """Return whether a use can't change a list or dictionary."""
    kind = node.kind()
    if kind == "aten::__getitem__":
        return node.output().type().kind() in _PLAIN
    if kind in _BUILDING:
        outer = node.output()
        users = (use.user for use in outer.uses())
        return all(
            next(user.inputs()) == outer
            if user.kind() in _ADDING
            else _only_reads(user)
            for user in users
        )
    return kind in ("prim::Return", "aten::len")


def field_names(text: str) -> list[str]:
    """Return the fields of ``NamedTuple(a : Tensor, b : (int, int))``; none for other types."""
    fields, depth = [], 0
    for part in (
        text.removeprefix("NamedTuple(").split(", ")
        if text.startswith("NamedTuple(")
        else ()
    ):
        if depth == 0:
            fields.append(part.partition(" : ")[0])
        depth += sum(part.count(left) for left in "([") - sum(
            part.count(right) for right in ")]"
        )
    return fields
