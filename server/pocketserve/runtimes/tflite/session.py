"""Run ``.tflite`` files with any of the TFLite packages.

Three packages have the same Python interface: ``ai_edge_litert`` (desktops and
servers), ``tflite_runtime`` (Termux) and TensorFlow itself. Nothing is imported before
a model is opened.

Observed behaviour that shapes this module:

* After a failed ``allocate_tensors`` the older package crashes the process on the next
  call, and error texts accumulate in the interpreter. A failed interpreter is therefore
  discarded and opened again.
* While a signature's runner exists, its interpreter rejects runs of the main graph.
  Runners are not kept.
* A free dimension appears as 1 until it is resized. Some models cannot be allocated at
  that size.
* A string tensor loses its free dimensions when it is written.
* ``get_tensor`` returns a NumPy scalar for shape () and fails on some empty tensors.
* A signature's runner keeps the native interpreter alive. If it is freed last, the
  delegates are freed first and the native interpreter accesses freed memory. The frames
  of an error that refer to a runner are therefore cleared first.
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
    """Opens ``.tflite`` files with the first package that works."""

    platform = "tensorflow_lite"
    option_keys = frozenset({"xnnpack"}) | OPTION_KEYS

    def __init__(self, packages: Sequence[TflitePackage] = PACKAGES) -> None:
        self._packages = packages

    def open(self, source: ModelSource) -> TfliteSession:
        xnnpack = source.flag("xnnpack", default=True)
        delegate = delegate_request(source)
        size, is_stateful = check_file(source.path)
        kind = TfliteSession
        if is_stateful:
            kind = StatefulTfliteSession
        title, module = import_first(self._packages)
        opener = InterpreterOpener(module, source, xnnpack, delegate)
        with load_errors(
            lambda error: explain_tflite_error(source.path.name, title, str(error))
        ):
            return _open_session(kind, opener, title, size)


def _open_session(
    kind: type[TfliteSession], opener: InterpreterOpener, title: str, size: int
) -> TfliteSession:
    """Return a session with the delegate, or else on the CPU.

    A faulty model also fails on the CPU; that error is reported.
    """
    delegate = opener.delegate
    try:
        session = kind(opener, title, size)
        fault = "runs no part of this model's main graph"
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
    """A loaded TFLite model; any thread may use it, one at a time.

    Attributes:
        inputs, outputs: specs of the main graph, with the names of its signature as
            aliases; or of the signature ``serving_default`` if that is another graph.
        device: ``cpu``, a delegate's library, or both (``libdelegate.so, cpu``) if the
            delegate runs only a part of the main graph. XNNPACK counts as the CPU. It is
            updated by each run, as a delegate may reject some sizes.
        memory_bytes: the file, as an upper bound of its mapped weights, and one copy of
            each input and output with free dimensions of 1. No package reports the size
            of intermediate results.
    """

    def __init__(
        self, opener: InterpreterOpener, runtime: str, file_bytes: int
    ) -> None:
        self._opener: InterpreterOpener | None = opener
        self._shapes: list[tuple[int, ...]] | None = None
        # Signatures of the arrays that the last run used unchanged. Most runs have the
        # same ones.
        self._fitted: (
            tuple[tensors.GraphEntry, list[tensors.TensorSignature]] | None
        ) = None
        self._bypassing = False
        self._interpreter: Any = opener.open_allocated()
        self.device = opener.device
        self._main = tensors.main_entry(self._interpreter)
        self._default = self._main
        if any(spec.shape == () for spec, _ in self._main.outputs):
            self._learn_outputs()
        self._entries = self._read_signatures()
        default = self._entries.get("serving_default", self._main)
        if default.runner is None:
            default = self._main
        self._default = default
        specs = default.signature()
        self.inputs: Sequence[TensorSpec] = specs.inputs
        self.outputs: Sequence[TensorSpec] = specs.outputs
        self.signatures: Mapping[str, Signature] = self._signatures()
        self.runtime = runtime
        tensor_bytes = sum(map(byte_size, (*self.inputs, *self.outputs)))
        self.memory_bytes = file_bytes + tensor_bytes

    def _signatures(self) -> dict[str, Signature]:
        """Return the specs of each signature."""
        return {name: entry.signature() for name, entry in self._entries.items()}

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the model; strings are ``bytes`` in arrays of dtype object.

        The session remains usable after a failed run.
        """
        entry = self._default if signature is None else self._entries[signature]
        arrays: list[tensors.TensorSignature] = []
        # Unpacked, as access by name is slower.
        tensor_inputs, _, runner = entry
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
        """Return the interpreter; reopen it if the last run failed."""
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
        """Open the model without its delegate and return the delegate's fault.

        The delegate is tried again when shapes change or a run fails.
        """
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
        """Discard the interpreter; the module's docstring says why."""
        self._shapes = None
        self._fitted = None
        self._interpreter = None
        self._bypassing = False

    def _run_main(
        self, entry: tensors.GraphEntry, arrays: Mapping[str, Array]
    ) -> dict[str, Array]:
        interpreter = self._interpreter
        if interpreter is None:
            interpreter = self._ready()
        inputs, outputs, _ = entry
        for spec, number in inputs:
            interpreter.set_tensor(number, arrays[spec.name])
        interpreter.invoke()
        results = {}
        for spec, number in outputs:
            results[spec.name] = tensors.copy_out(interpreter, spec, number)
        return results

    def _fit(self, entry: tensors.GraphEntry, arrays: Mapping[str, Array]) -> None:
        """Resize the inputs if the arrays' shapes differ."""
        by_number = {number: arrays[spec.name].shape for spec, number in entry.inputs}
        shapes = [by_number[number] for _, number in self._main.inputs]
        if shapes == self._shapes:
            return
        if self._bypassing:
            self._discard()  # the delegate may accept the new shapes
        self._ready()
        assert self._opener is not None
        try:
            self._resize_or_bypass(shapes)
        except Exception as error:
            raise _shapes_error(self._opener, entry, arrays) from error
        self._shapes = shapes

    def _resize_or_bypass(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize the inputs; without the delegate if it rejects the shapes."""
        assert self._opener is not None
        try:
            self._resize(shapes)
        except Exception as error:
            fault = self._bypass(error)
            self._resize(shapes)
            now = ", ".join(map(str, map(list, shapes)))
            self._opener.warn(f"{fault} with inputs of some shapes, now {now}")

    def _resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        interpreter = self._ready()
        for (spec, number), shape in zip(self._main.inputs, shapes, strict=True):
            if not shape and not spec.open and not spec.shape:
                # A scalar needs no resize, and ai-edge-litert 2.3 for ARM crashes on it.
                continue
            # ``strict`` forbids changing fixed dimensions. All dimensions of a written
            # string tensor appear fixed.
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
        """Run a signature of another graph; its runner resizes and allocates."""
        runner = self._ready().get_signature_runner(entry.runner)
        results = runner(**arrays)
        return {spec.name: np.asarray(results[spec.name]) for spec, _ in entry.outputs}

    def _read_signatures(self) -> dict[str, tensors.GraphEntry]:
        """Read the named entry points.

        The main graph's specs get the names of its signature as aliases.
        """
        interpreter = self._ready()
        entries = {}
        for name in interpreter.get_signature_list():
            runner = interpreter.get_signature_runner(name)
            entries[name] = tensors.signature_entry(name, runner, self._main)
        default = "serving_default"
        if len(entries) == 1:
            default = next(iter(entries))
        if default in entries and entries[default].runner is None:
            self._main = tensors.with_aliases(self._main, entries[default])
        return entries

    def _learn_outputs(self) -> None:
        """Determine the shapes of outputs of unknown rank by running on zeros."""
        probe = run_on_zeros(self.run, [spec for spec, _ in self._main.inputs])
        self._discard()  # the runs changed string tensors and variables
        if probe is None:
            return
        outputs = []
        for tensor in self._main.outputs:
            if not tensor.spec.shape:
                tensor = tensor._replace(spec=probe.learned(tensor.spec))
            outputs.append(tensor)
        self._main = self._default = self._main._replace(outputs=tuple(outputs))


RUNTIME = TfliteRuntime()


def _shapes_error(
    opener: InterpreterOpener, entry: tensors.GraphEntry, arrays: Mapping[str, Array]
) -> ValueError:
    culprit = ""
    delegate = opener.delegate
    if delegate is not None and delegate.required:
        culprit = f" with the delegate {delegate.name}"
    sizes = []
    for spec, _ in entry.inputs:
        sizes.append(f"{spec.name!r}: {list(arrays[spec.name].shape)}")
    return ValueError(
        f"the model cannot take inputs of these shapes{culprit}: {', '.join(sizes)}"
    )


class StatefulTfliteSession(TfliteSession):
    """A session whose model keeps state between runs."""

    def reset(self) -> None:
        """Discard the state, unless the model's own signatures manage it."""
        # The packages can reset tensors but not variables, so open a new interpreter.
        if len(self._entries) < 2:
            self._discard()
