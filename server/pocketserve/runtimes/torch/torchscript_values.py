"""Convert a TorchScript method's arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.torch.common import (
    flatten,
    keyword_arguments,
    leaf_array,
    match_specs,
    to_torch,
)
from pocketserve.tensors import Array, TensorSpec, datatype_of


class _ScalarType(NamedTuple):
    """A type of PyTorch for plain values."""

    datatype: str  # of the protocol
    array_kinds: str  # of NumPy arrays
    noun: str
    manifest_type: Any


_SCALARS: Mapping[str, _ScalarType] = {
    "IntType": _ScalarType("INT64", "iu", "whole numbers", int),
    "FloatType": _ScalarType("FP32", "iuf", "numbers", int | float),
    "BoolType": _ScalarType("BOOL", "b", "BOOL", bool),
    "StringType": _ScalarType("BYTES", "O", "texts", str),
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
        kind = type.kind()
        self.is_tensor = kind == "TensorType"
        self.is_list = kind == "ListType"
        self.kind = kind
        if self.is_list:
            self.kind = type.getElementType().kind()
        self.parts: list[Argument] = []
        if type.annotation_str.startswith("Tuple["):  # not a named tuple
            for position, element in enumerate(type.elements()):
                self.parts.append(Argument(f"{name}.{position}", element))

    def leaves(self) -> list[Argument]:
        """Return the innermost parts of a tuple, or the argument itself.

        Each of them is an input.
        """
        if not self.parts:
            return [self]
        leaves = []
        for part in self.parts:
            leaves += part.leaves()
        return leaves


class Parameters:
    """A method's arguments, without ``self``.

    Values come from inputs, from the manifest or from the method's defaults.
    """

    def __init__(
        self, torch: Any, arguments: Sequence[Argument], source: ModelSource
    ) -> None:
        self._torch = torch
        self._fixed = _fixed_values(torch, arguments, keyword_arguments(source))
        self._sent = self._arguments_from_inputs(arguments, source.inputs)
        leaves: list[Argument] = []
        for argument in self._sent:
            leaves += argument.leaves()
        names = [leaf.name for leaf in leaves]
        specs = match_specs(names, source.inputs, "input")
        self._specs: dict[str, TensorSpec] = {}
        for leaf in leaves:
            spec = specs.get(leaf.name)
            if spec is None:
                spec = _open_spec(leaf)
            self._specs[leaf.name] = spec
        self.inputs = tuple(self._specs.values())

    def _arguments_from_inputs(
        self, arguments: Sequence[Argument], inputs: Sequence[TensorSpec]
    ) -> list[Argument]:
        """Return the arguments that inputs provide.

        An optional one needs a declared input; otherwise it takes its default.
        """
        declared = {spec.name for spec in inputs}
        sent = []
        for argument in arguments:
            if argument.name in self._fixed:
                continue
            names = [leaf.name for leaf in argument.leaves()]
            if not argument.optional or not declared.isdisjoint(names):
                sent.append(argument)
        return sent

    def values(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Return the arguments by name, without those that take their default.

        Raises:
            ValueError: an input has the wrong kind or count of values.
        """
        values = dict(self._fixed)
        for argument in self._sent:
            values[argument.name] = self._value(argument, inputs)
        return values

    def _value(self, argument: Argument, inputs: Mapping[str, Array]) -> Any:
        """Return a tensor or plain Python values, by the argument's type."""
        if argument.parts:
            return tuple(self._value(part, inputs) for part in argument.parts)
        spec = self._specs[argument.name]
        array = inputs[spec.name]
        if argument.is_tensor:
            return to_torch(self._torch, array, spec)
        items = _plain_items(argument, spec, array)
        if argument.is_list:
            return items
        if len(items) != 1:
            raise ValueError(f"input {spec.name!r} takes one value, not {len(items)}")
        return items[0]


def _plain_items(argument: Argument, spec: TensorSpec, array: Array) -> list[Any]:
    """Return an array's values as Python values of the argument's type."""
    scalar = _SCALARS[argument.kind]
    if array.dtype.kind not in scalar.array_kinds:
        raise ValueError(f"input {spec.name!r} takes {scalar.noun}, not {array.dtype}")
    items: list[Any] = array.reshape(-1).tolist()
    if argument.kind == "FloatType":
        return list(map(float, items))
    if argument.kind == "StringType":
        return list(map(_decoded, items))
    return items


