"""Inputs, outputs and entry points of a TFLite model, from what its interpreter tells of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, Signature
from pocketserve.tensors import Array, Quantization, TensorSpec, datatype_of
from pocketserve_wire import DATATYPES

# The frameworks have no type information; interpreters and signature runners are Any below.
Details = Mapping[str, Any]

TensorSignature = tuple[tuple[int, ...], Any, bool]
"""Shape and dtype of an array, and whether it is row-major."""


class Port(NamedTuple):
    """One input or output: its spec and the interpreter's number for it."""

    spec: TensorSpec
    number: int

    def prepare(self, array: Array) -> Array:
        """The array as the interpreter wants it: its dtype, row-major.

        ``ascontiguousarray`` would make shape () to shape (1,).
        """
        if self.spec.datatype == "BYTES" and array.ndim == 0:
            return scalar_text(array.item())
        return np.asarray(array, dtype=DATATYPES[self.spec.datatype].typestr, order="C")


class Entry(NamedTuple):
    """An entry point; ``runner`` is the name of a signature that lies in another graph than the main one."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    runner: str | None = None

    def signature(self) -> Signature:
        """Return what callers are told of it."""
        return Signature([port.spec for port in self.inputs], [port.spec for port in self.outputs])


def main_entry(interpreter: Any) -> Entry:
    """The main graph under the file's tensor names.

    Raises:
        ModelLoadError: a tensor has a type that the protocol cannot carry.
    """
    return Entry(
        ports_of(interpreter.get_input_details(), "input"), ports_of(interpreter.get_output_details(), "output")
    )


def ports_of(many: Iterable[Details], role: str) -> tuple[Port, ...]:
    """Ports in the model's order under the file's tensor names; repeated names get :1, :2 and so on."""
    taken: set[str] = set()
    ports = []
    for position, details in enumerate(many):
        name = _unique(str(details["name"]) or f"{role}_{position}", taken)
        taken.add(name)
        ports.append(Port(_spec(name, details), int(details["index"])))
    return tuple(ports)


def _unique(name: str, taken: set[str]) -> str:
    candidates = (f"{name}:{number}" for number in itertools.count(1))
    return name if name not in taken else next(other for other in candidates if other not in taken)


def signature_entry(name: str, runner: Any, main: Entry) -> Entry:
    """A signature's tensors under the signature's own names.

    A signature that is the main graph under other names runs as the main graph does: the runner would resize
    and allocate for each request, and cannot return an empty tensor. Which graph a runner is of, the packages
    keep in a private attribute; without it the runner is used.
    """
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    entry = Entry(_named_ports(inputs), _named_ports(outputs), name)
    same = {port.number for port in entry.inputs} == {port.number for port in main.inputs}
    if getattr(runner, "_subgraph_index", None) != 0 or not same:
        return entry
    shapes = {port.number: port.spec.shape for port in main.outputs}
    outputs = (_reshaped(port, shapes.get(port.number, port.spec.shape)) for port in entry.outputs)
    return Entry(entry.inputs, tuple(outputs))


def _named_ports(details: Mapping[str, Details]) -> tuple[Port, ...]:
    return tuple(Port(_spec(name, one), int(one["index"])) for name, one in details.items())


def with_aliases(main: Entry, signature: Entry) -> Entry:
    """The main graph, its tensors also known by the names that a signature gives them."""

    def named(ports: Iterable[Port], others: Iterable[Port]) -> tuple[Port, ...]:
        names = [(other.number, other.spec.name) for other in others]
        return tuple(_aliased(port, [name for index, name in names if index == port.number]) for port in ports)

    return Entry(named(main.inputs, signature.inputs), named(main.outputs, signature.outputs))


def _aliased(port: Port, names: Iterable[str]) -> Port:
    aliases = tuple(name for name in names if name != port.spec.name)
    return port._replace(spec=port.spec._replace(aliases=aliases))


def _spec(name: str, details: Details) -> TensorSpec:
    """The spec of one tensor.

    Raises:
        ModelLoadError: the protocol has no such type.
    """
    try:
        datatype = datatype_of(details["dtype"])
    except (ValueError, TypeError) as error:
        kind = getattr(details["dtype"], "__name__", details["dtype"])
        raise ModelLoadError(
            f"tensor {name!r} has type {kind}, which cannot be served; convert the model with another type"
        ) from error
    return TensorSpec(name, datatype, _declared_shape(details), _quantization(datatype, details))


def _declared_shape(details: Details) -> tuple[int, ...]:
    """The shape with -1 for free dimensions, which only ``shape_signature`` shows."""
    signature = tuple(int(size) for size in details.get("shape_signature", ()))
    return signature or tuple(int(size) for size in details["shape"])


def _quantization(datatype: str, details: Details) -> Quantization | None:
    """Per-tensor quantisation of activations. Per-channel tensors have (0.0, 0) here, as floats do.

    Wider integers may carry a scale too, but are counts and indices far more often than numbers to convert.
    """
    scale, zero_point = details.get("quantization", (0.0, 0))
    if datatype not in ("INT8", "UINT8", "INT16") or scale == 0:
        return None
    return Quantization(float(scale), int(zero_point))


def with_shape(port: Port, seen: tuple[int, ...], free: bool) -> Port:
    """A port of undeclared rank with the shape that a run on zeros gave.

    A size of 0 follows from the values; where inputs have free dimensions, which were 1, so may a size of 1.
    """
    unsure = (0, 1) if free else (0,)
    return port if port.spec.shape else _reshaped(port, tuple(-1 if size in unsure else size for size in seen))


def _reshaped(port: Port, shape: tuple[int, ...]) -> Port:
    return port._replace(spec=port.spec._replace(shape=shape))


def _fixed(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(1 if size == -1 else size for size in spec.shape)


def zeros_for(spec: TensorSpec) -> Array:
    """Zeros or empty strings of a spec's dtype and shape, free dimensions being 1."""
    fill = b"" if spec.datatype == "BYTES" else 0
    if fill == b"" and not spec.shape:
        return scalar_text(b"")
    return np.full(_fixed(spec), fill, dtype=DATATYPES[spec.datatype].typestr)


