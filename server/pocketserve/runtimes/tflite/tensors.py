"""Inputs, outputs and entry points of a TFLite model, from what its interpreter tells of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array, Quantization, TensorSpec, datatype_of
from pocketserve_wire import DATATYPES

# The frameworks have no type information; interpreters, their details and signature runners are Any below.
TensorSignature = tuple[tuple[int, ...], Any, bool]
"""Shape and dtype of an array, and whether it is row-major."""


class ModelTensor(NamedTuple):
    """An input or output: its spec and the interpreter's number for it."""

    spec: TensorSpec
    number: int

    def prepare(self, array: Array) -> Array:
        """Return the array as the interpreter takes it: in its dtype, row-major."""
        if self.spec.datatype == "BYTES" and array.ndim == 0:
            return _scalar_text(array.item())
        # ``ascontiguousarray`` would make shape () to shape (1,).
        return np.asarray(array, dtype=DATATYPES[self.spec.datatype].typestr, order="C")


class GraphEntry(NamedTuple):
    """An entry point; ``runner`` is the name of a signature that lies in another graph than the main one."""

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    runner: str | None = None

    def takes(self, arrays: Sequence[TensorSignature]) -> bool:
        """Return whether the interpreter takes such arrays unprepared; a single text it does not."""
        return all(
            dtype == DATATYPES[spec.datatype].typestr
            and contiguous
            and (shape or spec.datatype != "BYTES")
            for (spec, _), (shape, dtype, contiguous) in zip(
                self.inputs, arrays, strict=True
            )
        )

    def check_shapes(self, arrays: Mapping[str, Array]) -> None:
        """Raise ``ValueError`` for shapes that would spoil the interpreter; the packages' own checks differ."""
        for spec, _ in self.inputs:
            shape = arrays[spec.name].shape
            if not spec.accepts(shape):
                raise ValueError(
                    f"input {spec.name!r} has shape {list(shape)}, expected {list(spec.shape)}"
                )


def main_entry(interpreter: Any) -> GraphEntry:
    """Return the main graph under the file's tensor names."""
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    return GraphEntry(model_tensors(inputs, "input"), model_tensors(outputs, "output"))


def model_tensors(
    details: Iterable[Mapping[str, Any]], role: str
) -> tuple[ModelTensor, ...]:
    """Return tensors in the model's order under the file's names; repeated names get :1, :2 and so on."""
    tensors: dict[str, ModelTensor] = {}
    for position, entry in enumerate(details):
        name = str(entry["name"]) or f"{role}_{position}"
        candidates = itertools.chain(
            [name], (f"{name}:{number}" for number in itertools.count(1))
        )
        name = next(candidate for candidate in candidates if candidate not in tensors)
        tensors[name] = _model_tensor(name, entry)
    return tuple(tensors.values())


def signature_entry(name: str, runner: Any, main: GraphEntry) -> GraphEntry:
    """Return a signature's tensors under the signature's names.

    A signature that is the main graph under other names runs as the main graph does: the runner would resize
    and allocate for each request, and cannot return an empty tensor. Which graph a runner is of, the packages
    keep in a private attribute; without it the runner is used.
    """
    details = (runner.get_input_details(), runner.get_output_details())
    inputs, outputs = (
        tuple(_model_tensor(key, entry) for key, entry in role.items())
        for role in details
    )
    same_inputs = {tensor.number for tensor in inputs} == {
        tensor.number for tensor in main.inputs
    }
    if getattr(runner, "_subgraph_index", None) != 0 or not same_inputs:
        return GraphEntry(inputs, outputs, name)
    shapes = {tensor.number: tensor.spec.shape for tensor in main.outputs}
    shaped = (
        t._replace(spec=t.spec._replace(shape=shapes.get(t.number, t.spec.shape)))
        for t in outputs
    )
    return GraphEntry(inputs, tuple(shaped))


def with_aliases(main: GraphEntry, signature: GraphEntry) -> GraphEntry:
    """Return the main graph, its tensors also known by the names that a signature gives them."""

    def add(tensor: ModelTensor, signed: Sequence[ModelTensor]) -> ModelTensor:
        names = (spec.name for spec, number in signed if number == tensor.number)
        aliases = tuple(name for name in names if name != tensor.spec.name)
        return tensor._replace(spec=tensor.spec._replace(aliases=aliases))

    inputs = tuple(add(tensor, signature.inputs) for tensor in main.inputs)
    return GraphEntry(
        inputs, tuple(add(tensor, signature.outputs) for tensor in main.outputs)
    )


def _model_tensor(name: str, details: Mapping[str, Any]) -> ModelTensor:
    try:
        datatype = datatype_of(details["dtype"])
    except (ValueError, TypeError) as error:
        kind = getattr(details["dtype"], "__name__", details["dtype"])
        raise ModelLoadError(
            f"tensor {name!r} has type {kind}, which cannot be served; convert the model with another type"
        ) from error
    # Free dimensions are -1 in ``shape_signature`` only.
    declared = tuple(map(int, details.get("shape_signature", ()))) or tuple(
        map(int, details["shape"])
    )
    return ModelTensor(
        TensorSpec(name, datatype, declared, _quantization(datatype, details)),
        int(details["index"]),
    )


def _quantization(datatype: str, details: Mapping[str, Any]) -> Quantization | None:
    """Return the per-tensor quantisation of activations. Per-channel tensors have (0.0, 0) here, as floats do.

    Wider integers may carry a scale too, but are counts and indices far more often than numbers to convert.
    """
    scale, zero_point = details.get("quantization", (0.0, 0))
    if datatype not in ("INT8", "UINT8", "INT16") or scale == 0:
        return None
    return Quantization(float(scale), int(zero_point))


def _scalar_text(text: bytes | str) -> Array:
    """Return a text as the interpreters take it: of object arrays of shape () they would take the object's address."""
    raw = text.encode() if isinstance(text, str) else text
    return np.ndarray(
        (), dtype=f"S{len(raw)}", buffer=raw
    )  # NumPy's other ways make no S0


def copy_out(interpreter: Any, spec: TensorSpec, number: int) -> Array:
    """Return an output as an array of its own: of shape () too, and empty."""
    try:
        return np.asarray(interpreter.get_tensor(number))
    except ValueError:
        shapes = (
            d["shape"] for d in interpreter.get_output_details() if d["index"] == number
        )
        shape = tuple(int(size) for size in next(shapes, ()))
        if 0 not in shape:
            raise
        return np.empty(shape, dtype=DATATYPES[spec.datatype].typestr)
