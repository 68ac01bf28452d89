"""Unconverted PyTorch: ``model.py`` builds the ``nn.Module``, a weights file fills it.

``model.py`` is code and runs with the server's rights, so it needs its owner's consent (:mod:`pocketserve.trust`), and
is never taken over the network. Weights are data.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pocketserve.messages import excerpt, plural
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.torch.common import (
    ModuleSession,
    flatten,
    import_torch,
    is_result,
    keyword_arguments,
    leaf_array,
    probe_outputs,
    to_torch,
    weight_bytes,
    with_free_rows,
)
from pocketserve.runtimes.torch.weights import load_weights, without_random_numbers
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.modules import modules_beside, run_file

_log = logging.getLogger(__name__)


class TorchRuntime:
    """Loads ``model.py`` versions."""

    platform = "pytorch_eager"
    option_keys = frozenset({"weights", "function", "arguments"})

    def open(self, source: ModelSource) -> TorchSession:
        torch = import_torch()
        return TorchSession(torch, build_module(torch, source), source)


RUNTIME = TorchRuntime()


def build_module(torch: Any, source: ModelSource) -> Any:
    """Return the module of a ``model.py`` with its weights, in evaluation mode.

    Raises:
        ModelLoadError: the code is not trusted, fails, or does not fit the weights.
    """
    build = _build_unfilled if source.options.get("weights") else _build
    with modules_beside(source.original, source.trusted):
        module = build(torch, source)
    load_weights(torch, module, source)
    return module.eval()


class TorchSession(ModuleSession):
    """A module in evaluation mode."""

    def __init__(self, torch: Any, module: Any, source: ModelSource) -> None:
        super().__init__(torch, source.threads)
        self._module = module
        if not source.inputs:
            raise ModelLoadError(
                "PyTorch modules do not state their inputs: declare [[inputs]] with "
                "name, datatype and shape in "
                "model.toml, or: pocketserve init MODEL --shape 1,3,224,224"
            )
        self.inputs = tuple(source.inputs)
        self._by_name = takes_names(module, [spec.name for spec in self.inputs])
        self.memory_bytes = weight_bytes((*module.parameters(), *module.buffers()))
        self._result_names: dict[str, str] = {}
        self.outputs = self._probe(source.outputs)

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the module; inputs are passed by name if ``forward`` has all names."""
        leaves = dict(flatten(self._run(inputs)))
        arrays = {}
        for spec in self.outputs:
            leaf = leaves.get(self._result_names[spec.name])
            arrays[spec.name] = leaf_array(self._torch, leaf, spec.datatype)
        return arrays

    def _run(self, inputs: Mapping[str, Array]) -> Any:
        tensors = []
        names = []
        for spec in self.inputs:
            array = inputs[spec.name]
            tensors.append(to_torch(self._torch, array, spec))
            names.append(spec.name)
        if not self._by_name:
            return self._call(*tensors)
        return self._call(**dict(zip(names, tensors, strict=True)))

    def _probe(self, declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Test the module on zeros and describe its outputs."""
        result: Any = None

        def run(inputs: dict[str, Array]) -> list[tuple[str, Any]]:
            nonlocal result
            result = self._run(inputs)
            return self._results(result)

        probed = probe_outputs(
            self._torch,
            run,
            self.inputs,
            "check [[inputs]] in model.toml",
        )
        names = [spec.name for spec in probed]
        # Dictionaries keep their names.
        if declared and not isinstance(result, Mapping):
            if len(declared) != len(names):
                raise ModelLoadError(
                    f"the module returns {plural(len(names), 'output')}, model.toml declares {len(declared)}"
                )
            names = [spec.name for spec in declared]
        specs: dict[str, TensorSpec] = {}
        for name, spec in zip(names, probed, strict=True):
            self._result_names[name] = spec.name
            specs[name] = spec._replace(name=name)
        if declared:
            _check_declared(declared, specs)
            return tuple(declared)
        if self.inputs[0].shape[:1] == (-1,):
            return tuple(map(with_free_rows, specs.values()))
        return tuple(specs.values())

    def _results(self, result: Any) -> list[tuple[str, Any]]:
        """Return the leaves that can be served, without None and other objects."""
        results = []
        objects = []
        for name, leaf in flatten(result):
            if is_result(self._torch, leaf):
                results.append((name, leaf))
            elif leaf is not None:
                objects.append(type(leaf).__name__)
        names = ", ".join(objects)
        if not results:
            raise ModelLoadError(
                f"the module returns {names or 'nothing'} instead of tensors; wrap it "
                "in one that does"
            )
        if objects:
            _log.warning("outputs that no tensor can carry are left out: %s", names)
        return results


def takes_names(module: Any, names: Sequence[str]) -> bool:
    """Return whether ``forward`` has parameters with all these names."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # written in C, or scripted
        return False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameter_names = set()
    for parameter in parameters:
        if parameter.kind in kinds:
            parameter_names.add(parameter.name)
    return len(set(names)) == len(names) and parameter_names.issuperset(names)


def _build_unfilled(torch: Any, source: ModelSource) -> Any:
    """Build the module without initializing weights that a file will fill."""
    before = torch.get_rng_state()  # another model may have seeded it, for its runs
    seed = torch.seed()
    try:
        with suppress(ModelLoadError), without_random_numbers(torch, seed) as context:
            module = _build(torch, source)
            if torch.initial_seed() == seed and not context.seeded:
                return module
    finally:
        torch.set_rng_state(before)
    # The code sets a seed, so that all numbers depend on the skipped ones; or it
    # failed.
    return _build(torch, source)


def _build(torch: Any, source: ModelSource) -> Any:
    code = run_file(source.path, source.trusted, source.original)
    name = source.options.get("function", "build")
    function: Callable[..., Any] | None = (
        getattr(code, name, None) if isinstance(name, str) else None
    )
    if not callable(function):
        raise ModelLoadError(
            f"{source.path.name} has no function {name!r} that builds the module"
        )
    arguments = keyword_arguments(source)
    fault = f"{name}() in {source.path.name} failed"
    with load_errors(
        lambda error: f"{fault}: {excerpt(f'{type(error).__name__}: {error}', 400)}"
    ):
        module = function(**arguments)
    if not isinstance(module, torch.nn.Module):
        raise ModelLoadError(
            f"{name}() in {source.path.name} returned {type(module).__name__}, not an nn.Module"
        )
    return module


def _check_declared(
    declared: Sequence[TensorSpec], results: Mapping[str, TensorSpec]
) -> None:
    """Raise if an output differs from its declared spec."""
    for spec in declared:
        result = results.get(spec.name)
        if result is None:
            raise ModelLoadError(
                f"the module returns no output {spec.name!r}, only {', '.join(map(repr, results))}"
            )
        if spec.datatype != result.datatype or not spec.accepts(result.shape):
            raise ModelLoadError(
                f"model.toml declares output {spec.name!r} as {spec.datatype} {list(spec.shape)}, but the module "
                f"returns {result.datatype} {list(result.shape)} for one row of zeros"
            )
