"""Unconverted PyTorch: ``model.py`` builds the ``nn.Module``, a weights file fills it.

``model.py`` is code and runs with the server's rights, so it is only taken from a folder that nobody else can write
to, and never over the network. Weights are data: safetensors, or a state dict read with ``weights_only``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.safetensors import read_safetensors
from pocketserve.runtimes.torch_common import (
    check_trusted,
    import_torch,
    to_numpy,
    to_torch,
    use_threads,
    weight_bytes,
)
from pocketserve.tensors import Array, TensorSpec, datatype_of
from pocketserve_wire import DATATYPES


class TorchRuntime:
    """Loads ``model.py`` versions."""

    platform = "pytorch_eager"
    option_keys = frozenset({"weights", "function", "arguments"})

    def open(self, source: ModelSource) -> TorchSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        torch = import_torch()
        check_trusted(source.path)
        module = _build(torch, source)
        _fill(torch, module, source)
        module.eval()
        return TorchSession(torch, module, source)


class TorchSession:
    """One module in evaluation mode."""

    signatures: Mapping[str, Signature] = {}

    def __init__(self, torch: Any, module: Any, source: ModelSource) -> None:
        self._torch = torch
        self._module = module
        self._threads = source.threads
        self.runtime = f"torch {torch.__version__}"
        self.device = "cpu"
        if not source.inputs:
            raise ModelLoadError(
                "PyTorch modules do not say what they take: declare [[inputs]] with name, datatype and shape in "
                "model.toml"
            )
        self.inputs = tuple(source.inputs)
        self.memory_bytes = weight_bytes((*module.parameters(), *module.buffers()))
        self._names = [spec.name for spec in source.outputs]
        self.outputs = self._probe(source.outputs)

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`. Inputs are passed in the order of the specs."""
        return {name: to_numpy(self._torch, tensor) for name, tensor in self._run(inputs).items()}

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._module = None

    def _probe(self, declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Run once on zeros: it proves that the module works and tells the outputs' datatypes and shapes."""
        zeros = {
            spec.name: np.zeros([max(1, dim) for dim in spec.shape], dtype=_numpy_dtype(spec)) for spec in self.inputs
        }
        try:
            results = [self._output_spec(name, tensor) for name, tensor in self._run(zeros).items()]
        except ModelLoadError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.inputs)
            raise ModelLoadError(
                f"a first run on zeros ({shapes}) failed: {_in_one_line(error)[:300]}; check [[inputs]] in model.toml"
            ) from error
        if declared:
            _check_declared(declared, results)
            return tuple(declared)
        batched = self.inputs[0].shape[:1] == (-1,)
        return tuple(_with_free_rows(spec) if batched else spec for spec in results)

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        use_threads(self._torch, self._threads)
        arguments = [to_torch(self._torch, inputs[spec.name], spec) for spec in self.inputs]
        with self._torch.inference_mode():
            result = self._module(*arguments)
        return _named_outputs(result, self._names)

    def _output_spec(self, name: str, tensor: Any) -> TensorSpec:
        array = to_numpy(self._torch, tensor)
        # NumPy has no BF16: the array's own dtype is that of its bits.
        datatype = "BF16" if tensor.dtype == self._torch.bfloat16 else datatype_of(array.dtype)
        return TensorSpec(name, datatype, array.shape)


def _build(torch: Any, source: ModelSource) -> Any:
    code = _import_file(source.path)
    name = source.options.get("function", "build")
    function: Callable[..., Any] | None = getattr(code, name, None) if isinstance(name, str) else None
    if not callable(function):
        raise ModelLoadError(f"{source.path.name} has no function {name!r} that builds the module")
    arguments = source.options.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ModelLoadError("model.toml: arguments must be a table of keyword arguments")
    try:
        module = function(**arguments)
    except Exception as error:
        raise ModelLoadError(f"{name}() in {source.path.name} failed: {_in_one_line(error)[:400]}") from error
    if not isinstance(module, torch.nn.Module):
        raise ModelLoadError(f"{name}() in {source.path.name} returned {type(module).__name__}, not an nn.Module")
    return module


def _import_file(path: Path) -> Any:
    # A name of its own per file: two models may both have a model.py.
    name = f"pocketserve_model_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ModelLoadError(f"{path.name} failed when it was run: {_in_one_line(error)[:400]}") from error
    return module


def _fill(torch: Any, module: Any, source: ModelSource) -> None:
    name = source.options.get("weights")
    if name is None:
        return
    folder = source.path.parent
    if not isinstance(name, str) or not (folder / name).resolve().is_relative_to(folder):
        raise ModelLoadError(f"model.toml: weights must be a file in the model's folder, not {name!r:.80}")
    path = folder / name
    if not path.is_file():
        raise ModelLoadError(f"the weights file {name} does not exist")
    state = _safetensors_state(torch, path) if path.suffix == ".safetensors" else _pickled_state(torch, path)
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{name} does not fit the module: {' '.join(str(error).split())[:400]}") from None


def _safetensors_state(torch: Any, path: Path) -> dict[str, Any]:
    state = {}
    for name, (dtype, array) in read_safetensors(path).items():
        tensor = torch.from_numpy(array)
        state[name] = tensor.view(torch.bfloat16) if dtype == "BF16" else tensor
    return state


def _pickled_state(torch: Any, path: Path) -> Any:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise ModelLoadError(
            f"{path.name} cannot be read as plain weights ({' '.join(str(error).split())[:300]}); save it with "
            "torch.save(module.state_dict()) or as safetensors"
        ) from None
    if not isinstance(state, dict):
        raise ModelLoadError(f"{path.name} holds {type(state).__name__}, not a state dict")
    return state


def _named_outputs(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """A module's return value by name: dicts keep theirs, a tensor or tuple gets the manifest's or numbers."""
    if isinstance(result, Mapping):
        return {str(name): tensor for name, tensor in result.items()}
    items = list(result) if isinstance(result, tuple | list) else [result]
    if names and len(names) != len(items):
        raise ModelLoadError(f"the module returns {len(items)} outputs, model.toml declares {len(names)}")
    return dict(zip(names or [f"output_{index}" for index in range(len(items))], items, strict=True))


def _with_free_rows(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(-1, *spec.shape[1:])) if spec.shape[:1] == (1,) else spec


def _check_declared(declared: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> None:
    """Refuse a declaration that would make callers read an output's bytes as something else."""
    results = {spec.name: spec for spec in found}
    for spec in declared:
        result = results.get(spec.name)
        if result is None:
            raise ModelLoadError(f"the module returns no output {spec.name!r}, only {', '.join(map(repr, results))}")
        if spec.datatype != result.datatype or not spec.accepts(result.shape):
            raise ModelLoadError(
                f"model.toml declares output {spec.name!r} as {spec.datatype} {list(spec.shape)}, but the module "
                f"returns {result.datatype} {list(result.shape)} for one row of zeros"
            )


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _numpy_dtype(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype(DATATYPES[spec.datatype].typestr)


RUNTIME = TorchRuntime()
