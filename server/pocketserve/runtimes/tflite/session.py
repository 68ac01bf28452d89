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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelSource, Signature
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.probe import run_on_zeros
from pocketserve.tensors import Array, TensorSpec, byte_size

from . import tensors
from .check import check_file
from .delegates import OPTION_KEYS, delegate_request
from .errors import clear_frames, delegate_fault, explain_tflite_error
from .interpreters import PACKAGES, InterpreterOpener, TflitePackage, import_first


class TfliteRuntime:
    """Opens ``.tflite`` files with the first of some packages that imports."""

    platform = "tensorflow_lite"
    option_keys = frozenset({"xnnpack"}) | OPTION_KEYS

    def __init__(self, packages: Sequence[TflitePackage] = PACKAGES) -> None:
        self._packages = packages

    def open(self, source: ModelSource) -> TfliteSession:
        xnnpack, delegate = (
            source.flag("xnnpack", default=True),
            delegate_request(source),
        )
        size, stateful = check_file(source.path)
        title, module = import_first(self._packages)
        opener = InterpreterOpener(module, source, xnnpack, delegate)
        with load_errors(
            lambda error: explain_tflite_error(source.path.name, title, str(error))
        ):
            return _open_session(
                StatefulTfliteSession if stateful else TfliteSession,
                opener,
                title,
                size,
            )


def _open_session(
    kind: type[TfliteSession], opener: InterpreterOpener, title: str, size: int
) -> TfliteSession:
    """Return a session with the delegate, else with the CPU alone.

    A model that is at fault itself fails on the CPU too, and that error is the one to report.
    """
    delegate = opener.delegate
    try:
        session = kind(opener, title, size)
        fault = "takes nothing of this model's main graph"
        if delegate is None or session.device != "cpu":
            return session
    except Exception as error:
        if delegate is None:
            raise
        fault = delegate_fault(error)
        clear_frames(error)
        session = None
    session = session or kind(opener.without_delegate(), title, size)
    if delegate.required:
        session.close()
        raise delegate.refusal(fault)
    opener.warn(fault)
    return session


