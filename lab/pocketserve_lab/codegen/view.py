"""The view that templates read.

It is a server's description of a model, checked and bounded, with identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve_lab.codegen.names import (
    camel_case,
    class_case,
    constant_case,
    distinct,
)
from pocketserve_wire import DATATYPES

MAX_ENUM = 1_500
"""Labels of an enum: the code of its constants is limited to 64 kB."""

MAX_LABEL = 300
"""Characters of a label in an enum."""

MAX_PARAMETERS = 100
"""Inputs and features: a method can have 255 slots, and a real number takes two."""

MAX_TENSORS = 1_000
MAX_DIMENSIONS = 32
TAKES = frozenset(
    ("picture", "sound", "text", "question", "comparison", "rows", "items")
)
KINDS = frozenset(("text", "label", "integer", "real", "reals", "box", "list"))
_VERB = re.compile(r"[a-z][a-zA-Z]{1,30}")
_ENTRY = re.compile(r"[A-Z][a-zA-Z]{1,30}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16,64}")


def _getter(variable: str) -> str:
    return f"get{variable[0].upper()}{variable[1:]}"


class TensorView(NamedTuple):
    """An input or output.

    Attributes:
        free: the number of dimensions that the client chooses.
        open: whether the file has neither datatype nor shape.
        quantization: in words; empty if there is none.
    """

    name: str
    variable: str
    constant: str
    datatype: str
    size: int
    shape: tuple[int, ...]
    free: int
    open: bool
    quantization: str

    @property
    def getter(self) -> str:
        """The method that returns an output."""
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
        """The method that returns it."""
        return _getter(self.variable)


class EntryView(NamedTuple):
    """A class for entries of an answer."""

    name: str
    fields: Sequence[FieldView]


class CallView(NamedTuple):
    """A method of the class that sends a request."""

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
        """The method that returns it."""
        return _getter(self.variable)


class ModelView(NamedTuple):
    """All values that a template reads.

    Attributes:
        labels: identifiers and texts; empty if the class has no enum.
        typed_row: whether a row has a member for each feature.
        target: of a regression, with its unit.
    """

    name: str
    version: str
    fingerprint: str
    task: str
    inputs: Sequence[TensorView]
    outputs: Sequence[TensorView]
    calls: Sequence[CallView]
    labels: Sequence[tuple[str, str]]
    label_count: int
    features: Sequence[FeatureView]
    typed_row: bool
    target: str
    user: bool
    about: Mapping[str, str]

    @property
    def entries(self) -> Sequence[EntryView]:
        """The classes of all entries, without duplicates."""
        by_name = {call.entry.name: call.entry for call in self.calls}
        for call in self.calls:
            for field in call.entry.fields:
                if field.entry is not None:
                    by_name[field.entry.name] = field.entry
        return list(by_name.values())


def read_interface(answer: Mapping[str, Any]) -> ModelView:
    """Return a view of a server's description of a model.

    Raises:
        LookupError, TypeError, ValueError: it is not such a description.
    """
    labels = _texts(answer.get("labels", []))
    inputs = []
    for tensor in answer["inputs"]:
        if not _parameters(tensor).get("optional"):
            inputs.append(tensor)
    target = answer.get("target", {})
    columns = _features(answer.get("features", []))
    has_names = all(column.name for column in columns)
    about = {}
    for key, value in answer.get("about", {}).items():
        about[_text(key)] = _text(value)
    return ModelView(
        name=_text(answer["name"]),
        version=_text(answer["version"]),
        fingerprint=_match(_FINGERPRINT, answer["fingerprint"]),
        task=_text(answer["task"]),
        inputs=_tensors(inputs),
        outputs=_tensors(answer["outputs"]),
        calls=list(map(_call, answer["calls"][:10])),
        labels=_enum(labels),
        label_count=len(labels),
        features=columns,
        typed_row=0 < len(columns) <= MAX_PARAMETERS and has_names,
        target=_with_unit(_text(target.get("name", "")), _text(target.get("unit", ""))),
        user=answer.get("user") is True,
        about=about,
    )


def _enum(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return an identifier with each label; nothing if they make no enum."""
    if len(labels) > MAX_ENUM or any(len(label) > MAX_LABEL for label in labels):
        return []
    names = []
    for number, label in enumerate(labels):
        names.append(constant_case(label, "LABEL", number))
    return list(zip(distinct(names), labels, strict=True))


