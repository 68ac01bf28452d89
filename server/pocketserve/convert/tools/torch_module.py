"""PyTorch models of every format as modules, with the arguments that tools trace them with."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketserve.convert.converter import ConversionError, ConversionRequest, SourceTensor

FORMATS = ("torch", "pt2", "torchscript", "ptl")
"""The formats that :func:`load_torch_model` reads, the one that says most of the model first."""

_DTYPES = {
    "FP64": "float64", "FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT64": "int64", "INT32": "int32",
    "INT16": "int16", "INT8": "int8", "UINT8": "uint8", "BOOL": "bool",
}  # fmt: skip
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "model.", "_orig_mod.")


class TorchModel(NamedTuple):
    """A model that was loaded.

    Attributes:
        module: an ``nn.Module`` in evaluation mode; a scripted one of TorchScript.
        names: of the arguments that it takes by name.
    """

    module: Any
    names: frozenset[str]

    def arguments(self, request: ConversionRequest, rows: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and named arguments of zeros: by name where the module knows all inputs' names.

        Args:
            rows: the size of the first dimension where the caller chooses it. Other free dimensions are 1.

        Raises:
            ConversionError: the model does not say what it takes.
        """
        if not request.inputs:
            raise ConversionError(
                f"{request.source.name} does not say what it takes: declare [[inputs]] with name, datatype and shape "
                "in model.toml"
            )
        values = {tensor.name: _zeros(tensor, rows) for tensor in request.inputs}
        return ((), values) if self.names.issuperset(values) else (tuple(values.values()), {})


def load_torch_model(request: ConversionRequest) -> TorchModel:
    """Return the model of a request.

    Raises:
        ConversionError: the code or the weights do not load.
    """
    import torch

    try:
        if request.format == "torch":
            module = _build(request)
            if request.weights is not None:
                _fill(module, request)
            return TorchModel(module.eval(), _parameter_names(module))
        if request.format == "pt2":
            program = torch.export.load(request.source)
            return TorchModel(program.module(), frozenset(program.call_spec.in_spec.child(1).context or ()))
        return TorchModel(torch.jit.load(str(request.source), map_location="cpu").eval(), frozenset())
    except (RuntimeError, OSError, ValueError, TypeError, AttributeError, ImportError, KeyError) as error:
        words = " ".join(str(error).split())
        raise ConversionError(f"{request.source.name} does not load: {words:.300}", detail=str(error)) from error


def _zeros(tensor: SourceTensor, rows: int) -> Any:
    import torch

    if tensor.datatype not in _DTYPES:
        raise ConversionError(f"the input {tensor.name!r} has datatype {tensor.datatype}, which no PyTorch tensor has")
    first = tuple(rows if size < 0 else size for size in tensor.shape[:1])
    shape = (*first, *(max(1, size) for size in tensor.shape[1:]))
    return torch.zeros(shape, dtype=getattr(torch, _DTYPES[tensor.datatype]))


def _parameter_names(module: Any) -> frozenset[str]:
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in kinds)


def _build(request: ConversionRequest) -> Any:
    """Run ``model.py``, which may import what lies beside it, and call its function."""
    spec = importlib.util.spec_from_file_location(request.source.stem, request.source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{request.source.name} is no Python file")
    sys.path.insert(0, str(request.source.parent))
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    spec.loader.exec_module(code)
    return getattr(code, request.function)(**request.arguments)


def _fill(module: Any, request: ConversionRequest) -> None:
    """Load the weights. Checkpoints of training scripts wrap them, and put a wrapper's name before each."""
    import torch

    assert request.weights is not None
    if request.weights.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: Mapping[str, Any] = load_file(request.weights)
    else:
        state = torch.load(request.weights, map_location="cpu", weights_only=True)
    names = set(module.state_dict())
    for wrapper in _WRAPPERS:
        if not names & set(state) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    for prefix in _PREFIXES:
        if not names & set(state) and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    module.load_state_dict(state)