class TfliteSession:
    """An interpreter with its model. Not thread-safe, but any thread may use it, one at a time.

    Attributes:
        inputs, outputs: specs of the main graph, their aliases being the names of its signature; or of the signature
            ``serving_default``, where that is another graph of the file.
        device: ``cpu``, or the delegate's library, with ``cpu`` if it left something of the main graph:
            ``libdelegate.so, cpu``. XNNPACK, which TFLite uses by itself, is the CPU. It follows the last run, since a
            delegate may take some sizes of free dimensions and not others.
        memory_bytes: the file (its weights are mapped, so this is their upper bound) and one copy of every input and
            output, free dimensions counted as 1. Intermediate results are not in it: no package tells their size.
    """

    def __init__(
        self, opener: InterpreterOpener, runtime: str, file_bytes: int
    ) -> None:
        self._opener: InterpreterOpener | None = opener
        self._shapes: list[tuple[int, ...]] | None = None
        # The arrays that the last run of the main graph took as they were: the next are mostly the same.
        self._fitted: (
            tuple[tensors.GraphEntry, list[tensors.TensorSignature]] | None
        ) = None
        self._bypassing = False
        self._interpreter: Any = opener.open_allocated()
        self.device = opener.device
        self._main = self._default = tensors.main_entry(self._interpreter)
        if any(spec.shape == () for spec, _ in self._main.outputs):
            self._learn_outputs()
        self._entries = self._read_signatures()
        default = self._entries.get("serving_default", self._main)
        self._default = default if default.runner is not None else self._main
        self.inputs: Sequence[TensorSpec] = [spec for spec, _ in self._default.inputs]
        self.outputs: Sequence[TensorSpec] = [spec for spec, _ in self._default.outputs]
        self.signatures: Mapping[str, Signature] = {
            name: Signature(
                [spec for spec, _ in entry.inputs], [spec for spec, _ in entry.outputs]
            )
            for name, entry in self._entries.items()
        }
        self.runtime = runtime
        self.memory_bytes = file_bytes + sum(
            byte_size(spec) for spec in (*self.inputs, *self.outputs)
        )

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run; strings are ``bytes`` in arrays of dtype object. A session whose run failed works on."""
        entry = self._default if signature is None else self._entries[signature]
        arrays: list[tensors.TensorSignature] = []
        tensor_inputs, _, runner = (
            entry  # not by name: that costs a tuple a lookup each
        )
        for spec, _ in tensor_inputs:
            array = inputs[spec.name]
            arrays.append((array.shape, array.dtype, array.flags.c_contiguous))
        current = entry, arrays
        fits = current == self._fitted
        if not fits:
            inputs = {
                tensor.spec.name: tensor.prepare(inputs[tensor.spec.name])
                for tensor in entry.inputs
            }
            entry.check_shapes(inputs)
        try:
            if runner is not None:
                return self._run_other(entry, inputs)
            if not fits:
                self._fit(entry, inputs)
                self._fitted = current if entry.takes(arrays) else None
            return self._run_main(entry, inputs)
        except Exception as error:
            clear_frames(error)
            self._discard()
            raise

    def close(self) -> None:
        self._discard()
        self._opener = None

    def _ready(self) -> Any:
        """Return the interpreter, opened again if the last run failed: with the delegate, else without."""
        if self._interpreter is not None:
            return self._interpreter
        if self._opener is None:
            raise RuntimeError("the session is closed")
        try:
            self._interpreter = self._opener.open()
        except Exception as error:
            self._opener.warn(self._bypass(error))
        return self._interpreter

    def _bypass(self, error: Exception) -> str:
        """Open the model without its delegate, until other shapes come or a run fails; return the delegate's fault."""
        assert self._opener is not None
        delegate = self._opener.delegate
        if delegate is None or delegate.required or self._bypassing:
            raise error
        fault = delegate_fault(error)
        clear_frames(error)
        self._discard()
        self._interpreter = self._opener.open(use_delegate=False)
        self._bypassing = True
        self.device = "cpu"
        return fault

    def _discard(self) -> None:
        """Throw the interpreter away (see the module's text for why it is not repaired)."""
        self._shapes = self._fitted = None
        self._interpreter = None
        self._bypassing = False

    def _run_main(
        self, entry: tensors.GraphEntry, arrays: Mapping[str, Array]
    ) -> dict[str, Array]:
        interpreter = (
            self._interpreter if self._interpreter is not None else self._ready()
        )
        inputs, outputs, _ = entry
        for spec, number in inputs:
            interpreter.set_tensor(number, arrays[spec.name])
        interpreter.invoke()
        results = {}
        for spec, number in outputs:  # a comprehension would be one more call
            results[spec.name] = tensors.copy_out(interpreter, spec, number)
        return results

    def _fit(self, entry: tensors.GraphEntry, arrays: Mapping[str, Array]) -> None:
        """Give the inputs the arrays' shapes, if they have others now."""
        by_number = {number: arrays[spec.name].shape for spec, number in entry.inputs}
        shapes = [by_number[number] for _, number in self._main.inputs]
        if shapes == self._shapes:
            return
        if self._bypassing:
            self._discard()  # it was the last shapes that the delegate did not take
        self._ready()
        assert self._opener is not None
        try:
            try:
                self._resize(shapes)
            except Exception as error:
                fault = self._bypass(error)
                self._resize(shapes)
                now = ", ".join(map(str, map(list, shapes)))
                self._opener.warn(f"{fault} with inputs of some shapes, now {now}")
        except Exception as error:
            delegate = self._opener.delegate
            culprit = (
                f" with the delegate {delegate.name}"
                if delegate is not None and delegate.required
                else ""
            )
            sizes = ", ".join(
                f"{spec.name!r}: {list(arrays[spec.name].shape)}"
                for spec, _ in entry.inputs
            )
            raise ValueError(
                f"the model cannot take inputs of these shapes{culprit}: {sizes}"
            ) from error
        self._shapes = shapes

    def _resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        interpreter = self._ready()
        for (spec, number), shape in zip(self._main.inputs, shapes, strict=True):
            if not shape and not spec.open and not spec.shape:
                continue  # a scalar stays one, and ai-edge-litert 2.3 for ARM crashes when it is told so
            # Strict forbids changing fixed dimensions; once written, all of a string tensor's seem fixed.
            interpreter.resize_tensor_input(
                number, shape, strict=spec.datatype != "BYTES"
            )
        interpreter.allocate_tensors()
        assert self._opener is not None
        confirmed = self._opener.confirm_device(interpreter)
        self.device = self._opener.device
        if not confirmed:
            del interpreter
            self._discard()
            self._resize(shapes)

    def _run_other(
        self, entry: tensors.GraphEntry, arrays: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run a signature of another graph of the file; its runner resizes and allocates by itself."""
        results = self._ready().get_signature_runner(entry.runner)(**arrays)
        return {spec.name: np.asarray(results[spec.name]) for spec, _ in entry.outputs}

    def _read_signatures(self) -> dict[str, tensors.GraphEntry]:
        """Return the named entry points; the main graph's specs get the names of its signature as aliases."""
        interpreter = self._ready()
        runners = {
            name: interpreter.get_signature_runner(name)
            for name in interpreter.get_signature_list()
        }
        entries = {
            name: tensors.signature_entry(name, runner, self._main)
            for name, runner in runners.items()
        }
        default = next(iter(entries)) if len(entries) == 1 else "serving_default"
        if default in entries and entries[default].runner is None:
            self._main = tensors.with_aliases(self._main, entries[default])
        return entries

    def _learn_outputs(self) -> None:
        """Learn the shapes of outputs whose rank the file does not tell; some of them are scalars."""
        probe = run_on_zeros(self.run, [spec for spec, _ in self._main.inputs])
        self._discard()  # the runs left their mark on string tensors and on a model's variables
        if probe is not None:
            outputs = (
                tensor
                if tensor.spec.shape
                else tensor._replace(spec=probe.learned(tensor.spec))
                for tensor in self._main.outputs
            )
            self._main = self._default = self._main._replace(outputs=tuple(outputs))


RUNTIME = TfliteRuntime()


class StatefulTfliteSession(TfliteSession):
    """An interpreter with a model that keeps state from run to run: a recurrent layer's, or a variable."""

    def reset(self) -> None:
        """Forget; but a model with several signatures decides itself what becomes of its state, and keeps it."""
        # The packages can reset tensors but not variables; a new interpreter has neither.
        if len(self._entries) < 2:
            self._discard()
