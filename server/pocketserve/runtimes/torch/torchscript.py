"""Runs TorchScript archives (``torch.jit.save``), whatever their ending.

The file holds a program in TorchScript's own language, which cannot call Python. It could write files all the same
(``torch.save``) and read them (``torch.from_file``): a program is only run if all of its operators are among those that
only compute (:mod:`~pocketserve.runtimes.torch.graphs`). A forward run releases the GIL.

A file tells names and kinds of its inputs, but neither datatypes nor ranks of tensors; a manifest may. What it gives is
described by what runs gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketserve.formats.zip_archives import BadZipError, members
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.registry import content_of
from pocketserve.runtimes.torch.common import (
    file_size,
    flatten,
    import_torch,
    input_fault,
    leaf_spec,
    load_error,
    one_line,
    probe,
    use_threads,
    weight_bytes,
)
from pocketserve.runtimes.torch.graphs import NotPlainError, load_checked
from pocketserve.runtimes.torch.state import UndecidedError, restorer
from pocketserve.runtimes.torch.torchscript_values import Argument, Parameters, Results, outline
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.verified_files import not_trusted, read_code

RESET_METHOD = "reset_states"
"""What stateful modules call it by custom, such as Silero's voice activity detectors."""

_INSTEAD: Mapping[str | None, str] = {
    "state_dict": "holds weights without a model, or a pickled module, which is code that is never run; save the model "
    "with torch.jit.save or as ONNX, or build it in a model.py and name its state dict as the weights",
    "pt2": "is an exported program; give it the ending .pt2",
    "aoti": "is a compiled package of native code, which is not served; serve the exported program",
    None: "is no TorchScript archive, or is damaged; save it again with torch.jit.save",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded model, as both interpreters offer it.

    Attributes:
        run: the method, called with an input's arrays by name.
        reset: forgets what earlier runs left; None where the model keeps nothing.
    """

    torch: Any
    parameters: Parameters
    run: Callable[[Mapping[str, Array]], Any]
    reset: Callable[[], Any] | None
    runtime: str
    memory_bytes: int
    names: Sequence[str] | None


class ScriptSession:
    """One loaded program.

    Args:
        opener: loads the file; used twice where a run on zeros is needed, which must leave no state behind.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(self, opener: Callable[[], Program], source: ModelSource) -> None:
        program = opener()
        self._path = source.path
        self._threads = source.threads
        use_threads(program.torch, self._threads)  # for the run on zeros
        self.inputs: Sequence[TensorSpec] = program.parameters.inputs
        names, found = program.names, dict[str, TensorSpec]()
        if not source.outputs and not any(spec.open for spec in self.inputs):
            names, found = _probe(program)
            del program  # first, or the weights would be held twice
            program = opener()
        self._results = Results(names, source.outputs, found)
        self._program: Program | None = program
        self.outputs: Sequence[TensorSpec] = self._results.outputs
        self.runtime = program.runtime
        self.device = "cpu"
        self.memory_bytes = program.memory_bytes

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: the model cannot take these sizes, types or values.
        """
        program = self._ready()
        use_threads(program.torch, self._threads)
        try:
            result = program.run(inputs)
        except Exception as error:
            if (fault := input_fault(error, program.torch.jit.Error)) is not None:
                raise fault from error
            raise RuntimeError(one_line(error, 400) + _age_of(self._path)) from error
        arrays = self._results.arrays(program.torch, result)
        self.outputs = self._results.outputs  # a run may have told more of them
        return arrays

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._program = None

    def _ready(self) -> Program:
        if self._program is None:
            raise RuntimeError("the session is closed")
        return self._program


def _age_of(path: Path) -> str:
    """Return what to add to a failure of a file that was saved before PyTorch 2.0, which writes a byte order into
    each.
    """
    try:
        old = all(member.name != "byteorder" for member in members(path))
    except (BadZipError, OSError):
        return ""
    return "; the file was saved before PyTorch 2.0, and operators have changed since: save it again" if old else ""


class StatefulSession(ScriptSession):
    """One loaded program that keeps state from run to run, by a method that resets it or in its own attributes."""

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`."""
        program = self._ready()
        assert program.reset is not None
        program.reset()


def open_session(opener: Callable[[], Program], source: ModelSource) -> ScriptSession:
    """A session of the class that fits the program."""
    first: list[Program] = [opener()]

    def again() -> Program:
        # The program that told whether there is state serves; only a probe makes a second one necessary.
        return first.pop() if first else opener()

    return (ScriptSession if first[0].reset is None else StatefulSession)(again, source)


def _probe(program: Program) -> tuple[Sequence[str] | None, dict[str, TensorSpec]]:
    """Return what a run on zeros tells of the outputs.

    A model that refuses zeros (a sampling rate of 0) is no fault where its text tells the outputs.
    """
    inputs = program.parameters.inputs
    batched = bool(inputs) and inputs[0].shape[:1] == (-1,)

    def run(arrays: dict[str, Array]) -> list[TensorSpec]:
        leaves = flatten(program.run(arrays))
        try:
            return [leaf_spec(program.torch, name, leaf, batched) for name, leaf in leaves if leaf is not None]
        except (TypeError, ValueError) as error:
            raise ModelLoadError(f"the model's results cannot be served: {error}") from error

    try:
        found = {spec.name: spec for spec in probe(run, inputs)}
    except ModelLoadError:
        raise
    except Exception as error:
        if program.names is not None:
            return program.names, {}
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in inputs)
        raise ModelLoadError(
            f"a first run on zeros ({shapes}) failed: {one_line(error)}; check [[inputs]] or declare [[outputs]] in "
            "model.toml"
        ) from error
    return list(found), found


