"""Runs TorchScript archives (``torch.jit.save``), whatever their ending.

The file holds a program in TorchScript's own language, which cannot call Python. It could write files all the same
(``torch.save``) and read them (``torch.from_file``): a program only runs if all of its operators are among those that
only compute (:mod:`~pocketserve.runtimes.torch.graphs`). A forward run releases the GIL.

A file tells names and kinds of its inputs, but neither datatypes nor ranks of tensors; a manifest may. Outputs are
described by the results of runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.formats.zip_archives import BadZipError, members, read_member
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.metadata import parse_properties
from pocketserve.runtimes.model_files import file_size, load_errors
from pocketserve.runtimes.torch.common import (
    FirstRunError,
    ModuleSession,
    check_content,
    error_message,
    explain_load_error,
    flatten,
    import_torch,
    input_fault,
    probe_outputs,
    weight_bytes,
    with_free_rows,
)
from pocketserve.runtimes.torch.graphs import (
    NotPlainError,
    load_checked,
    wrapped_module,
)
from pocketserve.runtimes.torch.state import UndecidedError, state_restorer
from pocketserve.runtimes.torch.torchscript_values import (
    Argument,
    Parameters,
    Results,
    result_structure,
)
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.verified_files import not_trusted, read_code

PROPERTIES = "extra/config.txt"
MAX_PROPERTIES_BYTES = 4 * 2**20
MAX_SIZE_TEXT = 100  # characters, such as "[640, 640]"
MAX_SIDE = 1 << 14


class TorchScriptRuntime:
    """Opens TorchScript archives."""

    platform = "pytorch_torchscript"
    option_keys = frozenset({"arguments", "reset", "trust"})
    title = "TorchScript archive"

    def open(self, source: ModelSource) -> ScriptSession:
        check_content(source.path, ("torchscript", "ptl"), self.title)
        torch = import_torch()
        with load_errors(
            lambda error: explain_load_error(
                source.path.name, f"torch {torch.__version__}", error
            )
        ):
            return ScriptSession(torch, source)


RUNTIME = TorchScriptRuntime()


class ScriptSession(ModuleSession):
    """A loaded program."""

    reset: Callable[[], None]  # only there if the program keeps state

    def __init__(self, torch: Any, source: ModelSource) -> None:
        super().__init__(torch, source.threads, " (TorchScript)")
        self._source = source
        self._load()
        if not self._module._c._has_method("forward"):
            raise ModelLoadError(f"{source.path.name} has no method forward")
        self.properties = read_extra_properties(source.path)
        self._parameters = self._read_parameters()
        self.inputs: Sequence[TensorSpec] = self._parameters.inputs
        method = _reset_method(source, self._module)
        restore = self._load if method else self._restorer()
        self._results = self._describe_results(restore)
        self.outputs: Sequence[TensorSpec] = self._results.outputs
        if method is not None:
            self.reset = lambda: getattr(self._module, method)()
        elif restore is not None:
            self.reset = restore
        # A frozen module keeps its weights in the program, where they are not counted.
        weights = weight_bytes((*self._module.parameters(), *self._module.buffers()))
        self.memory_bytes = max(weights, file_size(source.path))

    def _read_parameters(self) -> Parameters:
        """Match the arguments of ``forward`` with the declared inputs."""
        arguments = []
        for entry in self._module.forward.schema.arguments[1:]:
            is_optional = entry.has_default_value()
            arguments.append(Argument(entry.name, entry.type, is_optional))
        inputs = self._source.inputs
        if not inputs:
            inputs = _picture_input(arguments, self.properties)
        source = self._source._replace(inputs=inputs)
        return Parameters(self._torch, arguments, source)

    def _describe_results(self, restore: Callable[[], None] | None) -> Results:
        """Describe the results, by a run if the inputs are known.

        Args:
            restore: undoes the run's changes of the state.
        """
        names = _output_names(self._module)
        specs: dict[str, TensorSpec] = {}
        has_open_inputs = any(spec.open for spec in self.inputs)
        if not self._source.outputs and not has_open_inputs:
            try:
                specs = self._probe()
                names = list(specs)
            except FirstRunError:
                # A model may reject zeros, such as a sampling rate of 0.
                if names is None:
                    raise
            if restore is not None:
                restore()
        return Results(names, self._source.outputs, specs)

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run; raise ``ValueError`` for sizes, types or values that don't fit."""
        try:
            result = self._run(inputs)
        except Exception as error:
            fault = input_fault(error, self._torch.jit.Error)
            if fault is not None:
                raise fault from error
            raise RuntimeError(
                error_message(error, 400) + _age_of(self._source.path)
            ) from error
        arrays = self._results.arrays(self._torch, result)
        self.outputs = self._results.outputs  # a run may have described more of them
        return arrays

    def close(self) -> None:
        super().close()
        # ``_call`` raises because the session is closed; the old function keeps the
        # weights in memory.
        self.reset = self._call

    def _run(self, inputs: Mapping[str, Array]) -> Any:
        return self._call(**self._parameters.values(inputs))

    def _load(self) -> None:
        self._module = None  # first, or the weights would be held twice
        try:
            self._module = load_checked(self._torch, self._source.path)
        except NotPlainError as error:
            self._module = _load_trusted(self._torch, self._source, error)

    def _restorer(self) -> Callable[[], None] | None:
        try:
            return state_restorer(self._torch, self._module)
        except UndecidedError:
            return self._load

    def _probe(self) -> dict[str, TensorSpec]:
        """Describe the outputs by a run on zeros."""
        specs = probe_outputs(
            self._torch,
            lambda arrays: [
                (name, leaf)
                for name, leaf in flatten(self._run(arrays))
                if leaf is not None
            ],
            self.inputs,
            "check [[inputs]] or declare [[outputs]] in model.toml",
        )
        batched = bool(self.inputs) and self.inputs[0].shape[:1] == (-1,)
        return {spec.name: with_free_rows(spec) if batched else spec for spec in specs}


