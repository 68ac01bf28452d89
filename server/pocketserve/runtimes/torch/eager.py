"""Unconverted PyTorch: ``model.py`` builds the ``nn.Module``, a weights file fills it.

``model.py`` is code and runs with the server's rights, so it needs its owner's consent (:mod:`pocketserve.trust`), and
is never taken over the network. Weights are data: safetensors, or a state dict read with ``weights_only``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pocketserve.messages import excerpt, plural
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.torch.common import (
    flatten,
    import_torch,
    is_result,
    leaf_array,
    leaf_spec,
    probe,
    to_torch,
    use_threads,
    weight_bytes,
)
from pocketserve.runtimes.torch.weights import fill, unfilled
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.modules import modules_beside, run_file

_log = logging.getLogger(__name__)


class TorchRuntime:
    """Loads ``model.py`` versions."""

    platform = "pytorch_eager"
    option_keys = frozenset({"weights", "function", "arguments"})

    def open(self, source: ModelSource) -> TorchSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        torch = import_torch()
        with modules_beside(source.original, source.trusted):
            module = _build_unfilled(torch, source) if source.options.get("weights") else _build(torch, source)
        fill(torch, module, source)
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
        self._by_name = _takes_names(module, [spec.name for spec in self.inputs])
        self.memory_bytes = weight_bytes((*module.parameters(), *module.buffers()))
        self._own_names: dict[str, str] = {}
        self.outputs = self._probe(source.outputs)

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Inputs are passed by name where ``forward`` knows all their names, else in the order of the specs.
        """
        leaves = dict(flatten(self._run(inputs)))
        return {
            spec.name: leaf_array(self._torch, leaves.get(self._own_names[spec.name]), spec.datatype)
            for spec in self.outputs
        }

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._module = None

    def _probe(self, declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Run once on zeros: it proves that the module works and tells the outputs' datatypes and shapes."""
        result: Any = None

        def run(inputs: dict[str, Array]) -> list[TensorSpec]:
            nonlocal result
            result = self._run(inputs)
            try:
                return [leaf_spec(self._torch, name, leaf, batched=False) for name, leaf in self._results(result)]
            except (TypeError, ValueError) as error:
                raise ModelLoadError(f"the module's results cannot be served: {error}") from error

        try:
            found = probe(run, self.inputs)
        except ModelLoadError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.inputs)
            raise ModelLoadError(
                f"a first run on zeros ({shapes}) failed: {_told(error)}; check [[inputs]] in model.toml"
            ) from error
        names = _output_names(result, [spec.name for spec in found], [spec.name for spec in declared])
        self._own_names = {name: spec.name for name, spec in zip(names, found, strict=True)}
        results = [replace(spec, name=name) for name, spec in zip(names, found, strict=True)]
        if declared:
            _check_declared(declared, results)
            return tuple(declared)
        batched = self.inputs[0].shape[:1] == (-1,)
        return tuple(_with_free_rows(spec) if batched else spec for spec in results)

    def _results(self, result: Any) -> list[tuple[str, Any]]:
        """The leaves that callers get: what is None, or an object of the module's own, is left out.

        Raises:
            ModelLoadError: there is nothing else.
        """
        leaves = flatten(result)
        given = [(name, leaf) for name, leaf in leaves if is_result(self._torch, leaf)]
        others = (leaf for _, leaf in leaves if leaf is not None and not is_result(self._torch, leaf))
        objects = ", ".join(type(leaf).__name__ for leaf in others)
        if not given:
            raise ModelLoadError(
                f"the module returns {objects or 'nothing'} instead of tensors; wrap it in one that does"
            )
        if objects:
            _log.warning("outputs that no tensor can carry are left out: %s", objects)
        return given

    def _run(self, inputs: Mapping[str, Array]) -> Any:
        use_threads(self._torch, self._threads)
        arguments = [to_torch(self._torch, inputs[spec.name], spec) for spec in self.inputs]
        with self._torch.inference_mode():
            if not self._by_name:
                return self._module(*arguments)
            return self._module(**{spec.name: value for spec, value in zip(self.inputs, arguments, strict=True)})


def _takes_names(module: Any, names: Sequence[str]) -> bool:
    """Return whether ``forward`` has parameters of all these names: then their order in the manifest does not
    matter.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # written in C, or scripted
        return False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {parameter.name for parameter in parameters if parameter.kind in kinds}
    return len(set(names)) == len(names) and known.issuperset(names)


def _build_unfilled(torch: Any, source: ModelSource) -> Any:
    """The module without random numbers where a file's weights will be, unless it counts on them."""
    before = torch.get_rng_state()  # another model may have seeded it, for what it draws in its runs
    seed = torch.seed()
    try:
        with suppress(ModelLoadError), unfilled(torch, seed) as context:
            module = _build(torch, source)
            if torch.initial_seed() == seed and not context.seeded:
                return module
    finally:
        torch.set_rng_state(before)
    return _build(torch, source)  # it seeds, so what it draws later depends on all that it drew before; or it failed


def _build(torch: Any, source: ModelSource) -> Any:
    code = run_file(source.path, source.trusted, source.original)
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
        raise ModelLoadError(f"{name}() in {source.path.name} failed: {_told(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise ModelLoadError(f"{name}() in {source.path.name} returned {type(module).__name__}, not an nn.Module")
    return module


def _told(error: Exception) -> str:
    return excerpt(f"{type(error).__name__}: {error}", 400)


def _output_names(result: Any, own: list[str], declared: list[str]) -> list[str]:
    """The names that callers see: dictionaries keep theirs, a tensor or tuple gets the manifest's."""
    if not declared or isinstance(result, Mapping):
        return own
    if len(declared) != len(own):
        raise ModelLoadError(f"the module returns {plural(len(own), 'output')}, model.toml declares {len(declared)}")
    return declared


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


RUNTIME = TorchRuntime()
