"""The view that templates read: a model as a server described it, checked and bounded, with identifiers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve_lab.codegen.names import (
    camel_case,
    class_case,
    constant_case,
    distinct,
)
from pocketserve_wire import DATATYPES

MAX_ENUM = 1_500  # labels: the code that makes an enum's constants may have 64 kB
MAX_LABEL = 300  # characters of a label in an enum
MAX_PARAMETERS = (
    100  # inputs and features: a method may have 255, of which a real number is two
)
MAX_TENSORS = 1_000
MAX_DIMENSIONS = 32
TAKES = frozenset(
    ("picture", "sound", "text", "question", "comparison", "rows", "items")
)
KINDS = frozenset(("text", "label", "integer", "real", "reals", "box", "list"))
_VERB, _ENTRY = re.compile(r"[a-z][a-zA-Z]{1,30}"), re.compile(r"[A-Z][a-zA-Z]{1,30}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16,64}")


def _getter(variable: str) -> str:
    return f"get{variable[0].upper()}{variable[1:]}"


class TensorView(NamedTuple):
    """An input or output; ``free`` counts the dimensions that the caller chooses."""

    name: str
    variable: str
    constant: str
    datatype: str
    size: int
    shape: tuple[int, ...]
    free: int
    open: bool  # the file tells neither datatype nor shape
    quantization: str  # in words; empty where there is none

    @property
    def getter(self) -> str:
        """The method that gives an output."""
        return _getter(self.variable)


class FieldView(NamedTuple):
    """A member of an entry."""

    name: str
    variable: str
    kind: str
    meaning: str
    entry: EntryView | None

    @property
    def getter(self) -> str:
        """The method that gives it."""
        return _getter(self.variable)


class EntryView(NamedTuple):
    """A class for entries of an answer."""

    name: str
    fields: Sequence[FieldView]


class CallView(NamedTuple):
    """A way to ask."""

    verb: str
    takes: str
    entry: EntryView


class FeatureView(NamedTuple):
    """A column of a row; ``kind`` is ``text``, ``integer`` or ``real``."""

    name: str
    variable: str
    unit: str
    kind: str

    @property
    def getter(self) -> str:
        """The method that gives it."""
        return _getter(self.variable)


class ModelView(NamedTuple):
    """All that a template reads."""

    name: str
    version: str
    fingerprint: str
    task: str
    inputs: Sequence[TensorView]
    outputs: Sequence[TensorView]
    calls: Sequence[CallView]
    labels: Sequence[
        tuple[str, str]
    ]  # identifiers and texts; empty where the class has no enum
    label_count: int
    features: Sequence[FeatureView]
    typed_row: bool  # a row has a member for each feature
    target: str  # what a regression gives, with its unit
    user: bool
    about: Mapping[str, str]

    @property
    def entries(self) -> Sequence[EntryView]:
        """The classes of all entries, each once."""
        outer = [call.entry for call in self.calls]
        inner = [
            field.entry
            for entry in outer
            for field in entry.fields
            if field.entry is not None
        ]
        return list({entry.name: entry for entry in (*outer, *inner)}.values())


def read_interface(answer: Mapping[str, Any]) -> ModelView:
    """Return what a server said of a model; LookupError, TypeError or ValueError where it is no such answer."""
    labels, features = _texts(answer.get("labels", [])), answer.get("features", [])
    has_enum = 0 < len(labels) <= MAX_ENUM and all(
        len(label) <= MAX_LABEL for label in labels
    )
    identifiers = (
        distinct(constant_case(label, "LABEL", i) for i, label in enumerate(labels))
        if has_enum
        else []
    )
    target = answer.get("target", {})
    columns = _features(features)
    return ModelView(
        name=_text(answer["name"]),
        version=_text(answer["version"]),
        fingerprint=_match(_FINGERPRINT, answer["fingerprint"]),
        task=_text(answer["task"]),
        inputs=_tensors(
            [
                tensor
                for tensor in answer["inputs"]
                if not _parameters(tensor).get("optional")
            ]
        ),
        outputs=_tensors(answer["outputs"]),
        calls=[_call(call) for call in answer["calls"][:10]],
        labels=list(zip(identifiers, labels, strict=True)) if has_enum else [],
        label_count=len(labels),
        features=columns,
        typed_row=0 < len(columns) <= MAX_PARAMETERS
        and all(column.name for column in columns),
        target=_with_unit(_text(target.get("name", "")), _text(target.get("unit", ""))),
        user=answer.get("user") is True,
        about={
            _text(key): _text(value) for key, value in answer.get("about", {}).items()
        },
    )


def default_class(model: str, entries: Sequence[EntryView]) -> str:
    """Return what a model's class is called where nobody chose a name."""
    name = class_case(model)
    return f"{name}Model" if name in {entry.name for entry in entries} else name


