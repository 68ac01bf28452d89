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

Beside it: ``tflite_open`` gives interpreters, ``tflite_ports`` tells what goes in and out, ``tflite_errors`` what their
errors mean, and ``tflite_delegates`` has the external delegates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.tensors import Array, TensorSpec

from .delegates import OPTION_KEYS, read_options
from .errors import delegate_fault, explained, let_go
from .open import PACKAGES, Opener, Package, allocated, checked, import_first
from .ports import (
    Entry,
    TensorSignature,
    are_ready,
    byte_size,
    check_shapes,
    copy_out,
    main_entry,
    signature_entry,
    with_aliases,
    with_shape,
    zeros_for,
)

_DEFAULT_SIGNATURE = "serving_default"


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
        size, stateful = checked(source.path)
        framework = import_first(self._packages)
        opener = Opener(framework, source, xnnpack, wanted)
        try:
            return _open_session(StatefulSession if stateful else TfliteSession, opener, framework.title, size)
        except ModelLoadError:
            raise
        except Exception as error:
            raise ModelLoadError(explained(source.path.name, framework.title, str(error))) from error


def _open_session(kind: type[TfliteSession], opener: Opener, title: str, size: int) -> TfliteSession:
    """A session with the delegate, else with the CPU alone.

    A model that is at fault itself fails on the CPU too, and that error is the one to report.
    """
    try:
        session = kind(opener, title, size)
    except Exception as error:
        if opener.wanted is None:
            raise
        fault = delegate_fault(error)
        let_go(error)
    else:
        return _checked_device(opener, session)
    session = kind(opener.without_delegate(), title, size)
    if opener.wanted.required:
        session.close()
        raise opener.wanted.refusal(fault)
    opener.warn(fault)
    return session


def _checked_device(opener: Opener, session: TfliteSession) -> TfliteSession:
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


