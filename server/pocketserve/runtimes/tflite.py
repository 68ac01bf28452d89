"""Runs ``.tflite`` files with whichever TFLite package is installed.

Three packages offer the same Python interface: ``ai_edge_litert`` (desktops and servers), ``tflite_runtime``
(what Termux packages) and TensorFlow itself. Nothing is imported before a model is opened.

What they have in common, found by running them, and what shapes the code below:

* After a failed ``allocate_tensors`` the older package crashes the process on the next one, and error texts
  pile up inside the interpreter. An interpreter that failed once is therefore thrown away and opened again.
* While a signature's runner exists, its interpreter refuses to run the main graph. Runners are not kept.
* A free dimension shows as 1 until a caller resizes it. Some models cannot even be allocated at that size.
* A string tensor forgets which of its dimensions are free as soon as it is written.
* ``get_tensor`` gives a NumPy scalar for shape () and refuses some empty tensors.
* A signature's runner holds the native interpreter for itself. If it goes last, the delegates go before it, and the
  native interpreter then touches freed memory: the frames of an error that hold a runner are cleared first.

External delegates are in ``tflite_delegates``.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.tensors import Array, Quantization, TensorSpec, datatype_of
from pocketserve_wire import DATATYPES
from pocketserve_wire.records import dataclass

from .base import ModelLoadError, ModelSource, RuntimeMissingError, Signature
from .flatbuffer import DamagedFileError
from .tflite_check import check_model
from .tflite_delegates import OPTION_KEYS, DelegateError, DelegateRequest, Share, one_line, read_options

_log = logging.getLogger(__name__)

# The frameworks have no type information; interpreters and signature runners are Any below.
Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package with a TFLite interpreter.

    Attributes:
        title: how it is called in texts.
        module: where ``Interpreter`` and ``OpResolverType`` are.
        distributions: names under which it may be installed, for its version.
    """

    title: str
    module: str
    distributions: tuple[str, ...]


PACKAGES = (
    Package("ai-edge-litert", "ai_edge_litert.interpreter", ("ai-edge-litert", "ai-edge-litert-nightly")),
    Package("tflite-runtime", "tflite_runtime.interpreter", ("tflite-runtime", "tflite-runtime-nightly")),
    Package("tensorflow", "tensorflow.lite.python.interpreter", ("tensorflow", "tensorflow-cpu")),
)
"""In order of preference: the current package, the one that Termux has, the one that is large."""

_HOW_TO_INSTALL = (
    "no TFLite runtime is installed; run: pip install 'pocketserve[tflite]' "
    "(in Termux: pkg install python-tflite-runtime)"
)

_IDENTIFIER = b"TFL3"


@dataclass(frozen=True, slots=True)
class _Framework:
    """An imported package."""

    title: str
    module: Any

    def open(self, path: Path, threads: int, xnnpack: bool, delegate: Any = None) -> Any:
        """A fresh interpreter, not yet allocated. Given a path, it maps the weights and copies nothing."""
        resolvers = self.module.OpResolverType
        resolver = resolvers.AUTO if xnnpack else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        return self.module.Interpreter(
            model_path=str(path),
            num_threads=threads,
            experimental_op_resolver_type=resolver,
            experimental_delegates=None if delegate is None else [delegate],
        )