def _with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value


def _texts(values: object) -> list[str]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.80} is no list")
    return [_text(value) for value in values]


def _match(pattern: re.Pattern[str], value: object) -> str:
    if not pattern.fullmatch(text := _text(value)):
        raise ValueError(f"{text!r:.80} is not of the form {pattern.pattern}")
    return text


def _one_of(choices: frozenset[str], value: object) -> str:
    if (text := _text(value)) not in choices:
        raise ValueError(f"{text!r:.80} is unknown here")
    return text


def _parameters(tensor: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = tensor.get("parameters", {})
    return parameters


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> list[TensorView]:
    if len(tensors) > MAX_TENSORS:
        raise ValueError(f"{len(tensors)} tensors are more than {MAX_TENSORS}")
    variables = _variables([_text(tensor["name"]) for tensor in tensors])
    constants = distinct(
        constant_case(_text(tensor["name"]), "TENSOR", i)
        for i, tensor in enumerate(tensors)
    )
    return [
        _tensor(*parts) for parts in zip(tensors, variables, constants, strict=True)
    ]


def _variables(names: Sequence[str]) -> list[str]:
    """Return a variable for each tensor; beside one, the same with ``Shape`` stays free for its sizes."""
    plain = [camel_case(name, "tensor") for name in names]
    owners = set(plain)
    return distinct(
        f"{name}Value"
        if name.endswith("Shape") and name.removesuffix("Shape") in owners
        else name
        for name in plain
    )


def _tensor(tensor: Mapping[str, Any], variable: str, constant: str) -> TensorView:
    shape = tuple(int(size) for size in tensor["shape"])
    if len(shape) > MAX_DIMENSIONS or any(not -1 <= size < 2**31 for size in shape):
        raise ValueError(f"{shape!r:.80} is no shape")
    parameters, datatype = (
        _parameters(tensor),
        _one_of(frozenset(DATATYPES), tensor["datatype"]),
    )
    quantization = ""
    if "quantization_scale" in parameters:
        scale, zero = (
            float(parameters["quantization_scale"]),
            int(parameters["quantization_zero_point"]),
        )
        quantization = f"a stored q stands for {scale:g} * (q - {zero})"
    free, is_open = sum(size < 0 for size in shape), parameters.get("open") is True
    size = DATATYPES[datatype].itemsize
    return TensorView(
        _text(tensor["name"]),
        variable,
        constant,
        datatype,
        size,
        shape,
        free,
        is_open,
        quantization,
    )


def _call(call: Mapping[str, Any]) -> CallView:
    entry = _entry(call["entry"], call["fields"])
    return CallView(_match(_VERB, call["verb"]), _one_of(TAKES, call["takes"]), entry)


def _entry(name: object, fields: Sequence[Mapping[str, Any]]) -> EntryView:
    # A label has these two beside it.
    own = ["text", "index"] if any(field["kind"] == "label" for field in fields) else []
    variables = distinct(
        [*own, *(camel_case(_text(field["name"]), "value") for field in fields[:50])]
    )[len(own) :]
    return EntryView(
        _match(_ENTRY, name),
        [_field(*pair) for pair in zip(fields, variables, strict=False)],
    )


def _field(field: Mapping[str, Any], variable: str) -> FieldView:
    kind = _one_of(KINDS, field["kind"])
    entry = _entry(field["entry"], field["fields"]) if kind == "list" else None
    return FieldView(
        _text(field["name"]), variable, kind, _text(field["meaning"]), entry
    )


def _features(features: Sequence[Mapping[str, Any]]) -> list[FeatureView]:
    names = [_text(feature["name"]) for feature in features]
    variables = distinct(camel_case(name, "feature") for name in names)
    return [
        FeatureView(
            name,
            variable,
            _text(feature["unit"]),
            _kind(_one_of(frozenset(DATATYPES), feature["datatype"])),
        )
        for feature, name, variable in zip(features, names, variables, strict=True)
    ]


def _kind(datatype: str) -> str:
    if datatype == "BYTES":
        return "text"
    return "integer" if datatype.startswith(("INT", "UINT")) else "real"
