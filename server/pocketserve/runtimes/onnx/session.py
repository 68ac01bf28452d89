"""Run ``.onnx`` files with ONNX Runtime.

A version's options are ``providers``, a list of execution providers in order of
preference (the CPU is always last), and ``required``: fail to load rather than fall
back to the CPU.

Observed behaviour that shapes this module:

* An unknown shape appears as ``[]``, like a scalar's, and is then not checked.
* ``bytes`` in an object array are read as the text ``b'...'``; the byte order of
  numbers is ignored.
* NumPy has no bfloat16: such inputs and outputs must be OrtValues.
* If a session cannot be created, the Python package prints to standard output and
  retries, unless configured otherwise.
* Without prepacking, external weights stay mapped and take no memory of their own. But
  matrix products take 35 times as long with 4-bit weights and 5 times with 8-bit
  weights (x86-64, 2048 x 2048), so prepacking stays on.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.probe import run_on_zeros
from pocketserve.tensors import Array, TensorSpec, byte_size

from .check import GraphFacts, check_model
from .errors import clean_text, explain_onnx_error, foreign_operator, is_about_sizes
from .native import import_package, open_native, provider_options, sums_overflow
from .operators import first_foreign
from .tensors import Output, TensorOutput, input_spec, object_array, output_of

MAX_PROPERTY_CHARS = 4 * 2**20
"""Limit of a file's metadata; an alphabet for Chinese text has about 20 kB."""


class OpenedFile(NamedTuple):
    """A checked file in a native session.

    Attributes:
        ort: the package.
        framework: the package with its version.
    """

    ort: Any
    native: Any
    facts: GraphFacts
    framework: str
    device: str


class OnnxRuntime:
    """Opens ``.onnx`` files with ONNX Runtime.

    Args:
        module: the module to import as ONNX Runtime.
        exact_sums: whether to prevent overflows of int8 sums; None decides by the
            processor.
    """

    platform = "onnxruntime_onnx"
    option_keys = frozenset({"providers", "required"})

    def __init__(
        self, module: str = "onnxruntime", exact_sums: bool | None = None
    ) -> None:
        self._module = module
        self._exact_sums = sums_overflow() if exact_sums is None else exact_sums

    def open(self, source: ModelSource) -> OnnxSession:
        # ONNX Runtime opens weights beside this path, so the check must use the same.
        path = source.path.resolve()
        opened = self.open_file(source, path)
        with load_errors(
            lambda error: explain_onnx_error(path, opened.framework, str(error))
        ):
            return OnnxSession(*opened)

    def open_file(self, source: ModelSource, path: Path) -> OpenedFile:
        """Check a file and open it natively.

        Args:
            source: has the options, whatever its own file.
            path: the file with all links resolved.
        """
        providers, required = provider_options(source)
        facts = check_model(path)
        ort = import_package(self._module)
        framework = f"onnxruntime {ort.__version__}"
        foreign = first_foreign(facts.operators, facts.functions)
        if foreign is not None:
            raise ModelLoadError(f"{path.name} {foreign_operator(*foreign, framework)}")
        with load_errors(lambda error: explain_onnx_error(path, framework, str(error))):
            native, device = open_native(
                ort, path, source.threads, providers, required, self._exact_sums
            )
        return OpenedFile(ort, native, facts, framework, device)


RUNTIME = OnnxRuntime()