class _Opener:
    """Opens interpreters of one file, one at a time, each with a delegate of its own if there is to be one.

    Args:
        xnnpack: whether TFLite may use it.
        wanted: the delegate; None for the CPU alone.

    Attributes:
        device: what runs the last interpreter, as far as it is known.
    """

    def __init__(self, framework: _Framework, source: ModelSource, xnnpack: bool, wanted: DelegateRequest | None):
        self._framework = framework
        self._source = source
        self._identity = _identity(source.path)
        self._xnnpack = xnnpack
        self._alone = False  # whether the delegate goes without XNNPACK
        self._share: Share | None = None
        # An interpreter holds its delegate too, but lets go of it before its own end (see the module's text).
        self._delegate: Any = None
        self.wanted = wanted
        self.device = "cpu"

    def open(self, plain: bool = False) -> Any:
        """A fresh interpreter, not yet allocated; the one before is no longer in use.

        Args:
            plain: leave the delegate out.

        Raises:
            ModelLoadError: the file is another one by now.
            Exception: whatever the package or the delegate raises.
        """
        source, wanted = self._source, None if plain else self.wanted
        if _identity(source.path) != self._identity:
            raise ModelLoadError(f"{source.path.name} changed while it was loaded; load the model again")
        # The last delegate goes before the next comes: an accelerator may serve one at a time.
        self._delegate, self._share = None, None
        if plain:
            self._alone = False  # what was lost was not lost to XNNPACK
        self._delegate = None if wanted is None else wanted.load(self._framework.module)
        xnnpack = self._xnnpack and not self._alone
        interpreter = self._framework.open(source.path, source.threads, xnnpack, self._delegate)
        if wanted is not None:
            self._share = Share.of(wanted.name, interpreter)
        return interpreter

    def looked_at(self, interpreter: Any) -> bool:
        """Learn what runs an interpreter that was just allocated.

        Returns:
            False if the delegate was driven out, perhaps by XNNPACK. The delegate was asked for by name, so XNNPACK
            gives way: the interpreter is to be opened again, and says by an error if the delegate itself is at fault.
        """
        self.device = "cpu" if self._share is None else self._share.device(interpreter)
        if not self._xnnpack or self._alone or self._share is None:
            return True
        self._alone = self._share.is_lost(interpreter)
        return not self._alone

    def without_delegate(self) -> _Opener:
        """One for the CPU alone."""
        return _Opener(self._framework, self._source, self._xnnpack, None)

    def warn(self, fault: str) -> None:
        """Say that the delegate is not used."""
        if self.wanted is not None:
            _log.warning("%s runs without the delegate %s, which %s", self._source.path.name, self.wanted.name, fault)


class TfliteRuntime:
    """Opens ``.tflite`` files.

    Args:
        packages: the packages to try, in order.
    """

    platform = "tensorflow_lite"
    option_keys = frozenset({"xnnpack"}) | OPTION_KEYS

    def __init__(self, packages: Sequence[Package] = PACKAGES) -> None:
        self._packages = packages

    def open(self, source: ModelSource) -> TfliteSession:
        """Load a model.

        Raises:
            RuntimeMissingError: no package with an interpreter is installed, or none of them works.
            ModelLoadError: an option is wrong, the file is no TFLite model, is damaged, or needs what the package does
                not have, or a delegate that is required does not run.
        """
        xnnpack = source.options.get("xnnpack", True)
        if not isinstance(xnnpack, bool):
            raise ModelLoadError(f"the option xnnpack is true or false, not {xnnpack!r}")
        wanted = read_options(source)
        size = _checked_size(source.path)
        framework = _import_first(self._packages)
        opener = _Opener(framework, source, xnnpack, wanted)
        try:
            return _open_session(opener, framework.title, size)
        except ModelLoadError:
            raise
        except Exception as error:
            raise ModelLoadError(_explain(source.path.name, framework.title, str(error))) from error


def _open_session(opener: _Opener, title: str, size: int) -> TfliteSession:
    """A session with the delegate, else with the CPU alone.

    A model that is at fault itself fails on the CPU too, and that error is the one to report.
    """
    try:
        session = TfliteSession(opener, title, size)
    except Exception as error:
        if opener.wanted is None:
            raise
        fault = _fault(error)
        _let_go(error)
    else:
        return _checked_device(opener, session)
    session = TfliteSession(opener.without_delegate(), title, size)
    if opener.wanted.required:
        session.close()
        raise opener.wanted.refusal(fault)
    opener.warn(fault)
    return session


def _checked_device(opener: _Opener, session: TfliteSession) -> TfliteSession:
    """The session, if what runs it is what was asked for.

    Raises:
        ModelLoadError: the delegate is required, and leaves all to the CPU.
    """
    if opener.wanted is None or session.device != "cpu":
        return session
    fault = "takes nothing of this model's main graph"
    if opener.wanted.required:
        session.close()
        raise opener.wanted.refusal(fault)
    opener.warn(fault)
    return session


def _fault(error: Exception) -> str:
    """What a delegate did wrong, to go on from its name."""
    return str(error) if isinstance(error, DelegateError) else f"does not take this model ({one_line(error)})"