def scalar_text(text: bytes | str) -> Array:
    """One text as the interpreters take it: of an object array of shape () they would take the object's address."""
    raw = text.encode() if isinstance(text, str) else text
    return np.ndarray((), dtype=f"S{len(raw)}", buffer=raw)  # NumPy's other ways make no S0


def byte_size(spec: TensorSpec) -> int:
    """Bytes of one array of a spec, free dimensions being 1."""
    return math.prod(_fixed(spec)) * DATATYPES[spec.datatype].itemsize


def are_ready(entry: Entry, looks: Sequence[TensorSignature]) -> bool:
    """Return whether the interpreter takes such arrays as they are; a single text it does not (:func:`scalar_text`)."""
    return all(
        dtype == DATATYPES[port.spec.datatype].typestr and contiguous and (shape or port.spec.datatype != "BYTES")
        for port, (shape, dtype, contiguous) in zip(entry.inputs, looks, strict=True)
    )


def check_shapes(entry: Entry, arrays: Mapping[str, Array]) -> None:
    """Refuse what would spoil the interpreter; its own checks differ between packages.

    Raises:
        ValueError: a shape does not fit its spec.
    """
    for spec in (port.spec for port in entry.inputs):
        shape = arrays[spec.name].shape
        if not spec.accepts(shape):
            raise ValueError(f"input {spec.name!r} has shape {list(shape)}, expected {list(spec.shape)}")


def copy_out(interpreter: Any, port: Port) -> Array:
    """An output as an array of its own: of shape () too, and empty."""
    try:
        return np.asarray(interpreter.get_tensor(port.number))
    except ValueError:
        shape = _current_shape(interpreter, port.number)
        if 0 not in shape:
            raise
        return np.empty(shape, dtype=DATATYPES[port.spec.datatype].typestr)


def _current_shape(interpreter: Any, index: int) -> tuple[int, ...]:
    found = (d["shape"] for d in interpreter.get_output_details() if d["index"] == index)
    return tuple(int(size) for size in next(found, ()))
