"""Runs ``.onnx`` files with ONNX Runtime.

The options of a version are ``providers``, a list of execution provider names in order of preference (the CPU comes
last by itself), and ``required``: refuse to load rather than run on the CPU alone.

Found by running it, and what shapes the code below:

* A shape that the file does not tell shows as ``[]``, like a scalar's, and is then not checked.
* ``bytes`` in an object array are taken as the text ``b'...'``; byte-swapped numbers are taken as they lie.
* bfloat16 has no NumPy type: such inputs must be OrtValues, and such outputs can only be fetched as OrtValues.
* When a session cannot be made, the Python package prints to standard output and tries again, unless told not to.
* Without prepacking, weights in external data stay mapped and cost no memory of their own, but matrix products with
  4-bit weights take 35 times as long and with 8-bit weights 5 times (x86-64, 2048 x 2048), so it stays on.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.probe import run_on_zeros
from pocketserve.tensors import Array, TensorSpec, byte_size

from .check import GraphFacts, check_model
from .errors import clean_text, explain_onnx_error, foreign_operator, is_about_sizes
from .native import import_package, open_native, provider_options, sums_overflow
from .operators import first_foreign
from .tensors import TensorOutput, input_spec, object_array, output_of

MAX_PROPERTY_CHARS = 4 * 2**20
"""Of all texts in a file's metadata. An alphabet for reading Chinese is about 20 kB."""


class OnnxRuntime:
    """Opens ``.onnx`` files with ONNX Runtime.

    Args:
        module: what is imported as ONNX Runtime.
        exact_sums: whether int8 sums are to be kept from overflowing; None where this processor needs it.
    """

    platform = "onnxruntime_onnx"
    option_keys = frozenset({"providers", "required"})

    def __init__(
        self, module: str = "onnxruntime", exact_sums: bool | None = None
    ) -> None:
        self._module = module
        self._exact_sums = sums_overflow() if exact_sums is None else exact_sums

    def open(self, source: ModelSource) -> OnnxSession:
        providers, required = provider_options(source)
        # ONNX Runtime looks for weights beside the path that it is given, so both must see the same one.
        path = source.path.resolve()
        facts = check_model(path)
        ort = import_package(self._module)
        framework = f"onnxruntime {ort.__version__}"
        if (foreign := first_foreign(facts.operators, facts.functions)) is not None:
            raise ModelLoadError(f"{path.name} {foreign_operator(*foreign, framework)}")
        with load_errors(lambda error: explain_onnx_error(path, framework, str(error))):
            native, device = open_native(
                ort, path, source.threads, providers, required, self._exact_sums
            )
            return OnnxSession(ort, native, facts, framework, device)


RUNTIME = OnnxRuntime()


