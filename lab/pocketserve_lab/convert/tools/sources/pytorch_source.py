"""PyTorch models as modules for converters, with example inputs from samples.

They are loaded as the server loads them.
"""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.tensors import Array, TensorSpec
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionRequest,
    SourceTensor,
)

EXAMPLE_ROWS = 2
"""Rows of an input whose first size is free.

From a single row, PyTorch's exporters would conclude that it is always 1."""


class Example(NamedTuple):
    """An input of ``forward`` with an example value.

    Attributes:
        name, shape: as the client sees them.
    """

    name: str
    value: Any
    shape: tuple[int, ...]


class PytorchModel(NamedTuple):
    """A module in evaluation mode, and its example inputs.

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
    options: dict[str, Any] = {
        "function": request.function,
        "arguments": dict(request.arguments),
    }
    if request.weights is not None:
        options["weights"] = request.weights.name
    inputs = []
    for tensor in request.inputs:
        inputs.append(TensorSpec(tensor.name, tensor.datatype, tensor.shape))
    return ModelSource(
        request.source,
        options=options,
        inputs=inputs,
        trusted=frozenset(request.trusted),
        origin=request.source,
    )


def _examples(torch: Any, request: ConversionRequest) -> list[Example]:
    if request.samples is None:
        raise ConversionError(
            "a PyTorch model is converted by running it, "
            "and there is no input to run it on"
        )
    examples = []
    with np.load(request.samples, allow_pickle=False) as arrays:
        for tensor in request.inputs:
            if tensor.datatype == "BYTES":
                raise ConversionError(
                    f"input {tensor.name!r} takes text, which no PyTorch model does"
                )
            value = _example_value(arrays[tensor.name], tensor, request.format)
            value = torch.from_numpy(np.ascontiguousarray(value))
            examples.append(Example(tensor.name, value, tensor.shape))
    return examples


def _example_value(array: Array, tensor: SourceTensor, format: str) -> Array:
    """Return an example of an input."""
    # TorchScript files do not tell shapes; samples of such inputs are rows.
    is_row = array.ndim == len(tensor.shape) or format in ("torchscript", "ptl")
    if not is_row:
        return np.asarray(array[0])
    rows = EXAMPLE_ROWS if tensor.shape[:1] == (-1,) else 1
    return np.resize(array, (rows, *array.shape[1:]))


def _in_order_of_forward(module: Any, examples: list[Example]) -> list[Example]:
    """Sort examples by the parameters of ``forward``."""
    from pocketserve.runtimes.torch.eager import takes_names

    if not takes_names(module, [example.name for example in examples]):
        return examples
    order = list(inspect.signature(module.forward).parameters)
    return sorted(examples, key=lambda example: order.index(example.name))


def _flat(torch: Any, module: Any, examples: list[Example]) -> Any:
    """Return a module that takes and returns tensors only."""
    from pocketserve.runtimes.torch.eager import takes_names

    names = [example.name for example in examples]
    values = [example.value for example in examples]
    by_name = takes_names(module, names)
    order = names
    with torch.inference_mode():
        if by_name:
            order = list(inspect.signature(module.forward).parameters)[: len(names)]
            result = module(**dict(zip(names, values, strict=True)))
        else:
            result = module(*values)
    if order == names and _is_plain(torch, result):
        return module
    return _wrap(torch, module, names, by_name=by_name)


def _is_plain(torch: Any, result: Any) -> bool:
    """Return whether a result consists of tensors."""
    if isinstance(result, torch.Tensor):
        return True
    if type(result) not in (tuple, list):
        return False
    return all(isinstance(item, torch.Tensor) for item in result)


def _wrap(torch: Any, module: Any, names: list[str], *, by_name: bool) -> Any:
    """Wrap a module, and flatten its result."""
    from pocketserve.runtimes.torch.common import flatten, is_result

    class Flat(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *inputs: Any) -> Any:
            leaves = []
            for _, leaf in flatten(self._call(inputs)):
                if leaf is not None and is_result(torch, leaf):
                    leaves.append(leaf)
            return leaves[0] if len(leaves) == 1 else tuple(leaves)

        def _call(self, inputs: tuple[Any, ...]) -> Any:
            if not by_name:
                return self.inner(*inputs)
            return self.inner(**dict(zip(names, inputs, strict=True)))

    # Exporters take free sizes for each parameter, and `*inputs` would be a single one.
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for number in range(len(names)):
        parameters.append(Parameter(f"input_{number}", Parameter.POSITIONAL_OR_KEYWORD))
    signature = inspect.Signature(parameters)
    Flat.forward.__signature__ = signature  # type: ignore[attr-defined]  # functions take any attribute
    return Flat().eval()