def default_class(model: str, used: Container[str]) -> str:
    """Return the default name of a model's class, which is none of the used names."""
    name = class_case(model)
    if name in used:
        return f"{name}Model"
    return name


def _with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a text")
    return value


def _texts(values: object) -> list[str]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.80} is not a list")
    return list(map(_text, values))


def _match(pattern: re.Pattern[str], value: object) -> str:
    text = _text(value)
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not of the form {pattern.pattern}")
    return text


def _one_of(choices: Container[str], value: object) -> str:
    text = _text(value)
    if text not in choices:
        raise ValueError(f"{text!r:.80} is unknown here")
    return text


def _parameters(tensor: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = tensor.get("parameters", {})
    return parameters


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> list[TensorView]:
    if len(tensors) > MAX_TENSORS:
        raise ValueError(f"{len(tensors)} tensors are more than {MAX_TENSORS}")
    names = [_text(tensor["name"]) for tensor in tensors]
    constants = []
    for number, name in enumerate(names):
        constants.append(constant_case(name, "TENSOR", number))
    return list(map(_tensor, tensors, _variables(names), distinct(constants)))


def _variables(names: Sequence[str]) -> list[str]:
    """Return a variable for each tensor.

    Its name with ``Shape`` stays free for a parameter with the tensor's sizes.
    """
    plain = [camel_case(name, "tensor") for name in names]
    variables = []
    for name in plain:
        if name.endswith("Shape") and name.removesuffix("Shape") in plain:
            name = f"{name}Value"
        variables.append(name)
    return distinct(variables)


def _tensor(tensor: Mapping[str, Any], variable: str, constant: str) -> TensorView:
    datatype = _one_of(DATATYPES, tensor["datatype"])
    shape = _shape(tensor["shape"])
    parameters = _parameters(tensor)
    return TensorView(
        name=_text(tensor["name"]),
        variable=variable,
        constant=constant,
        datatype=datatype,
        size=DATATYPES[datatype].itemsize,
        shape=shape,
        free=shape.count(-1),
        open=parameters.get("open") is True,
        quantization=_quantization(parameters),
    )


def _shape(sizes: Sequence[Any]) -> tuple[int, ...]:
    shape = tuple(map(int, sizes))
    if len(shape) > MAX_DIMENSIONS or any(not -1 <= size < 2**31 for size in shape):
        raise ValueError(f"{shape!r:.80} is not a shape")
    return shape


def _quantization(parameters: Mapping[str, Any]) -> str:
    if "quantization_scale" not in parameters:
        return ""
    scale = float(parameters["quantization_scale"])
    zero = int(parameters["quantization_zero_point"])
    return f"a stored q stands for {scale:g} * (q - {zero})"


def _call(call: Mapping[str, Any]) -> CallView:
    entry = _entry(call["entry"], call["fields"])
    return CallView(_match(_VERB, call["verb"]), _one_of(TAKES, call["takes"]), entry)


def _entry(name: object, fields: Sequence[Mapping[str, Any]]) -> EntryView:
    names = [camel_case(_text(field["name"]), "value") for field in fields[:50]]
    # An entry with a label also has these two members.
    own = []
    if any(field["kind"] == "label" for field in fields):
        own = ["text", "index"]
    variables = distinct([*own, *names])[len(own) :]
    members = list(map(_field, fields, variables))
    return EntryView(_match(_ENTRY, name), members)


def _field(field: Mapping[str, Any], variable: str) -> FieldView:
    kind = _one_of(KINDS, field["kind"])
    name, meaning = _text(field["name"]), _text(field["meaning"])
    entry = None
    if kind == "list":
        entry = _entry(field["entry"], field["fields"])
    return FieldView(name, variable, kind, meaning, entry)


def _features(features: Sequence[Mapping[str, Any]]) -> list[FeatureView]:
    names = [_text(feature["name"]) for feature in features]
    variables = distinct(camel_case(name, "feature") for name in names)
    views = []
    for feature, name, variable in zip(features, names, variables, strict=True):
        unit = _text(feature["unit"])
        kind = _kind(_one_of(DATATYPES, feature["datatype"]))
        views.append(FeatureView(name, variable, unit, kind))
    return views


def _kind(datatype: str) -> str:
    if datatype == "BYTES":
        return "text"
    if datatype.startswith(("INT", "UINT")):
        return "integer"
    return "real"
