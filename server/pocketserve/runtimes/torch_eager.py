"""Unconverted PyTorch: ``model.py`` builds the ``nn.Module``, a weights file fills it.

``model.py`` is code and runs with the server's rights, so it is only taken from a folder that nobody else can write
to, and never over the network. Weights are data: safetensors, or a state dict read with ``weights_only``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Signature
from pocketserve.runtimes.safetensors import read_safetensors
from pocketserve.tensors import Array, TensorSpec, datatype_of
from pocketserve_wire import DATATYPES

MINIMUM_TORCH = (2, 10)
"""Below it, weights_only could be made to run code or corrupt memory (CVE-2025-32434, CVE-2026-24747)."""


class TorchRuntime:
    """Loads ``model.py`` versions."""

    platform = "pytorch_eager"
    option_keys = frozenset({"weights", "function", "arguments"})

    def open(self, source: ModelSource) -> TorchSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        torch = _import_torch()
        check_trusted(source.path)
        module = _build(torch, source)
        _fill(torch, module, source)
        module.eval()
        torch.set_num_threads(source.threads)
        return TorchSession(torch, module, source)


class TorchSession:
    """One module in evaluation mode."""

    signatures: Mapping[str, Signature] = {}

    def __init__(self, torch: Any, module: Any, source: ModelSource) -> None:
        self._torch = torch
        self._module = module
        self.runtime = f"torch {torch.__version__}"
        self.device = "cpu"
        if not source.inputs:
            raise ModelLoadError(
                "PyTorch modules do not say what they take: declare [[inputs]] with name, datatype and shape in "
                "model.toml"
            )
        self.inputs = tuple(source.inputs)
        self.memory_bytes = sum(
            tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers())
        )
        self._names = [spec.name for spec in source.outputs]
        self.outputs = self._probe(source.outputs)

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`. Inputs are passed in the order of the specs."""
        arguments = [_to_torch(self._torch, inputs[spec.name], spec) for spec in self.inputs]
        with self._torch.inference_mode():
            result = self._module(*arguments)
        named = _named_outputs(result, self._names)
        return {name: _to_numpy(self._torch, tensor) for name, tensor in named.items()}

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._module = None

    def _probe(self, declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Run once on zeros: it proves that the module works and tells the outputs' datatypes and shapes."""
        zeros = {
            spec.name: np.zeros([max(1, dim) for dim in spec.shape], dtype=_numpy_dtype(spec)) for spec in self.inputs
        }
        try:
            results = self.run(zeros)
        except Exception as error:
            shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.inputs)
            raise ModelLoadError(
                f"a first run on zeros ({shapes}) failed: {type(error).__name__}: {str(error)[:300]}; "
                "check [[inputs]] in model.toml"
            ) from error
        if declared:
            return tuple(declared)
        batched = bool(self.inputs) and self.inputs[0].shape[:1] == (-1,)
        return tuple(_output_spec(name, array, batched) for name, array in results.items())


def check_trusted(path: Path) -> None:
    """Refuse code that somebody else could have written.

    Raises:
        ModelLoadError: the file or its folder can be written by others, or belongs to another user.
    """
    if os.name != "posix":
        return
    for item in (path, path.parent):
        status = item.stat()
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise ModelLoadError(f"{item.name} can be written by every user, so its code is not run; chmod o-w it")
        if status.st_uid not in (os.geteuid(), 0):
            raise ModelLoadError(f"{item.name} belongs to another user, so its code is not run")


def _import_torch() -> Any:
    try:
        import torch
    except Exception as error:  # a broken native library raises OSError, not ImportError
        raise RuntimeMissingError(
            f"PyTorch is not usable ({type(error).__name__}: {str(error)[:200]}); install it with "
            "pip install 'pocketserve[torch]', on Termux with pkg install python-torch"
        ) from None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        raise RuntimeMissingError(
            f"PyTorch {torch.__version__} is too old to read weights safely; install {MINIMUM_TORCH[0]}."
            f"{MINIMUM_TORCH[1]} or newer: pip install -U 'pocketserve[torch]'"
        )
    return torch


def _build(torch: Any, source: ModelSource) -> Any:
    code = _import_file(source.path)
    name = source.options.get("function", "build")
    function: Callable[..., Any] | None = getattr(code, name, None) if isinstance(name, str) else None
    if not callable(function):
        raise ModelLoadError(f"{source.path.name} has no function {name!r} that builds the module")
    arguments = source.options.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ModelLoadError("model.toml: arguments must be a table of keyword arguments")
    module = function(**arguments)
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
        raise ModelLoadError(f"{path.name} failed when it was run: {type(error).__name__}: {error}") from error
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


def _output_spec(name: str, array: Array, batched: bool) -> TensorSpec:
    shape = (-1, *array.shape[1:]) if batched and array.ndim and array.shape[0] == 1 else array.shape
    return TensorSpec(name, datatype_of(array.dtype), shape)


def _numpy_dtype(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype(DATATYPES[spec.datatype].typestr)


def _to_torch(torch: Any, array: Array, spec: TensorSpec) -> Any:
    # The request's memory is read-only; torch has no read-only tensors and warns, so the input is copied.
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if spec.datatype == "BF16" else tensor


def _to_numpy(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.uint16).numpy()
        return bits
    array: Array = tensor.numpy()
    return array


RUNTIME = TorchRuntime()