class OnnxSession:
    """A loaded ONNX model; any thread may use it, one at a time.

    Attributes:
        outputs: specs as in :mod:`.tensors`; an unknown shape is (-1,).
        device: ``cpu``, or the execution providers that run parts of the model:
            ``NnapiExecutionProvider, cpu``.
        memory_bytes: the file, its external data and one copy of each input and output
            with free dimensions of 1. The size of intermediate results is unknown.
        properties: the file's ``metadata_props``, texts by name.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self, ort: Any, native: Any, facts: GraphFacts, runtime: str, device: str
    ) -> None:
        self._ort = ort
        self._native: Any = native
        self.runtime = runtime
        self.device = device
        self._inputs: dict[str, TensorSpec] = {}
        self._outputs: dict[str, Output] = {}
        self._read_arguments(native, facts)
        self._by_value = _has_datatype("BF16", _output_specs(self._outputs))
        if self._by_value:
            self._check_by_value()
        self._takes_sizes = any(map(_may_give_sizes, self._inputs.values()))
        self._probe_outputs()
        self.inputs: Sequence[TensorSpec] = list(self._inputs.values())
        self.outputs: Sequence[TensorSpec] = _output_specs(self._outputs)
        _check_unique(self.outputs)
        tensor_bytes = sum(map(byte_size, (*self.inputs, *self.outputs)))
        self.memory_bytes = facts.total_bytes + tensor_bytes
        self.properties: Mapping[str, str] = _properties(native)

    def _read_arguments(self, native: Any, facts: GraphFacts) -> None:
        """Describe the inputs and outputs."""
        for arg in native.get_inputs():
            self._inputs[arg.name] = input_spec(arg, facts)
        for arg in native.get_outputs():
            self._outputs[arg.name] = output_of(arg, facts)

    def _check_by_value(self) -> None:
        """Raise if not all inputs and outputs can be OrtValues."""
        outputs = self._outputs.values()
        are_tensors = all(isinstance(output, TensorOutput) for output in outputs)
        if not are_tensors or _has_datatype("BYTES", self._inputs.values()):
            raise ModelLoadError(
                "the model has bfloat16 outputs beside strings, sequences or maps, "
                "which onnxruntime cannot exchange at once; convert it with float32 "
                "outputs"
            )

    def _probe_outputs(self) -> None:
        """Determine unknown output shapes by running the model on zeros."""
        if not any(output.unsure for output in self._outputs.values()):
            return
        probe = run_on_zeros(self.run, [*self._inputs.values()])
        if probe is None:
            return
        for name, output in self._outputs.items():
            self._outputs[name] = output.learned(probe)

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the model; strings are UTF-8 ``bytes``, BF16 is ``uint16`` bits.

        The session remains usable after a failed run.
        """
        if self._native is None:
            raise RuntimeError("the session is closed")
        arrays = {
            name: _prepared(inputs[name], spec) for name, spec in self._inputs.items()
        }
        values = self._call(arrays)
        results: dict[str, Array] = {}
        for output, value in zip(self._outputs.values(), values, strict=True):
            results.update(output.arrays(value))
        return results

    def close(self) -> None:
        self._native = None

    def _call(self, arrays: Mapping[str, Array]) -> Sequence[Any]:
        """Run natively; return the values in the order of the outputs."""
        names = list(self._outputs)
        try:
            feeds = self._feeds(arrays)
            values: Sequence[Any]
            if not self._by_value:
                values = self._native.run(names, feeds)
                return values
            values = self._native.run_with_ort_values(names, feeds)
            # An OrtValue may share memory with an input that the model returns.
            return [_copied(value) for value in values]
        except UnicodeDecodeError as error:  # a ValueError, but the model's fault
            raise RuntimeError("an output string of the model is not UTF-8") from error
        except Exception as error:
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from error

    def _explained(self, error: Exception) -> Exception | None:
        """Explain a failed run; return None for errors from elsewhere."""
        text = str(error)
        # By name: the classes are in a private module of the package.
        is_invalid = type(error).__name__ == "InvalidArgument"
        if is_invalid or (self._takes_sizes and is_about_sizes(text)):
            return ValueError(clean_text(text, 300))
        if type(error).__module__.startswith("onnxruntime"):
            return RuntimeError(clean_text(text, 300))
        return None

    def _feeds(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        feeds: dict[str, Any] = {}
        for name, array in arrays.items():
            spec = self._inputs[name]
            if self._by_value or spec.datatype == "BF16":
                feeds[name] = self._value(array, spec)
            else:
                feeds[name] = array
        return feeds

    def _value(self, array: Array, spec: TensorSpec) -> Any:
        """Return an OrtValue on the array's memory; the array must outlive it."""
        kind = self._ort.OrtValue
        if spec.datatype != "BF16":
            return kind.ortvalue_from_numpy(array)
        bfloat16 = 16  # TensorProto.DataType.BFLOAT16
        return kind.ortvalue_from_numpy_with_onnx_type(array, bfloat16)


def _check_unique(outputs: Sequence[TensorSpec]) -> None:
    names = {spec.name for spec in outputs}
    if len(names) != len(outputs):
        raise ModelLoadError(
            "two outputs would have the same name; export the model with other "
            "output names"
        )


def _output_specs(outputs: Mapping[str, Output]) -> list[TensorSpec]:
    specs: list[TensorSpec] = []
    for output in outputs.values():
        specs += output.specs
    return specs


def _has_datatype(datatype: str, specs: Iterable[TensorSpec]) -> bool:
    return any(spec.datatype == datatype for spec in specs)


def _may_give_sizes(spec: TensorSpec) -> bool:
    """Return whether a request's input can cause sizes that don't fit.

    The shape may be free, or integers may be sizes; 8-bit integers are pixels.
    """
    if spec.open or -1 in spec.shape:
        return True
    is_integer = spec.datatype.startswith(("INT", "UINT"))
    return is_integer and not spec.datatype.endswith("8")


def _prepared(array: Array, spec: TensorSpec) -> Array:
    """Convert an array for ONNX Runtime: native byte order, row-major, str."""
    if spec.shape == () and array.shape != ():
        raise ValueError(
            f"input {spec.name!r} has shape {list(array.shape)}, expected []"
        )
    if spec.datatype != "BYTES" or array.dtype.kind not in "OSU":
        # ``ascontiguousarray`` would turn shape () into (1,).
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    items = [_string(item, spec) for item in array.reshape(-1).tolist()]
    return object_array(items).reshape(array.shape)


def _string(item: Any, spec: TensorSpec) -> str:
    if not isinstance(item, bytes):
        return str(item)
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"input {spec.name!r} has a string that is not UTF-8, as ONNX demands "
            f"({error})"
        ) from None


def _copied(value: Any) -> Array:
    """Copy an OrtValue to an array; bfloat16 becomes uint16."""
    if "bfloat16" not in value.data_type():
        return np.array(value.numpy())
    shape = tuple(value.shape())
    size = 2 * math.prod(shape)
    raw = b""
    if size:
        raw = ctypes.string_at(value.data_ptr(), size)
    numbers = np.frombuffer(bytearray(raw), dtype=np.uint16)
    return numbers.reshape(shape)


def _properties(native: Any) -> dict[str, str]:
    """Return the file's metadata; empty if it is not UTF-8 or too long."""
    texts: dict[str, str] = {}
    try:
        for name, text in native.get_modelmeta().custom_metadata_map.items():
            texts[str(name)] = str(text)
    except Exception:  # a model works without its description
        return {}
    if sum(map(len, texts.values())) > MAX_PROPERTY_CHARS:
        return {}
    return texts