def chosen_reset(source: ModelSource, has_method: Callable[[str], bool]) -> str | None:
    """The name of the method that resets a module, or None.

    Raises:
        ModelLoadError: the manifest names one that the model does not have.
    """
    name = source.options.get("reset")
    if name is None:
        return RESET_METHOD if has_method(RESET_METHOD) else None
    if not isinstance(name, str) or not has_method(name):
        raise ModelLoadError(f"model.toml: reset names {name!r:.80}, but the model has no method of that name")
    return name


class TorchScriptRuntime:
    """Opens TorchScript archives."""

    platform = "pytorch_torchscript"
    option_keys = frozenset({"arguments", "reset", "trust"})

    def open(self, source: ModelSource) -> ScriptSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        file_size(source.path)
        kind = content_of(source.path)
        if kind not in ("torchscript", "ptl"):  # mobile files keep the whole program beside the other form
            raise ModelLoadError(f"{source.path.name} {_INSTEAD.get(kind, _INSTEAD[None])}")
        torch = import_torch()
        try:
            return open_session(lambda: load_script(torch, source), source)
        except ModelLoadError:
            raise
        except Exception as error:
            raise load_error(source.path.name, f"torch {torch.__version__}", error) from error


RUNTIME = TorchScriptRuntime()
"""The runtime of the kind ``torchscript``."""


def load_module(torch: Any, source: ModelSource) -> Any:
    """Load a module that only computes, or that its owner trusts.

    Raises:
        ModelLoadError: it is neither.
        Exception: whatever PyTorch raises.
    """
    try:
        return load_checked(torch, source.path)
    except NotPlainError as error:
        return load_trusted(torch, source, error)


def load_trusted(torch: Any, source: ModelSource, why: NotPlainError) -> Any:
    """Load a module that does more than compute, if its owner trusts it.

    Raises:
        ModelLoadError: nobody does.
        Exception: whatever PyTorch raises.
    """
    if not source.trusted:
        raise ModelLoadError(not_trusted(source.original, str(why))) from why
    content = read_code(source.path, source.trusted, source.original)
    unit = torch._C.CompilationUnit()
    loaded = torch._C.import_ir_module_from_buffer(unit, content, torch.device("cpu"), {}, False)
    return torch.jit._recursive.wrap_cpp_module(loaded).eval()


def load_script(torch: Any, source: ModelSource) -> Program:
    """Load a program for the full interpreter.

    Raises:
        Exception: whatever PyTorch raises.
    """
    held = [load_module(torch, source)]
    module = held[0]
    if not module._c._has_method("forward"):
        raise ModelLoadError(f"{source.path.name} has no method forward")
    schema = module.forward.schema
    arguments = [
        Argument(a.name, a.type.annotation_str, a.default_value, a.has_default_value()) for a in schema.arguments[1:]
    ]
    parameters = Parameters(torch, arguments, source)

    def run(inputs: Mapping[str, Array]) -> Any:
        values = {argument.name: value for argument, value in parameters.values(inputs)}
        with torch.inference_mode():
            return held[0](**values)

    def again() -> None:
        held[0] = load_module(torch, source)

    name = chosen_reset(source, lambda name: _is_reset(module, name))
    reset: Callable[[], Any] | None = getattr(module, name) if name else None
    if reset is None:
        try:
            reset = restorer(torch, module)
        except UndecidedError:
            reset = again
    # A frozen module keeps its weights in the program, where they are not counted.
    weights = weight_bytes((*module.parameters(), *module.buffers()))
    return Program(
        torch,
        parameters,
        run,
        reset,
        f"torch {torch.__version__} (TorchScript)",
        max(weights, file_size(source.path)),
        read_outline(module),
    )


def _is_reset(module: Any, name: str) -> bool:
    """Return whether a module has a method of that name that can be called with nothing."""
    if not module._c._has_method(name):
        return False
    return all(argument.has_default_value() for argument in getattr(module, name).schema.arguments[1:])


def read_outline(module: Any) -> list[str] | None:
    """Names of the results, as far as the program's text tells them."""
    try:
        value = next(iter(module.inlined_graph.outputs()))
        return [name for name, _ in flatten(outline(module.forward.schema.returns[0].type, value))]
    except Exception:  # the graph's interface is not documented; without it a run tells
        return None