def read_extra_properties(path: Path) -> dict[str, str]:
    """Return the metadata that Ultralytics adds to an archive; may be empty.

    The values are in Python's notation.
    """
    try:
        for member in members(path):
            if member.name == PROPERTIES:
                content = read_member(path, member, MAX_PROPERTIES_BYTES)
                return parse_properties(content)
    except (BadZipError, OSError):
        pass
    return {}


def _picture_input(
    arguments: Sequence[Argument], properties: Mapping[str, str]
) -> tuple[TensorSpec, ...]:
    """Return the input by the file's properties, if possible."""
    shape = _picture_shape(properties)
    if len(arguments) != 1 or not arguments[0].is_tensor:
        return ()
    for side in shape:
        if type(side) is not int or not 0 < side <= MAX_SIDE:
            return ()
    if not shape:
        return ()
    return (TensorSpec(arguments[0].name, "FP32", shape),)


def _picture_shape(properties: Mapping[str, str]) -> tuple[Any, ...]:
    """Return batch, channels, height and width; empty if they are not all known."""
    size = properties.get("imgsz", "")
    if len(size) > MAX_SIZE_TEXT:  # the parser takes much memory for nested brackets
        return ()
    try:
        height, width = ast.literal_eval(size)
        batch = int(properties["batch"])
        channels = int(properties.get("channels", "3"))
    except (KeyError, ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ()
    return batch, channels, height, width


def _age_of(path: Path) -> str:
    """Return the advice for a file older than PyTorch 2.0.

    Newer files have a byte order.
    """
    try:
        names = {member.name for member in members(path)}
    except (BadZipError, OSError):
        return ""
    if "byteorder" in names:
        return ""
    return (
        "; the file was saved before PyTorch 2.0, and operators have changed since: "
        "save it again"
    )


def _reset_method(source: ModelSource, module: Any) -> str | None:
    """Return the name of the method that resets a module, or None."""
    # the usual name, as in Silero's voice activity detectors
    name = source.options.get("reset", "reset_states")
    if isinstance(name, str) and module._c._has_method(name):
        arguments = getattr(module, name).schema.arguments
        # The first argument is the module.
        if all(argument.has_default_value() for argument in arguments[1:]):
            return name
    if "reset" in source.options:
        raise ModelLoadError(
            f"model.toml: reset names {name!r:.80}, but the model has no method of "
            "that name"
        )
    return None


def _load_trusted(torch: Any, source: ModelSource, reason: NotPlainError) -> Any:
    """Load a module that does more than compute, if its owner trusts it."""
    if not source.trusted:
        raise ModelLoadError(not_trusted(source.original, str(reason))) from reason
    content = read_code(source.path, source.trusted, source.original)
    unit = torch._C.CompilationUnit()
    module = torch._C.import_ir_module_from_buffer(
        unit, content, torch.device("cpu"), {}, False
    )
    return wrapped_module(torch, module)


def _output_names(module: Any) -> list[str] | None:
    """Return the names of the results; None if the program doesn't show them."""
    try:
        value = next(iter(module.inlined_graph.outputs()))
        kind = module.forward.schema.returns[0].type
        leaves = flatten(result_structure(kind, value))
    except Exception:  # the graph's interface is not documented
        return None
    return [name for name, _ in leaves]