class OnnxSession:
    """An ``InferenceSession`` with its model. Not to be used by several threads at a time, but by any.

    Attributes:
        outputs: specs as :mod:`.tensors` describes; (-1,) stands for a shape that runs on zeros could not tell.
        device: ``cpu``, or the execution providers that run a part of the model: ``NnapiExecutionProvider, cpu``.
        memory_bytes: the file, its external data and one copy of every input and output, free dimensions counted
            as 1. Intermediate results are not in it: nothing tells their size.
        properties: the file's ``metadata_props``, texts by name.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self, ort: Any, native: Any, facts: GraphFacts, runtime: str, device: str
    ) -> None:
        self._ort = ort
        self._native: Any = native
        self._inputs = {arg.name: input_spec(arg, facts) for arg in native.get_inputs()}
        self._outputs = {
            arg.name: output_of(arg, facts) for arg in native.get_outputs()
        }
        self._by_value = any(
            spec.datatype == "BF16"
            for output in self._outputs.values()
            for spec in output.specs
        )
        plain = all(
            isinstance(output, TensorOutput) for output in self._outputs.values()
        )
        if self._by_value and (
            not plain or any(spec.datatype == "BYTES" for spec in self._inputs.values())
        ):
            raise ModelLoadError(
                "the model has bfloat16 outputs beside strings, sequences or maps, which onnxruntime cannot exchange "
                "at once; convert it with float32 outputs"
            )
        # Where all sizes are fixed and no whole numbers say some (UINT8 are pixels), those that do not fit are the
        # model's own.
        self._takes_sizes = any(
            spec.open
            or -1 in spec.shape
            or (spec.datatype.startswith(("INT", "UINT")) and spec.datatype[-1] != "8")
            for spec in self._inputs.values()
        )
        self.runtime = runtime
        self.device = device
        if any(output.unsure for output in self._outputs.values()):
            probe = run_on_zeros(self.run, [*self._inputs.values()])
            if probe is not None:
                self._outputs = {
                    name: output.learned(probe)
                    for name, output in self._outputs.items()
                }
        self.inputs: Sequence[TensorSpec] = list(self._inputs.values())
        self.outputs: Sequence[TensorSpec] = [
            spec for output in self._outputs.values() for spec in output.specs
        ]
        if len({spec.name for spec in self.outputs}) != len(self.outputs):
            raise ModelLoadError(
                "two outputs would have the same name; export the model with other output names"
            )
        exchanged = sum(byte_size(spec) for spec in (*self.inputs, *self.outputs))
        self.memory_bytes = facts.total_bytes + exchanged
        self.properties: Mapping[str, str] = _properties(native)

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run; strings are UTF-8 ``bytes``, BF16 is ``uint16`` bits. A session whose run failed works on."""
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
        """Run natively; return values in the order of the outputs."""
        try:
            feeds = {
                name: self._value(array, spec)
                if self._by_value or spec.datatype == "BF16"
                else array
                for (name, array), spec in zip(
                    arrays.items(), self._inputs.values(), strict=True
                )
            }
            run = (
                self._native.run_with_ort_values if self._by_value else self._native.run
            )
            values: Sequence[Any] = run(list(self._outputs), feeds)
            # As OrtValues, an output that is an input handed through shares its memory.
            return [_copied(value) for value in values] if self._by_value else values
        except (
            UnicodeDecodeError
        ) as error:  # also a ValueError, but no fault of the request
            raise RuntimeError("an output string of the model is not UTF-8") from error
        except Exception as error:
            # The classes themselves lie in a private module of the package.
            if type(error).__name__ == "InvalidArgument" or (
                self._takes_sizes and is_about_sizes(str(error))
            ):
                raise ValueError(clean_text(str(error), 300)) from error
            if type(error).__module__.startswith("onnxruntime"):
                raise RuntimeError(clean_text(str(error), 300)) from error
            raise

    def _value(self, array: Array, spec: TensorSpec) -> Any:
        """Return an OrtValue that uses the array's memory, which must outlive it."""
        kind = self._ort.OrtValue
        if spec.datatype != "BF16":
            return kind.ortvalue_from_numpy(array)
        return kind.ortvalue_from_numpy_with_onnx_type(
            array, 16
        )  # TensorProto.DataType.BFLOAT16


def _prepared(array: Array, spec: TensorSpec) -> Array:
    """Return an array as ONNX Runtime wants it: native byte order, row-major, text as str."""
    if spec.shape == () and array.shape != ():
        raise ValueError(
            f"input {spec.name!r} has shape {list(array.shape)}, expected []"
        )
    if spec.datatype != "BYTES" or array.dtype.kind not in "OSU":
        # ``ascontiguousarray`` would make shape () to shape (1,).
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    try:
        items = [
            item.decode() if isinstance(item, bytes) else str(item)
            for item in array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"input {spec.name!r} has a string that is not UTF-8, as ONNX demands ({error})"
        ) from None
    return object_array(items).reshape(array.shape)


def _copied(value: Any) -> Array:
    """Return a copy of an OrtValue's elements; those of bfloat16 as uint16."""
    if "bfloat16" not in value.data_type():
        return np.array(value.numpy())
    shape = tuple(value.shape())
    size = math.prod(shape) * 2
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(raw), dtype=np.uint16).reshape(shape)


def _properties(native: Any) -> dict[str, str]:
    """Return what the file's author wrote into it; nothing where that is no UTF-8 or too long to be a description."""
    try:
        texts = {
            str(name): str(text)
            for name, text in native.get_modelmeta().custom_metadata_map.items()
        }
    except Exception:  # a description is never worth refusing a model for
        return {}
    return texts if sum(map(len, texts.values())) <= MAX_PROPERTY_CHARS else {}