def _let_go(error: BaseException) -> None:
    """Clear the frames that an error holds, and with them the runners and interpreters in there."""
    # Not __context__: it may be an error that our caller is just handling.
    errors = [error]
    while (cause := errors[-1].__cause__) is not None and cause not in errors:
        errors.append(cause)
    for one in errors:
        traceback.clear_frames(one.__traceback__)


RUNTIME = TfliteRuntime()
"""The runtime of the kind ``tflite``."""


@dataclass(frozen=True, slots=True)
class _Port:
    """One input or output: its spec and the interpreter's number for it."""

    spec: TensorSpec
    index: int

    def prepare(self, array: Array) -> Array:
        """The array as the interpreter wants it: its dtype, row-major.

        ``ascontiguousarray`` would make shape () to shape (1,).
        """
        return np.asarray(array, dtype=DATATYPES[self.spec.datatype].typestr, order="C")


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry point; ``runner`` is the name of a signature that lies in another graph than the main one."""

    inputs: tuple[_Port, ...]
    outputs: tuple[_Port, ...]
    runner: str | None = None

    def signature(self) -> Signature:
        return Signature([port.spec for port in self.inputs], [port.spec for port in self.outputs])


class TfliteSession:
    """One interpreter with its model. Not thread-safe, but any thread may use it, one at a time.

    Args:
        opener: gives fresh interpreters of the same file; used again after a failed run.
        runtime: the framework with its version.
        file_bytes: size of the model file.

    Attributes:
        inputs, outputs: specs of the main graph. Their aliases are the names of its signature.
        signatures: specs by signature name.
        runtime: such as ``ai-edge-litert 2.3.0``.
        device: ``cpu``, or the name of the delegate's library, with ``cpu`` if it left something of the main graph:
            ``libdelegate.so, cpu``. XNNPACK, which TFLite uses by itself, is the CPU. It follows the last run, since a
            delegate may take some sizes of free dimensions and not others.
        memory_bytes: the file (its weights are mapped, so this is their upper bound) plus one copy of every
            input and output of the main graph, free dimensions counted as 1. Intermediate results are not in
            it: no package tells their size.

    Raises:
        ModelLoadError: a tensor has a type that the protocol cannot carry.
        Exception: whatever the interpreter raises for a file that it cannot load.
    """

    def __init__(self, opener: _Opener, runtime: str, file_bytes: int) -> None:
        self._opener: _Opener | None = opener
        self._shapes: list[tuple[int, ...]] | None = None
        # What the last run of the main graph was asked for, and found to fit: the next is mostly the same.
        self._fitted: tuple[_Entry, list[tuple[int, ...]]] | None = None
        self._bypassing = False
        self._warned = False
        self._interpreter: Any = _allocated(opener)
        self.device = opener.device
        self._main = _main_entry(self._interpreter)
        if any(port.spec.shape == () for port in self._main.outputs):
            self._probe_outputs()
        self._named = self._read_signatures()
        self.inputs: Sequence[TensorSpec] = [port.spec for port in self._main.inputs]
        self.outputs: Sequence[TensorSpec] = [port.spec for port in self._main.outputs]
        self.signatures: Mapping[str, Signature] = {name: e.signature() for name, e in self._named.items()}
        self.runtime = runtime
        self.memory_bytes = file_bytes + sum(_byte_size(spec) for spec in (*self.inputs, *self.outputs))

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """Compute the outputs of one request.

        Args:
            inputs: arrays by input name, of the specs' dtypes and shapes; strings are ``bytes`` in arrays of
                dtype object.
            signature: a name out of ``signatures``; None is the main graph.

        Returns:
            Arrays by output name, which own their memory.

        Raises:
            ValueError: no such signature, or the model cannot take these sizes of its free dimensions.
            RuntimeError: the run itself failed. The session works on.
        """
        entry = self._main if signature is None else self._entry(signature)
        arrays, shapes = [], []
        for port in entry.inputs:
            array = port.prepare(inputs[port.spec.name])
            arrays.append(array)
            shapes.append(array.shape)
        asked = entry, shapes
        fits = asked == self._fitted
        if not fits:
            _check_shapes(entry, arrays)
        try:
            if entry.runner is not None:
                return self._run_other(entry, arrays)
            if not fits:
                self._fit(entry, arrays)
                self._fitted = asked
            return self._run_main(entry, arrays)
        except Exception as error:
            _let_go(error)
            self._discard()
            raise

    def close(self) -> None:
        """Let go of the interpreter and the mapped file."""
        self._discard()
        self._opener = None

    def _entry(self, signature: str | None) -> _Entry:
        if signature is None:
            return self._main
        try:
            return self._named[signature]
        except KeyError:
            names = ", ".join(self._named) or "none"
            raise ValueError(f"the model has no signature {signature!r}; it has: {names}") from None

    def _ready(self) -> Any:
        """The interpreter, opened again if the last run failed: with the delegate, else without."""
        if self._interpreter is not None:
            return self._interpreter
        if self._opener is None:
            raise RuntimeError("the session is closed")
        try:
            self._interpreter = self._opener.open()
        except Exception as error:
            if not self._may_bypass():
                raise
            fault = self._bypass(error)
            self._warn(fault)
        return self._interpreter

    def _may_bypass(self) -> bool:
        wanted = self._opener.wanted if self._opener is not None else None
        return wanted is not None and not wanted.required and not self._bypassing

    def _bypass(self, error: Exception) -> str:
        """Open the model without its delegate, until other shapes come or a run fails; returns the delegate's fault."""
        fault = _fault(error)
        _let_go(error)
        self._discard()
        assert self._opener is not None
        self._interpreter = self._opener.open(plain=True)
        self._bypassing = True
        self.device = "cpu"
        return fault

    def _warn(self, fault: str) -> None:
        """Say that the delegate is passed by; once, since it may happen with every other request."""
        if not self._warned and self._opener is not None:
            self._opener.warn(fault)
        self._warned = True

    def _discard(self) -> None:
        """Throw the interpreter away (see the module's text for why it is not repaired)."""
        self._shapes = self._fitted = None
        self._interpreter = None
        self._bypassing = False

    def _run_main(self, entry: _Entry, arrays: Sequence[Array]) -> dict[str, Array]:
        interpreter = self._interpreter if self._interpreter is not None else self._ready()
        for port, array in zip(entry.inputs, arrays, strict=True):
            interpreter.set_tensor(port.index, array)
        interpreter.invoke()
        outputs = {}
        for port in entry.outputs:
            outputs[port.spec.name] = _copy_out(interpreter, port)
        return outputs

    def _fit(self, entry: _Entry, arrays: Sequence[Array]) -> None:
        """Give the inputs the arrays' shapes, if they have others now.

        Raises:
            ValueError: the model cannot take them.
        """
        wanted = {port.index: array.shape for port, array in zip(entry.inputs, arrays, strict=True)}
        shapes = [wanted[port.index] for port in self._main.inputs]
        if shapes == self._shapes:
            return
        if self._bypassing:
            # It was the last shapes that the delegate did not take.
            self._discard()
        self._ready()
        try:
            self._resize_or_bypass(shapes)
        except Exception as error:
            sizes = ", ".join(
                f"{port.spec.name!r}: {list(a.shape)}" for port, a in zip(entry.inputs, arrays, strict=True)
            )
            raise ValueError(f"the model cannot take inputs of these shapes{self._with_delegate()}: {sizes}") from error
        self._shapes = shapes

    def _resize_or_bypass(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize; where the delegate does not take these shapes, the CPU may."""
        try:
            self._resize(shapes)
        except Exception as error:
            if not self._may_bypass():
                raise
            fault = self._bypass(error)
            self._resize(shapes)
            self._warn(f"{fault} with inputs of some shapes, now {', '.join(map(str, map(list, shapes)))}")

    def _with_delegate(self) -> str:
        """Names the delegate where it may be the one to blame."""
        wanted = self._opener.wanted if self._opener is not None else None
        return f" with the delegate {wanted.name}" if wanted is not None and wanted.required else ""

    def _resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        interpreter = self._ready()
        for port, shape in zip(self._main.inputs, shapes, strict=True):
            if not shape and not port.spec.open and not port.spec.shape:
                continue  # a scalar stays one, and ai-edge-litert 2.3 for ARM crashes when it is told so
            # Strict forbids changing fixed dimensions; once written, all of a string tensor's seem fixed.
            strict = port.spec.datatype != "BYTES"
            interpreter.resize_tensor_input(port.index, shape, strict=strict)
        interpreter.allocate_tensors()
        assert self._opener is not None
        stays = self._opener.looked_at(interpreter)
        self.device = self._opener.device
        if not stays:
            del interpreter
            self._discard()
            self._resize(shapes)

    def _run_other(self, entry: _Entry, arrays: Sequence[Array]) -> dict[str, Array]:
        """Run a signature of another graph of the file; its runner resizes and allocates by itself."""
        runner = self._ready().get_signature_runner(entry.runner)
        feeds = {port.spec.name: array for port, array in zip(entry.inputs, arrays, strict=True)}
        results = runner(**feeds)
        return {port.spec.name: np.asarray(results[port.spec.name]) for port in entry.outputs}

    def _read_signatures(self) -> dict[str, _Entry]:
        """The named entry points; the main graph's specs get the names of its signature as aliases."""
        interpreter = self._ready()
        runners = {name: interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}
        entries = {name: _signature_entry(name, runner, self._main) for name, runner in runners.items()}
        default = next(iter(entries)) if len(entries) == 1 else "serving_default"
        if default in entries and entries[default].runner is None:
            self._main = _with_aliases(self._main, entries[default])
        return entries

    def _probe_outputs(self) -> None:
        """Learn the shapes of outputs whose rank the file does not tell, from one run on zeros.

        What cannot be learned stays as declared: real scalars, and all of a model that cannot take zeros.
        """
        zeros = [_zeros(port.spec) for port in self._main.inputs]
        free = any(-1 in port.spec.shape for port in self._main.inputs)
        try:
            self._fit(self._main, zeros)
            seen = self._run_main(self._main, zeros)
        except Exception:
            return
        finally:
            # The run left its mark on string tensors and on a model's variables.
            self._discard()
        outputs = (_with_shape(port, seen[port.spec.name].shape, free) for port in self._main.outputs)
        self._main = replace(self._main, outputs=tuple(outputs))


def _checked_size(path: Path) -> int:
    """Bytes of a file that is a whole TFLite model.

    Raises:
        ModelLoadError: it is not, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head, size = file.read(8), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error.strerror or error}") from error
    if size < 8 or head[4:8] != _IDENTIFIER:
        raise ModelLoadError(
            f"{path.name} is no TFLite model (bytes 4 to 7 are not TFL3); copy or convert the file again"
        )
    try:
        check_model(path)
    except DamagedFileError as error:
        raise ModelLoadError(f"{path.name} is damaged or cut short ({error}); copy the file again") from error
    return size


def _identity(path: Path) -> tuple[int, ...]:
    """Changes when the file is written or replaced."""
    stat = path.stat()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _import_first(packages: Sequence[Package]) -> _Framework:
    """The first package that imports.

    Raises:
        RuntimeMissingError: none does.
    """
    broken = []
    for package in packages:
        try:
            module = importlib.import_module(package.module)
        except ModuleNotFoundError as error:
            # A missing module deeper down means: installed, but not complete.
            if not _is_absent(package, error):
                broken.append(f"{package.title} is installed but does not load ({_first_line(error)})")
        except Exception as error:  # a native library that does not fit raises OSError, among others
            broken.append(f"{package.title} is installed but does not load ({_first_line(error)})")
        else:
            return _Framework(_titled(package), module)
    raise RuntimeMissingError("; ".join([_HOW_TO_INSTALL, *broken]))


def _is_absent(package: Package, error: ModuleNotFoundError) -> bool:
    return error.name is not None and f"{package.module}.".startswith(f"{error.name}.")


def _titled(package: Package) -> str:
    """The package's name with its version, where the package or its installation tells it."""
    told = getattr(sys.modules[package.module.partition(".")[0]], "__version__", None)
    if isinstance(told, str):
        return f"{package.title} {told}"
    from importlib import metadata  # late: it needs the email package, a tenth of a cold start

    for distribution in package.distributions:
        try:
            return f"{package.title} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return package.title


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


_SELECT_OP = re.compile(r"Select TensorFlow op|\bFlex[A-Z]")
_CUSTOM_OP = re.compile(r"unresolved custom op: ?([\w:.-]*\w)?")
_NEW_OP = re.compile(r"Didn't find op for builtin opcode '(\w+)'(?: version '(\d+)')?")
_ODD_TYPE = re.compile(r"expected type (\w+)|[Uu]nsupported data type (\d+)|Invalid data-type")
_FLEX_NAME = re.compile(r"\((Flex\w+)\)")


def _is_hopeless(text: str) -> bool:
    """Whether an interpreter's error says that it lacks an operator or type, as opposed to not liking a size."""
    return any(pattern.search(text) for pattern in (_SELECT_OP, _CUSTOM_OP, _NEW_OP, _ODD_TYPE))


def _explain(name: str, framework: str, text: str) -> str:
    """One sentence for people out of an interpreter's error text."""
    if _SELECT_OP.search(text):
        flex = _FLEX_NAME.search(text)
        return (
            f"{name} uses TensorFlow operators{_named(flex and flex[1])}, which {framework} does not have; "
            "convert the model with TFLite's built-in operators only"
        )
    if custom := _CUSTOM_OP.search(text):
        return (
            f"{name} uses a custom operator{_named(custom[1])}, which {framework} does not have; "
            "convert the model without it"
        )
    if new := _NEW_OP.search(text):
        return (
            f"{name} needs the operator {new[1]}{_named(new[2] and 'version ' + new[2])}, which {framework} "
            "does not have; install a newer TFLite runtime or convert the model with an older TensorFlow"
        )
    if odd := _ODD_TYPE.search(text):
        return (
            f"{name} has a tensor of a type{_named(odd[1] or odd[2])} that {framework} cannot exchange; "
            "convert the model with inputs and outputs of another type"
        )
    reason = " ".join(text.split())[:200].rstrip(". ") or "no reason given"
    return f"{framework} cannot load {name}, which may be damaged ({reason}); copy or convert the file again"


def _named(what: str | None) -> str:
    return f" ({what})" if what else ""


def _allocated(opener: _Opener) -> Any:
    """An interpreter that was seen to allocate and to take zeros.

    That is where missing operators show, inputs of types that pass for strings but are none, and what a delegate takes.
    """
    interpreter: Any = opener.open()
    inputs = _ports(interpreter.get_input_details(), "input")
    try:
        interpreter.allocate_tensors()
        if not opener.looked_at(interpreter):
            interpreter = None
            interpreter = opener.open()
            interpreter.allocate_tensors()
            opener.looked_at(interpreter)
        for port in inputs:
            interpreter.set_tensor(port.index, _zeros(port.spec))
    except Exception as error:
        free = any(-1 in port.spec.shape for port in inputs)
        if not free or opener.wanted is not None or _is_hopeless(str(error)):
            raise
        # It only dislikes size 1 for its free dimensions; a request will bring better ones.
        return opener.open()
    if any(port.spec.datatype == "BYTES" for port in inputs):
        # A written string tensor no longer tells its free dimensions.
        interpreter = None
        return opener.open()
    return interpreter


def _main_entry(interpreter: Any) -> _Entry:
    return _Entry(_ports(interpreter.get_input_details(), "input"), _ports(interpreter.get_output_details(), "output"))


def _ports(many: Iterable[Details], role: str) -> tuple[_Port, ...]:
    """Ports in the model's order under the file's tensor names; repeated names get :1, :2 and so on."""
    taken: set[str] = set()
    ports = []
    for position, details in enumerate(many):
        name = _unique(str(details["name"]) or f"{role}_{position}", taken)
        taken.add(name)
        ports.append(_Port(_spec(name, details), int(details["index"])))
    return tuple(ports)


def _unique(name: str, taken: set[str]) -> str:
    candidates = (f"{name}:{number}" for number in itertools.count(1))
    return name if name not in taken else next(other for other in candidates if other not in taken)


def _signature_entry(name: str, runner: Any, main: _Entry) -> _Entry:
    """A signature's tensors under the signature's own names.

    A signature that is the main graph under other names runs as the main graph does: the runner would resize
    and allocate for each request, and cannot return an empty tensor. Which graph a runner is of, the packages
    keep in a private attribute; without it the runner is used.
    """
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    entry = _Entry(_named_ports(inputs), _named_ports(outputs), name)
    same = {port.index for port in entry.inputs} == {port.index for port in main.inputs}
    if getattr(runner, "_subgraph_index", None) != 0 or not same:
        return entry
    shapes = {port.index: port.spec.shape for port in main.outputs}
    outputs = (_reshaped(port, shapes.get(port.index, port.spec.shape)) for port in entry.outputs)
    return _Entry(entry.inputs, tuple(outputs))


def _named_ports(details: Mapping[str, Details]) -> tuple[_Port, ...]:
    return tuple(_Port(_spec(name, one), int(one["index"])) for name, one in details.items())


def _with_aliases(main: _Entry, signature: _Entry) -> _Entry:
    """The main graph, its tensors also known by the names that a signature gives them."""

    def named(ports: Iterable[_Port], others: Iterable[_Port]) -> tuple[_Port, ...]:
        names = [(other.index, other.spec.name) for other in others]
        return tuple(_aliased(port, [name for index, name in names if index == port.index]) for port in ports)

    return _Entry(named(main.inputs, signature.inputs), named(main.outputs, signature.outputs))


def _aliased(port: _Port, names: Iterable[str]) -> _Port:
    aliases = tuple(name for name in names if name != port.spec.name)
    return replace(port, spec=replace(port.spec, aliases=aliases))


def _spec(name: str, details: Details) -> TensorSpec:
    """The spec of one tensor.

    Raises:
        ModelLoadError: the protocol has no such type.
    """
    try:
        datatype = datatype_of(details["dtype"])
    except (ValueError, TypeError) as error:
        kind = getattr(details["dtype"], "__name__", details["dtype"])
        raise ModelLoadError(
            f"tensor {name!r} has type {kind}, which cannot be served; convert the model with another type"
        ) from error
    return TensorSpec(name, datatype, _declared_shape(details), _quantization(datatype, details))


def _declared_shape(details: Details) -> tuple[int, ...]:
    """The shape with -1 for free dimensions, which only ``shape_signature`` shows."""
    signature = tuple(int(size) for size in details.get("shape_signature", ()))
    return signature or tuple(int(size) for size in details["shape"])


def _quantization(datatype: str, details: Details) -> Quantization | None:
    """Per-tensor quantisation of activations. Per-channel tensors have (0.0, 0) here, as floats do.

    Wider integers may carry a scale too, but are counts and indices far more often than numbers to convert.
    """
    scale, zero_point = details.get("quantization", (0.0, 0))
    if datatype not in ("INT8", "UINT8", "INT16") or scale == 0:
        return None
    return Quantization(float(scale), int(zero_point))


def _with_shape(port: _Port, seen: tuple[int, ...], free: bool) -> _Port:
    """A port of undeclared rank with the shape that a run on zeros gave.

    A size of 0 follows from the values; where inputs have free dimensions, which were 1, so may a size of 1.
    """
    unsure = (0, 1) if free else (0,)
    return port if port.spec.shape else _reshaped(port, tuple(-1 if size in unsure else size for size in seen))


def _reshaped(port: _Port, shape: tuple[int, ...]) -> _Port:
    return replace(port, spec=replace(port.spec, shape=shape))


def _fixed(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(1 if size == -1 else size for size in spec.shape)


def _zeros(spec: TensorSpec) -> Array:
    fill = b"" if spec.datatype == "BYTES" else 0
    return np.full(_fixed(spec), fill, dtype=DATATYPES[spec.datatype].typestr)


def _byte_size(spec: TensorSpec) -> int:
    return math.prod(_fixed(spec)) * DATATYPES[spec.datatype].itemsize


def _check_shapes(entry: _Entry, arrays: Sequence[Array]) -> None:
    """Refuse what would spoil the interpreter; its own checks differ between packages.

    Raises:
        ValueError: a shape does not fit its spec.
    """
    for port, array in zip(entry.inputs, arrays, strict=True):
        if not port.spec.accepts(array.shape):
            raise ValueError(
                f"input {port.spec.name!r} has shape {list(array.shape)}, expected {list(port.spec.shape)}"
            )


def _copy_out(interpreter: Any, port: _Port) -> Array:
    """An output as an array of its own: of shape () too, and empty."""
    try:
        return np.asarray(interpreter.get_tensor(port.index))
    except ValueError:
        shape = _current_shape(interpreter, port.index)
        if 0 not in shape:
            raise
        return np.empty(shape, dtype=DATATYPES[port.spec.datatype].typestr)


def _current_shape(interpreter: Any, index: int) -> tuple[int, ...]:
    found = (d["shape"] for d in interpreter.get_output_details() if d["index"] == index)
    return tuple(int(size) for size in next(found, ()))