def _decoded(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def _fixed_values(
    torch: Any, arguments: Sequence[Argument], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    by_name = {argument.name: argument for argument in arguments}
    values = {}
    for name, value in fixed.items():
        if name not in by_name:
            names = ", ".join(by_name) or "nothing"
            raise ModelLoadError(
                f"model.toml: arguments names {name!r}, the model takes {names}"
            )
        values[name] = _fixed_value(torch, by_name[name], value)
    return values


def _fixed_value(torch: Any, argument: Argument, value: Any) -> Any:
    """Return a manifest's value in the argument's type."""
    try:
        if argument.is_tensor:
            return torch.tensor(value)
        if isinstance(value, list) != argument.is_list:
            raise TypeError
        if argument.is_list:
            return _fixed_items(argument, value)
        return _fixed_items(argument, [value])[0]
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        raise ModelLoadError(
            f"model.toml: arguments.{argument.name} must be {argument.type}, not "
            f"{value!r:.80}"
        ) from None


def _fixed_items(argument: Argument, items: list[Any]) -> list[Any]:
    """Check items of a manifest, and convert them to the argument's type."""
    expected = _SCALARS[argument.kind].manifest_type
    for item in items:
        if not _has_type(item, expected):
            raise TypeError
    if argument.kind == "FloatType":
        return list(map(float, items))
    return items


def _has_type(value: Any, expected: Any) -> bool:
    """Like ``isinstance``, but a bool is not a number."""
    if type(value) is bool:
        return expected is bool
    return isinstance(value, expected)


def _open_spec(argument: Argument) -> TensorSpec:
    """Return the default spec of an input without a description."""
    if argument.is_tensor:
        return TensorSpec(argument.name, "FP32", (-1,), open=True)
    scalar = _SCALARS.get(argument.kind)
    if scalar is not None:
        shape = (-1,) if argument.is_list else ()
        return TensorSpec(argument.name, scalar.datatype, shape, open=True)
    raise ModelLoadError(
        f"the model's argument {argument.name!r} is of type {argument.type}, which no "
        "tensor can carry; wrap the model in a module that takes tensors"
    )


class Results:
    """Names and specs of a method's results.

    Args:
        names: the method's names of its results; None while they are not known.
        probed: specs from a run, by such a name.

    Attributes:
        outputs: specs for clients. Runs so far determine those without a description.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        declared: Sequence[TensorSpec],
        probed: Mapping[str, TensorSpec],
    ) -> None:
        self._declared = declared
        self._shapes: list[tuple[int, ...]] = []
        self._specs: dict[str, TensorSpec] = {}
        self.outputs = tuple(declared)
        if names is not None:
            self._specs = _result_specs(names, declared, probed)
            self.outputs = tuple(self._specs.values())
        elif not declared:
            raise ModelLoadError(
                "the file does not state the number of outputs; declare "
                "[[inputs]] or [[outputs]] in model.toml"
            )
        self._open = {name for name, spec in self._specs.items() if spec.open}

    def arrays(self, torch: Any, result: Any) -> dict[str, Array]:
        """Return a result by output names; raise ``RuntimeError`` if they differ."""
        leaves = dict(flatten(result))
        arrays = {}
        try:
            specs = self._specs or match_specs(list(leaves), self._declared, "output")
            for name, spec in specs.items():
                arrays[spec.name] = leaf_array(torch, leaves[name], spec.datatype)
        except (KeyError, ModelLoadError):
            names = ", ".join(spec.name for spec in self.outputs)
            raise RuntimeError(
                f"the model returned {', '.join(leaves) or 'nothing'} instead of "
                f"{names}"
            ) from None
        if self._open:
            self._learn(arrays)
        return arrays

    def _learn(self, arrays: Mapping[str, Array]) -> None:
        """Update the specs of open outputs from a run's arrays."""
        shapes = [array.shape for array in arrays.values()]
        if shapes == self._shapes:
            return
        self._shapes = shapes
        outputs = []
        for name, spec in zip(self._specs, self.outputs, strict=True):
            if name in self._open:
                spec = self._learned(name, spec, arrays[spec.name])
            outputs.append(spec)
        self.outputs = tuple(outputs)

    def _learned(self, name: str, spec: TensorSpec, array: Array) -> TensorSpec:
        """Return a spec that also fits an array; the first size is free."""
        shape = (-1, *array.shape[1:])[: array.ndim]
        datatype = datatype_of(array.dtype)
        if spec.open:
            return spec._replace(datatype=datatype, shape=shape, open=False)
        if spec.datatype != datatype or len(spec.shape) != array.ndim:
            # Runs differ in type or rank, so nothing is certain.
            self._open.discard(name)
            return self._specs[name]
        sizes = list(shape)
        for axis, size in enumerate(spec.shape):
            if sizes[axis] != size:
                sizes[axis] = -1
        return spec._replace(shape=tuple(sizes))


def _result_specs(
    names: Sequence[str],
    declared: Sequence[TensorSpec],
    probed: Mapping[str, TensorSpec],
) -> dict[str, TensorSpec]:
    """Return the declared specs, else those from a run, else open ones."""
    matched = match_specs(names, declared, "output")
    specs = {}
    for name in names:
        spec = matched.get(name) or probed.get(name)
        specs[name] = spec or TensorSpec(name, "FP32", (-1,), open=True)
    return specs


# --- Names of results, as far as the program's text shows them

_PLAIN = frozenset({"TensorType", "IntType", "FloatType", "BoolType", "StringType"})
_ADDING = frozenset({"aten::append", "aten::_set_item"})
_BUILDING = frozenset(
    {"prim::TupleConstruct", "prim::ListConstruct", "prim::DictConstruct"}
)


def result_structure(kind: Any, value: Any = None) -> Any:
    """Return the nesting of a result, with None for each leaf.

    Args:
        kind: the type.
        value: the graph's value; has the keys of dictionaries and the lengths of lists.

    Raises:
        LookupError: only a run can tell.
    """
    match kind.kind():
        case "OptionalType":
            return result_structure(kind.getElementType(), value)
        case "TupleType":
            return _tuple_structure(kind, value)
        case "ListType":
            return _list_structure(kind.getElementType(), value)
        case "DictType":
            return _dict_structure(kind.getValueType(), value)
        case "NoneType" | "NumberType":
            return None
    if kind.kind() in _PLAIN:
        return None
    raise LookupError(kind.kind())


def _tuple_structure(kind: Any, value: Any) -> Any:
    """Return the structure of a tuple's items; by name for a named tuple."""
    elements = kind.elements()
    parts = _tuple_parts(value, len(elements))
    items = []
    for element, part in zip(elements, parts, strict=True):
        items.append(result_structure(element, part))
    fields = field_names(kind.str())
    if not fields:
        return items
    return dict(zip(fields, items, strict=True))


def _tuple_parts(value: Any, count: int) -> list[Any]:
    """Return the graph's values of a tuple's items; None for unknown ones."""
    unknown = [None] * count
    if value is None or value.node().kind() != "prim::TupleConstruct":
        return unknown
    if len(value.uses()) != 1:
        return unknown
    return list(value.node().inputs())


def _list_structure(element: Any, value: Any) -> Any:
    if element.kind() != "TensorType" and element.kind() in _PLAIN:
        return None
    parts = _initial(value, "prim::ListConstruct")
    for (item,) in _added(value, "aten::append"):
        parts.append(item)
    return [result_structure(element, part) for part in parts]


def _dict_structure(element: Any, value: Any) -> Any:
    # A call of dict() or OrderedDict() without arguments creates an empty one, too.
    parts = _initial(value, "prim::DictConstruct", "aten::dict")
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    pairs += _added(value, "aten::_set_item")
    parts_by_key = {}
    for key, part in pairs:
        constant = key.toIValue()
        if constant is None:
            raise LookupError("a key is not in the text")
        parts_by_key[constant] = part
    structure = {}
    for key, part in parts_by_key.items():
        structure[key] = result_structure(element, part)
    return structure


def _initial(value: Any, operation: str, empty: str = "") -> list[Any]:
    """Return the items of a list or dictionary literal."""
    if value is None or value.node().kind() not in (operation, empty):
        raise LookupError("not in the text")
    parts = list(value.node().inputs())
    if parts and value.node().kind() == empty:
        raise LookupError("made out of something else")
    return parts


def _added(value: Any, operation: str) -> list[tuple[Any, ...]]:
    """Return the arguments of all operations that add to a list or dictionary.

    They are in the order of the text.

    Raises:
        LookupError: it is changed in another way, or in a branch or loop.
    """
    count = 0
    for use in value.uses():
        if use.user.kind() == operation:
            count += 1
        elif not _only_reads(use.user):
            raise LookupError("changed in some other way")
    added = []
    for node in value.node().owningBlock().nodes():
        if node.kind() != operation:
            continue
        target, *arguments = node.inputs()
        if target == value:
            added.append(tuple(arguments))
    if len(added) != count:
        raise LookupError("depends on the input")
    return added


def _only_reads(node: Any) -> bool:
    """Return whether a use can't change a list or dictionary."""
    kind = node.kind()
    if kind == "aten::__getitem__":
        return node.output().type().kind() in _PLAIN
    if kind in _BUILDING:
        return _is_only_read(node.output())
    return kind in ("prim::Return", "aten::len")


def _is_only_read(outer: Any) -> bool:
    """Return whether no use of a container can change the parts in it."""
    for use in outer.uses():
        user = use.user
        if user.kind() in _ADDING:
            # Adding to the container is harmless; adding it elsewhere isn't.
            if next(user.inputs()) != outer:
                return False
        elif not _only_reads(user):
            return False
    return True


def field_names(text: str) -> list[str]:
    """Return the fields of a named tuple's type; none for other types.

    The type is written as ``NamedTuple(a : Tensor, b : (int, int))``.
    """
    if not text.startswith("NamedTuple("):
        return []
    fields = []
    depth = 0
    for part in text.removeprefix("NamedTuple(").split(", "):
        if depth == 0:
            fields.append(part.partition(" : ")[0])
        depth += part.count("(") + part.count("[")
        depth -= part.count(")") + part.count("]")
    return fields