class TfliteSession:
    """One interpreter with its model. Not thread-safe, but any thread may use it, one at a time.

    Args:
        opener: gives fresh interpreters of the same file; used again after a failed run.
        runtime: the framework with its version.
        file_bytes: size of the model file.

    Attributes:
        inputs, outputs: specs of the main graph, their aliases being the names of its signature; or of the signature
            ``serving_default``, where that is another graph of the file.
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

    def __init__(self, opener: Opener, runtime: str, file_bytes: int) -> None:
        self._opener: Opener | None = opener
        self._shapes: list[tuple[int, ...]] | None = None
        # What the last run of the main graph was asked for, and found to fit as it was: the next is mostly the same.
        self._fitted: tuple[Entry, list[TensorSignature]] | None = None
        self._bypassing = False
        self._warned = False
        self._interpreter: Any = allocated(opener)
        self.device = opener.device
        self._main = main_entry(self._interpreter)
        if any(port.spec.shape == () for port in self._main.outputs):
            self._probe_outputs()
        self._named = self._read_signatures()
        other = self._named.get(_DEFAULT_SIGNATURE)
        self._default = other if other is not None and other.runner is not None else self._main
        self.inputs: Sequence[TensorSpec] = [port.spec for port in self._default.inputs]
        self.outputs: Sequence[TensorSpec] = [port.spec for port in self._default.outputs]
        self.signatures: Mapping[str, Signature] = {name: e.signature() for name, e in self._named.items()}
        self.runtime = runtime
        self.memory_bytes = file_bytes + sum(byte_size(spec) for spec in (*self.inputs, *self.outputs))

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """Compute the outputs of one request.

        Args:
            inputs: arrays by input name, of the specs' dtypes and shapes; strings are ``bytes`` in arrays of
                dtype object.
            signature: a name out of ``signatures``; None is what ``inputs`` and ``outputs`` tell of.

        Returns:
            Arrays by output name, which own their memory.

        Raises:
            ValueError: no such signature, or the model cannot take these sizes of its free dimensions.
            RuntimeError: the run itself failed. The session works on.
        """
        entry = self._default if signature is None else self._entry(signature)
        looks = []
        for port in entry.inputs:
            array = inputs[port.spec.name]
            looks.append((array.shape, array.dtype, array.flags.c_contiguous))
        asked = entry, looks
        fits = asked == self._fitted
        if not fits:
            inputs = {port.spec.name: port.prepare(inputs[port.spec.name]) for port in entry.inputs}
            check_shapes(entry, inputs)
        try:
            if entry.runner is not None:
                return self._run_other(entry, inputs)
            if not fits:
                self._fit(entry, inputs)
                self._fitted = asked if are_ready(entry, looks) else None
            return self._run_main(entry, inputs)
        except Exception as error:
            let_go(error)
            self._discard()
            raise

    def close(self) -> None:
        """Let go of the interpreter and the mapped file."""
        self._discard()
        self._opener = None

    def _entry(self, signature: str) -> Entry:
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
        fault = delegate_fault(error)
        let_go(error)
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

    def _run_main(self, entry: Entry, arrays: Mapping[str, Array]) -> dict[str, Array]:
        interpreter = self._interpreter if self._interpreter is not None else self._ready()
        for port in entry.inputs:
            interpreter.set_tensor(port.number, arrays[port.spec.name])
        interpreter.invoke()
        outputs = {}
        for port in entry.outputs:
            outputs[port.spec.name] = copy_out(interpreter, port)
        return outputs

    def _fit(self, entry: Entry, arrays: Mapping[str, Array]) -> None:
        """Give the inputs the arrays' shapes, if they have others now.

        Raises:
            ValueError: the model cannot take them.
        """
        wanted = {port.number: arrays[port.spec.name].shape for port in entry.inputs}
        shapes = [wanted[port.number] for port in self._main.inputs]
        if shapes == self._shapes:
            return
        if self._bypassing:
            # It was the last shapes that the delegate did not take.
            self._discard()
        self._ready()
        try:
            self._resize_or_bypass(shapes)
        except Exception as error:
            names = [port.spec.name for port in entry.inputs]
            sizes = ", ".join(f"{name!r}: {list(arrays[name].shape)}" for name in names)
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
            interpreter.resize_tensor_input(port.number, shape, strict=strict)
        interpreter.allocate_tensors()
        assert self._opener is not None
        stays = self._opener.looked_at(interpreter)
        self.device = self._opener.device
        if not stays:
            del interpreter
            self._discard()
            self._resize(shapes)

    def _run_other(self, entry: Entry, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run a signature of another graph of the file; its runner resizes and allocates by itself."""
        runner = self._ready().get_signature_runner(entry.runner)
        results = runner(**arrays)
        return {port.spec.name: np.asarray(results[port.spec.name]) for port in entry.outputs}

    def _read_signatures(self) -> dict[str, Entry]:
        """The named entry points; the main graph's specs get the names of its signature as aliases."""
        interpreter = self._ready()
        runners = {name: interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}
        entries = {name: signature_entry(name, runner, self._main) for name, runner in runners.items()}
        default = next(iter(entries)) if len(entries) == 1 else _DEFAULT_SIGNATURE
        if default in entries and entries[default].runner is None:
            self._main = with_aliases(self._main, entries[default])
        return entries

    def _probe_outputs(self) -> None:
        """Learn the shapes of outputs whose rank the file does not tell, from one run on zeros.

        What cannot be learned stays as declared: real scalars, and all of a model that cannot take zeros.
        """
        zeros = {port.spec.name: zeros_for(port.spec) for port in self._main.inputs}
        free = any(-1 in port.spec.shape for port in self._main.inputs)
        try:
            self._fit(self._main, zeros)
            seen = self._run_main(self._main, zeros)
        except Exception:
            return
        finally:
            # The run left its mark on string tensors and on a model's variables.
            self._discard()
        outputs = (with_shape(port, seen[port.spec.name].shape, free) for port in self._main.outputs)
        self._main = self._main._replace(outputs=tuple(outputs))


RUNTIME = TfliteRuntime()
"""The runtime of the kind ``tflite``."""


class StatefulSession(TfliteSession):
    """One interpreter with a model that keeps state from run to run: a recurrent layer's, or a variable."""

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`.

        A model that has several signatures says itself what becomes of its state, as those do that are trained on the
        device: it keeps it.
        """
        # The packages can reset tensors but not variables; a new interpreter has neither.
        if len(self._named) < 2:
            self._discard()
