"""PyTorch models as modules for converters: read as the server reads them, with example inputs from samples."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.tensors import TensorSpec
from pocketserve_lab.convert.converter import ConversionError, ConversionRequest

EXAMPLE_ROWS = 2
"""Of an input whose first size is free: from one row, PyTorch's exporters would conclude that it is always 1."""


class Example(NamedTuple):
    """An input of ``forward`` with values of the right kind, and the name and the shape that the caller sees."""

    name: str
    value: Any
    shape: tuple[int, ...]


class PytorchModel(NamedTuple):
    """A module in evaluation mode, and its examples in the order of ``forward``.

    Attributes:
        program: the exported program that it was made from; None for others.
    """

    module: Any
    examples: list[Example]
    program: Any = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The examples' values: arguments of ``forward``."""
        return tuple(example.value for example in self.examples)


def load_pytorch(torch: Any, request: ConversionRequest) -> PytorchModel:
    """Load the source of a request: ``torch``, ``torchscript``, ``ptl`` or ``pt2``.

    Raises:
        ConversionError: it cannot be loaded, or its inputs are not known.
    """
    program = None
    try:
        if request.format == "torch":
            from pocketserve.runtimes.torch.eager import build_module

            module = build_module(torch, _model_source(request))
        elif request.format == "pt2":
            program = torch.export.load(request.source)
            module = program.module()
        else:
            from pocketserve.runtimes.torch.graphs import load_checked

            module = load_checked(torch, request.source)
    except ModelLoadError as error:
        raise ConversionError(str(error)) from error
    examples = _examples(torch, request)
    if request.format == "torch":
        examples = _in_order_of_forward(module, examples)
        module = _flat(torch, module, examples)
    return PytorchModel(module, examples, program)


def _model_source(request: ConversionRequest) -> ModelSource:
    weights = {"weights": request.weights.name} if request.weights is not None else {}
    options = {
        "function": request.function,
        "arguments": dict(request.arguments),
        **weights,
    }
    inputs = [
        TensorSpec(tensor.name, tensor.datatype, tensor.shape)
        for tensor in request.inputs
    ]
    trusted = frozenset(request.trusted)
    return ModelSource(
        request.source,
        options=options,
        inputs=inputs,
        trusted=trusted,
        origin=request.source,
    )


def _examples(torch: Any, request: ConversionRequest) -> list[Example]:
    if request.samples is None:
        raise ConversionError(
            "a PyTorch model is converted by running it, and there is nothing to run it on"
        )
    with np.load(request.samples, allow_pickle=False) as arrays:
        examples = []
        for tensor in request.inputs:
            array = arrays[tensor.name]
            if tensor.datatype == "BYTES":
                raise ConversionError(
                    f"input {tensor.name!r} takes text, which no PyTorch model does"
                )
            # Made-up or real, the samples of an input whose shape the file does not tell are rows.
            is_row = array.ndim == len(tensor.shape) or request.format in (
                "torchscript",
                "ptl",
            )
            rows = EXAMPLE_ROWS if tensor.shape[:1] == (-1,) else 1
            value = np.resize(array, (rows, *array.shape[1:])) if is_row else array[0]
            examples.append(
                Example(
                    tensor.name,
                    torch.from_numpy(np.ascontiguousarray(value)),
                    tensor.shape,
                )
            )
        return examples


def _in_order_of_forward(module: Any, examples: list[Example]) -> list[Example]:
    """Return the examples as ``forward`` takes them: by name where it knows all names, else in their own order."""
    from pocketserve.runtimes.torch.eager import takes_names

    if not takes_names(module, [example.name for example in examples]):
        return examples
    order = list(inspect.signature(module.forward).parameters)
    return sorted(examples, key=lambda example: order.index(example.name))


def _flat(torch: Any, module: Any, examples: list[Example]) -> Any:
    """Return a module that takes and returns tensors only, where this one does otherwise."""
    from pocketserve.runtimes.torch.common import flatten, is_result
    from pocketserve.runtimes.torch.eager import takes_names

    with torch.inference_mode():
        names = [example.name for example in examples]
        by_name = takes_names(module, names)
        order = (
            list(inspect.signature(module.forward).parameters)[: len(names)]
            if by_name
            else names
        )
        values = dict(zip(names, (example.value for example in examples), strict=True))
        result = module(**values) if by_name else module(*values.values())
    plain = isinstance(result, torch.Tensor) or (
        type(result) in (tuple, list)
        and all(isinstance(item, torch.Tensor) for item in result)
    )
    if plain and order == names:
        return module

    class Flat(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *inputs: Any) -> Any:
            result = (
                self.inner(**dict(zip(names, inputs, strict=True)))
                if by_name
                else self.inner(*inputs)
            )
            leaves = [
                leaf
                for _, leaf in flatten(result)
                if leaf is not None and is_result(torch, leaf)
            ]
            return leaves[0] if len(leaves) == 1 else tuple(leaves)

    # Exporters take sizes that are free for each parameter, and `*inputs` would be a single one.
    parameters = (
        Parameter(f"input_{at}", Parameter.POSITIONAL_OR_KEYWORD)
        for at in range(len(names))
    )
    signature = inspect.Signature(
        [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *parameters]
    )
    Flat.forward.__signature__ = signature  # type: ignore[attr-defined]  # functions take any attribute
    return Flat().eval()
