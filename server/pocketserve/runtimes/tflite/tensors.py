"""Inputs, outputs and entry points of a TFLite model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, Signature
from pocketserve.tensors import Array, Quantization, TensorSpec, datatype_of
from pocketserve_wire import DATATYPES

# The packages are untyped: interpreters, details and signature runners are ``Any``.
TensorSignature = tuple[tuple[int, ...], Any, bool]
"""An array's shape and dtype, and whether it is row-major."""


class ModelTensor(NamedTuple):
    """An input or output, with its number in the interpreter."""

    spec: TensorSpec
    number: int

    def prepare(self, array: Array) -> Array:
        """Convert an array to the interpreter's dtype, row-major."""
        if self.spec.datatype == "BYTES" and array.ndim == 0:
            return _scalar_text(array.item())
        dtype = DATATYPES[self.spec.datatype].typestr
        # ``ascontiguousarray`` would turn shape () into (1,).
        return np.asarray(array, dtype=dtype, order="C")


class GraphEntry(NamedTuple):
    """An entry point; ``runner`` names a signature outside the main graph."""

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    runner: str | None = None

    def takes(self, arrays: Sequence[TensorSignature]) -> bool:
        """Return whether the interpreter accepts such arrays without ``prepare``."""
        for tensor, array in zip(self.inputs, arrays, strict=True):
            shape, dtype, is_contiguous = array
            datatype = tensor.spec.datatype
            is_scalar_text = datatype == "BYTES" and not shape
            has_dtype = dtype == DATATYPES[datatype].typestr
            if not has_dtype or not is_contiguous or is_scalar_text:
                return False
        return True

    def signature(self) -> Signature:
        """Return the specs alone."""
        return Signature(
            [tensor.spec for tensor in self.inputs],
            [tensor.spec for tensor in self.outputs],
        )

    def check_shapes(self, arrays: Mapping[str, Array]) -> None:
        """Raise ``ValueError`` for shapes that the interpreter can't take.

        Not all packages check this, and a failure spoils the interpreter.
        """
        for spec, _ in self.inputs:
            shape = arrays[spec.name].shape
            if not spec.accepts(shape):
                raise ValueError(
                    f"input {spec.name!r} has shape {list(shape)}, "
                    f"expected {list(spec.shape)}"
                )


def main_entry(interpreter: Any) -> GraphEntry:
    """Return the main graph with the file's tensor names."""
    inputs = interpreter.get_input_details()
    outputs = interpreter.get_output_details()
    return GraphEntry(model_tensors(inputs, "input"), model_tensors(outputs, "output"))


def model_tensors(
    details: Iterable[Mapping[str, Any]], role: str
) -> tuple[ModelTensor, ...]:
    """Return tensors in the model's order, with unique names."""
    tensors: dict[str, ModelTensor] = {}
    for position, entry in enumerate(details):
        name = str(entry["name"]) or f"{role}_{position}"
        unique = name
        number = 0
        while unique in tensors:
            number += 1
            unique = f"{name}:{number}"
        tensors[unique] = _model_tensor(unique, entry)
    return tuple(tensors.values())


def signature_entry(name: str, runner: Any, main: GraphEntry) -> GraphEntry:
    """Return a signature's tensors under the signature's names.

    A signature of the main graph runs without its runner, which would resize and
    allocate for each request and cannot return an empty tensor. The packages keep the
    number of the runner's graph in a private attribute; without it the runner is used.
    """
    inputs = _named_tensors(runner.get_input_details())
    outputs = _named_tensors(runner.get_output_details())
    numbers = {tensor.number for tensor in inputs}
    main_numbers = {tensor.number for tensor in main.inputs}
    if getattr(runner, "_subgraph_index", None) != 0 or numbers != main_numbers:
        return GraphEntry(inputs, outputs, name)
    return GraphEntry(inputs, _with_shapes_of(main, outputs))


def _with_shapes_of(
    main: GraphEntry, outputs: Sequence[ModelTensor]
) -> tuple[ModelTensor, ...]:
    """Return outputs of a signature with the shapes that the main graph has."""
    shapes = {tensor.number: tensor.spec.shape for tensor in main.outputs}
    shaped = []
    for tensor in outputs:
        shape = shapes.get(tensor.number, tensor.spec.shape)
        spec = tensor.spec._replace(shape=shape)
        shaped.append(tensor._replace(spec=spec))
    return tuple(shaped)


def _named_tensors(details: Mapping[str, Mapping[str, Any]]) -> tuple[ModelTensor, ...]:
    return tuple(_model_tensor(name, entry) for name, entry in details.items())


def with_aliases(main: GraphEntry, signature: GraphEntry) -> GraphEntry:
    """Add a signature's tensor names to the main graph as aliases."""

    def add(tensor: ModelTensor, signed: Sequence[ModelTensor]) -> ModelTensor:
        aliases = []
        for spec, number in signed:
            if number == tensor.number and spec.name != tensor.spec.name:
                aliases.append(spec.name)
        return tensor._replace(spec=tensor.spec._replace(aliases=tuple(aliases)))

    inputs = tuple(add(tensor, signature.inputs) for tensor in main.inputs)
    outputs = tuple(add(tensor, signature.outputs) for tensor in main.outputs)
    return GraphEntry(inputs, outputs)


def _model_tensor(name: str, details: Mapping[str, Any]) -> ModelTensor:
    try:
        datatype = datatype_of(details["dtype"])
    except (ValueError, TypeError) as error:
        kind = getattr(details["dtype"], "__name__", details["dtype"])
        raise ModelLoadError(
            f"tensor {name!r} has type {kind}, which cannot be served; convert the "
            "model with another type"
        ) from error
    # Only ``shape_signature`` has -1 for free dimensions.
    shape = tuple(map(int, details.get("shape_signature", ())))
    if not shape:
        shape = tuple(map(int, details["shape"]))
    spec = TensorSpec(name, datatype, shape, _quantization(datatype, details))
    return ModelTensor(spec, int(details["index"]))


def _quantization(datatype: str, details: Mapping[str, Any]) -> Quantization | None:
    """Return the quantisation of a whole tensor, or None.

    Tensors quantised per channel have (0.0, 0) here, like floats. Wider integers may
    have a scale, but are mostly counts and indices.
    """
    scale, zero_point = details.get("quantization", (0.0, 0))
    if datatype not in ("INT8", "UINT8", "INT16") or scale == 0:
        return None
    return Quantization(float(scale), int(zero_point))


def _scalar_text(text: bytes | str) -> Array:
    """Return a text as a scalar array of bytes.

    From an object array of shape () the interpreters would read the object's address.
    """
    raw = text.encode() if isinstance(text, str) else text
    # NumPy's other constructors can't make the dtype S0.
    return np.ndarray((), dtype=f"S{len(raw)}", buffer=raw)


def copy_out(interpreter: Any, spec: TensorSpec, number: int) -> Array:
    """Copy an output to an array, even if it is a scalar or empty."""
    try:
        return np.asarray(interpreter.get_tensor(number))
    except ValueError:
        shape: tuple[int, ...] = ()
        for details in interpreter.get_output_details():
            if details["index"] == number:
                shape = tuple(map(int, details["shape"]))
                break
        if 0 not in shape:
            raise
        return np.empty(shape, dtype=DATATYPES[spec.datatype].typestr)
