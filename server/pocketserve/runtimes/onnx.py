"""Runs ``.onnx`` files with ONNX Runtime.

The options of a version are ``providers``, a list of execution provider names in order of preference (the CPU comes
last by itself), and ``required``: refuse to load rather than run on the CPU alone.

**Outputs that are no tensors** become tensors, because the protocol has nothing else:

* ``NAME`` of type map or sequence of maps (what scikit-learn's classifiers give as probabilities) becomes
  ``NAME.keys``, INT64 or BYTES of shape [classes], and ``NAME.values``, FP32 or FP64 of shape [classes] or
  [rows, classes]. Keys come in their sorted order; a key that a row lacks has the value NaN.
* ``NAME`` of type sequence of tensors becomes ``NAME``, the elements stacked to shape [count, ...] if their shapes
  agree, else their values one after the other in one dimension, and ``NAME.shapes``, INT64 of shape [count, rank], with
  the shape of each element (filled up with -1 where ranks differ).

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
import importlib
import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

from .base import ModelLoadError, ModelSource, RuntimeMissingError, Signature
from .onnx_check import ModelFacts, check_model

_log = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"

_HOW_TO_INSTALL = "run: pip install 'pocketserve[onnx]' (in Termux: pkg install python-onnxruntime)"

_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}
"""ONNX Runtime's element types. It also has 8-, 4- and 2-bit ones, which the protocol cannot carry."""

_BFLOAT16 = 16
"""``TensorProto.DataType.BFLOAT16``."""

_PROBE_SIZES = (1, 3)
"""Free dimensions of the runs that learn shapes: what differs between them depends on the caller."""

MAX_PROPERTY_CHARS = 4 * 2**20
"""Of all texts in a file's metadata. An alphabet for reading Chinese is about 20 kB."""


class OnnxRuntime:
    """Opens ``.onnx`` files.

    Args:
        module: the module to import ONNX Runtime from.
    """

    platform = "onnxruntime_onnx"
    option_keys = frozenset({"providers", "required"})

    def __init__(self, module: str = "onnxruntime") -> None:
        self._module = module

    def open(self, source: ModelSource) -> OnnxSession:
        """Load a model.

        Raises:
            RuntimeMissingError: ONNX Runtime is not installed or does not work.
            ModelLoadError: an option is wrong, the file is no ONNX model, is damaged, keeps weights outside its
                folder, or needs what this ONNX Runtime does not have.
        """
        wanted, required = _options(source.options)
        # ONNX Runtime looks for weights beside the path that it is given, so both must see the same one.
        path = source.path.resolve()
        facts = check_model(path)
        ort = _import(self._module)
        framework = f"onnxruntime {ort.__version__}"
        try:
            native, used = _open_native(ort, path, source.threads, wanted, required)
            return OnnxSession(ort, native, facts, framework, used)
        except ModelLoadError:
            raise
        except Exception as error:
            raise ModelLoadError(_explain(path, framework, str(error))) from error


RUNTIME = OnnxRuntime()
"""The runtime of the kind ``onnx``."""


class OnnxSession:
    """One ``InferenceSession`` with its model. Not to be used by several threads at a time, but by any.

    Args:
        ort: the imported package.
        native: its ``InferenceSession``.
        facts: what the file itself told.
        runtime: the framework with its version.
        device: what runs the model.

    Attributes:
        inputs: the model's inputs; ``open`` where the file does not tell the shape.
        outputs: specs as the module's text describes. Shapes that the file does not tell are learned from runs on
            zeros; (-1,) stands for one that could not be learned.
        signatures: empty, ONNX has one entry point.
        runtime: such as ``onnxruntime 1.31.1``.
        device: ``cpu``, or the names of the execution providers that run a part of the model, with ``cpu`` for the
            rest: ``NnapiExecutionProvider, cpu``.
        memory_bytes: the file, its external data and one copy of every input and output, free dimensions counted
            as 1. Intermediate results are not in it: nothing tells their size.
        properties: the file's ``metadata_props``, texts by name.

    Raises:
        ModelLoadError: an input or output has a type that the protocol cannot carry.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(self, ort: Any, native: Any, facts: ModelFacts, runtime: str, device: str) -> None:
        self._ort = ort
        self._native: Any = native
        self._inputs = {arg.name: _input_spec(arg, facts) for arg in native.get_inputs()}
        self._outputs = {arg.name: _output(arg, facts) for arg in native.get_outputs()}
        self._by_value = any(spec.datatype == "BF16" for output in self._outputs.values() for spec in output.specs)
        _check_bfloat16(self._by_value, self._inputs.values(), self._outputs.values())
        self.runtime = runtime
        self.device = device
        if any(output.unsure for output in self._outputs.values()):
            self._learn_outputs()
        self.inputs: Sequence[TensorSpec] = list(self._inputs.values())
        self.outputs: Sequence[TensorSpec] = [spec for output in self._outputs.values() for spec in output.specs]
        _check_names(self.outputs)
        exchanged = sum(_byte_size(spec) for spec in (*self.inputs, *self.outputs))
        self.memory_bytes = facts.file_bytes + facts.external_bytes + exchanged
        self.properties: Mapping[str, str] = _properties(native)

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """Compute the outputs of one request.

        Args:
            inputs: arrays by input name, of the specs' dtypes and shapes; strings are UTF-8 ``bytes`` in arrays of
                dtype object, BF16 is ``uint16`` bits.
            signature: None.

        Returns:
            Arrays by output name, which own their memory.

        Raises:
            ValueError: there is such a signature, a string is not UTF-8, or the model does not take these shapes,
                dtypes or values.
            RuntimeError: the session is closed, or an output string is not UTF-8.
            Exception: whatever else ONNX Runtime raises. The session works on.
        """
        if signature is not None:
            raise ValueError(f"the model has no signature {signature!r}; ONNX models have none")
        if self._native is None:
            raise RuntimeError("the session is closed")
        arrays = {name: _prepared(inputs[name], spec) for name, spec in self._inputs.items()}
        values = self._call(arrays)
        results: dict[str, Array] = {}
        for output, value in zip(self._outputs.values(), values, strict=True):
            results.update(output.arrays(value))
        return results

    def close(self) -> None:
        """Let go of the native session, its weights and its arena."""
        self._native = None

    def _call(self, arrays: Mapping[str, Array]) -> Sequence[Any]:
        """One native run; values in the order of the outputs."""
        run = self._run_by_value if self._by_value else self._run_by_array
        try:
            return run(arrays)
        except UnicodeDecodeError as error:  # also a ValueError, but no fault of the request
            raise RuntimeError("an output string of the model is not UTF-8") from error
        except Exception as error:
            # The class itself lies in a private module of the package.
            if type(error).__name__ == "InvalidArgument":
                raise ValueError(_cleaned(str(error), 300)) from error
            raise

    def _run_by_array(self, arrays: Mapping[str, Array]) -> Sequence[Any]:
        feeds = {
            name: self._value(array, spec) if spec.datatype == "BF16" else array
            for (name, array), spec in zip(arrays.items(), self._inputs.values(), strict=True)
        }
        values: Sequence[Any] = self._native.run(list(self._outputs), feeds)
        return values

    def _run_by_value(self, arrays: Mapping[str, Array]) -> Sequence[Any]:
        feeds = {name: self._value(array, self._inputs[name]) for name, array in arrays.items()}
        values = self._native.run_with_ort_values(list(self._outputs), feeds)
        # An output that is an input handed through shares its memory here.
        return [_bits(value) if "bfloat16" in value.data_type() else np.array(value.numpy()) for value in values]

    def _value(self, array: Array, spec: TensorSpec) -> Any:
        """An OrtValue that looks at the array's memory, which must outlive it."""
        if spec.datatype != "BF16":
            return self._ort.OrtValue.ortvalue_from_numpy(array)
        return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)

    def _learn_outputs(self) -> None:
        """Learn shapes and keys from runs on zeros; a model that takes none keeps what is declared."""
        free = any(spec.open or -1 in spec.shape for spec in self._inputs.values())
        sizes = _PROBE_SIZES if free else _PROBE_SIZES[:1]
        seen = [result for result in map(self._try_zeros, sizes) if result is not None]
        if seen:
            everything = len(seen) == len(sizes)
            self._outputs = {name: output.learned(seen, everything) for name, output in self._outputs.items()}

    def _try_zeros(self, size: int) -> dict[str, Array] | None:
        try:
            return self.run({name: _zeros(spec, size) for name, spec in self._inputs.items()})
        except Exception:
            return None


@dataclass(frozen=True, slots=True)
class _Plain:
    """An output that is a tensor."""

    specs: tuple[TensorSpec, ...]
    unsure: bool

    def arrays(self, value: Any) -> dict[str, Array]:
        (spec,) = self.specs
        return {spec.name: _with_bytes(np.asarray(value)) if spec.datatype == "BYTES" else np.asarray(value)}

    def learned(self, seen: Sequence[Mapping[str, Array]], everything: bool) -> _Plain:
        if not self.unsure:
            return self
        (spec,) = self.specs
        return replace(self, specs=(_with_seen(spec, seen, everything),))


@dataclass(frozen=True, slots=True)
class _Stack:
    """An output that is a sequence of tensors: the elements and their shapes."""

    specs: tuple[TensorSpec, TensorSpec]
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        elements, shapes = self.specs
        items = [np.asarray(item) for item in value]
        stacked = self._stacked(items)
        result = _with_bytes(stacked) if elements.datatype == "BYTES" else stacked
        return {elements.name: result, shapes.name: self._shapes(items)}

    def learned(self, seen: Sequence[Mapping[str, Array]], everything: bool) -> _Stack:
        # How many elements there are may depend on the values, which were all zero.
        elements, shapes = (_with_seen(spec, seen, everything) for spec in self.specs)
        elements, shapes = (replace(spec, shape=(-1, *spec.shape[1:])) for spec in (elements, shapes))
        return replace(self, specs=(elements, shapes))

    def _stacked(self, items: Sequence[Array]) -> Array:
        spec = self.specs[0]
        if not items:
            return np.empty((0, *(max(size, 0) for size in spec.shape[1:])), DATATYPES[spec.datatype].typestr)
        if len({item.shape for item in items}) == 1:
            return np.stack(items)
        return np.concatenate([item.reshape(-1) for item in items])

    def _shapes(self, items: Sequence[Array]) -> Array:
        rank = max((item.ndim for item in items), default=max(self.specs[1].shape[-1], 0))
        rows = [(*item.shape, *[-1] * (rank - item.ndim)) for item in items]
        return np.array(rows, np.int64).reshape(len(items), rank)


@dataclass(frozen=True, slots=True)
class _Table:
    """An output that is a map, or a sequence of maps with a row for each.

    Attributes:
        known: keys as runs on zeros gave them: no row tells them when a batch is empty.
    """

    specs: tuple[TensorSpec, TensorSpec]
    known: tuple[Any, ...] = ()
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        keys, values = self.specs
        rows = [value] if isinstance(value, Mapping) else value
        names = list(dict.fromkeys(itertools.chain.from_iterable(rows))) or list(self.known)
        table = np.array(
            [[row.get(name, math.nan) for name in names] for row in rows], DATATYPES[values.datatype].typestr
        )
        table = table.reshape(len(rows), len(names))
        return {
            keys.name: _with_bytes(_objects(names)) if keys.datatype == "BYTES" else np.array(names, np.int64),
            values.name: table[0] if isinstance(value, Mapping) else table,
        }

    def learned(self, seen: Sequence[Mapping[str, Array]], everything: bool) -> _Table:
        keys, values = (_with_seen(spec, seen, everything) for spec in self.specs)
        known = seen[0][keys.name].tolist()
        return replace(self, specs=(keys, values), known=tuple(known))


_Output = _Plain | _Stack | _Table


# --- Opening


def _options(options: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The providers that are asked for besides the CPU, and whether they must work."""
    names, required = options.get("providers", []), options.get("required", False)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelLoadError(f'the option providers is a list such as ["NnapiExecutionProvider"], not {names!r:.100}')
    if not isinstance(required, bool):
        raise ModelLoadError(f"the option required is true or false, not {required!r:.100}")
    return [name for name in dict.fromkeys(names) if name != CPU], required


def _import(module: str) -> Any:
    """ONNX Runtime, told to keep quiet.

    Raises:
        RuntimeMissingError: it does not import.
    """
    try:
        ort = importlib.import_module(module)
        ort.InferenceSession, ort.SessionOptions  # noqa: B018  # a folder left by an uninstall has neither
    except ModuleNotFoundError as error:
        if error.name == module:
            raise RuntimeMissingError(f"ONNX Runtime is not installed; {_HOW_TO_INSTALL}") from None
        raise RuntimeMissingError(_broken(error)) from error
    except Exception as error:  # a native library that does not fit raises ImportError or OSError, among others
        raise RuntimeMissingError(_broken(error)) from error
    getattr(ort, "disable_telemetry_events", lambda: None)()
    return ort


def _broken(error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"ONNX Runtime is installed but does not load ({reason[:200]}); {_HOW_TO_INSTALL}"


def _open_native(ort: Any, path: Path, threads: int, wanted: Sequence[str], required: bool) -> tuple[Any, str]:
    """An InferenceSession, and what runs it.

    Raises:
        ModelLoadError: a provider that is required is not there or does not start.
        Exception: what ONNX Runtime raises for a model that it cannot load.
    """
    there = ort.get_available_providers()
    missing = [name for name in wanted if name not in there]
    if missing and required:
        raise ModelLoadError(_unavailable(missing, there, "is not part of this onnxruntime"))
    present = [name for name in wanted if name in there]
    native, fault = _with_fallback(lambda names: _native(ort, path, threads, names), present, required, there)
    failed = [name for name in wanted if name not in native.get_providers()]
    if failed and required:
        raise ModelLoadError(_unavailable(failed, there, "did not start"))
    if failed:
        _log.warning("%s runs without %s%s", path.name, ", ".join(failed), f" ({fault})" if fault else "")
    return native, _device(native)


def _with_fallback(
    make: Callable[[Sequence[str]], Any], present: Sequence[str], required: bool, there: Sequence[str]
) -> tuple[Any, str]:
    """A session with the providers, else with the CPU alone and the reason.

    A model that is at fault itself fails on the CPU too, and that error is the one to report.
    """
    try:
        return make(present), ""
    except Exception as error:
        if not present:
            raise
        native = make([])
        fault = _cleaned(str(error), 200)
        if required:
            raise ModelLoadError(_unavailable(present, there, f"did not start ({fault})")) from error
        return native, fault


def _native(ort: Any, path: Path, threads: int, providers: Sequence[str]) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    # The pattern keeps a block for each set of shapes: 138 MB instead of 97 MB for a text detector of one shape,
    # 244 instead of 186 for four, and 3 % faster. The arena stays: without it 205 MB and 20 % slower (x86-64).
    options.enable_mem_pattern = False
    entries = {
        "session.intra_op.allow_spinning": "0",  # spinning threads keep a phone's cores awake
        "session.inter_op.allow_spinning": "0",
        "session.load_model_format": "ONNX",  # whatever the name says: only that was checked
    }
    if providers:
        entries["session.record_ep_graph_assignment_info"] = "1"
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(
        str(path), options, providers=[*providers, CPU], enable_fallback=0, read_config_from_model=0
    )


def _device(native: Any) -> str:
    """The providers that got a part of the model; older packages only tell those that were offered one."""
    names = list(native.get_providers())
    if names != [CPU] and hasattr(native, "get_provider_graph_assignment_info"):
        used = {part.ep_name for part in native.get_provider_graph_assignment_info()}
        names = [name for name in names if name in used] or [CPU]
    return ", ".join("cpu" if name == CPU else name for name in names)


def _unavailable(names: Sequence[str], there: Sequence[str], fault: str) -> str:
    return (
        f"the execution provider {', '.join(names)[:200]} {fault}; available are {', '.join(there)}: "
        "change providers in model.toml, or leave required out to run on the CPU"
    )


# --- Specs

_TENSOR = re.compile(r"tensor\((\w+)\)")
_SEQUENCE = re.compile(r"seq\(tensor\((\w+)\)\)")
_MAPS = re.compile(r"(seq\()?map\((int64|string),tensor\((float|double)\)\)\)?")


def _input_spec(arg: Any, facts: ModelFacts) -> TensorSpec:
    kind = _TENSOR.fullmatch(arg.type)
    if kind is None:
        raise ModelLoadError(
            f"input {arg.name!r} is of type {arg.type}, and only tensors can be sent; "
            "export the model with tensors as inputs"
        )
    unranked = arg.name in facts.unranked and not arg.shape
    return TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,) if unranked else _shape(arg), open=unranked)


def _output(arg: Any, facts: ModelFacts) -> _Output:
    if kind := _TENSOR.fullmatch(arg.type):
        unranked = arg.name in facts.unranked and not arg.shape
        return _Plain((TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,) if unranked else _shape(arg)),), unranked)
    if (kind := _SEQUENCE.fullmatch(arg.type)) and kind[1] != "bfloat16":
        shapes = TensorSpec(f"{arg.name}.shapes", "INT64", (-1, -1))
        return _Stack((TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,)), shapes))
    if kind := _MAPS.fullmatch(arg.type):
        keys = TensorSpec(f"{arg.name}.keys", _datatype(arg, kind[2]), (-1,))
        values = TensorSpec(f"{arg.name}.values", _datatype(arg, kind[3]), (-1, -1) if kind[1] else (-1,))
        return _Table((keys, values))
    raise ModelLoadError(
        f"output {arg.name!r} is of type {arg.type}, which cannot be served; export the model with tensors as outputs"
    )


def _datatype(arg: Any, element: str) -> str:
    if element not in _DATATYPES:
        raise ModelLoadError(
            f"tensor {arg.name!r} is of type {element}, which cannot be served; convert the model with another type"
        )
    return _DATATYPES[element]


def _shape(arg: Any) -> tuple[int, ...]:
    """Names and None, which stand for free dimensions, become -1."""
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in arg.shape)


def _check_bfloat16(by_value: bool, inputs: Iterable[TensorSpec], outputs: Iterable[_Output]) -> None:
    """Refuse bfloat16 outputs beside what cannot be exchanged in the same way."""
    strings = any(spec.datatype == "BYTES" for spec in inputs)
    if by_value and (strings or not all(isinstance(output, _Plain) for output in outputs)):
        raise ModelLoadError(
            "the model has bfloat16 outputs beside strings, sequences or maps, which onnxruntime cannot exchange at "
            "once; convert it with float32 outputs"
        )


def _check_names(specs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ModelLoadError("two outputs would have the same name; export the model with other output names")


def _with_seen(spec: TensorSpec, seen: Sequence[Mapping[str, Array]], everything: bool) -> TensorSpec:
    """A spec with the shape that all runs on zeros agree on.

    Args:
        everything: all runs worked; if not, how sizes follow the caller's is not known.
    """
    shapes = [result[spec.name].shape for result in seen]
    if len({len(shape) for shape in shapes}) != 1:
        return replace(spec, shape=(-1,))
    sizes = (set(column) for column in zip(*shapes, strict=True))
    return replace(spec, shape=tuple(_agreed(column) if everything else -1 for column in sizes))


def _agreed(sizes: set[int]) -> int:
    """A size of 0 follows from the values."""
    return next(iter(sizes)) if len(sizes) == 1 and 0 not in sizes else -1


def _fixed(spec: TensorSpec, size: int) -> tuple[int, ...]:
    return tuple(size if free == -1 else free for free in spec.shape)


def _zeros(spec: TensorSpec, size: int) -> Array:
    fill = b"" if spec.datatype == "BYTES" else 0
    return np.full(_fixed(spec, size), fill, dtype=DATATYPES[spec.datatype].typestr)


def _byte_size(spec: TensorSpec) -> int:
    return math.prod(_fixed(spec, 1)) * DATATYPES[spec.datatype].itemsize


# --- Values


def _prepared(array: Array, spec: TensorSpec) -> Array:
    """An array as ONNX Runtime wants it: native byte order, row-major, text as str.

    Raises:
        ValueError: a text is not UTF-8, or a scalar is no scalar (which ONNX Runtime does not check).
    """
    if spec.shape == () and array.shape != ():
        raise ValueError(f"input {spec.name!r} has shape {list(array.shape)}, expected []")
    if spec.datatype == "BYTES" and array.dtype.kind in "OSU":
        return _with_text(array, spec.name)
    # ``ascontiguousarray`` would make shape () to shape (1,).
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _with_text(array: Array, name: str) -> Array:
    try:
        items = [item.decode() if isinstance(item, bytes) else str(item) for item in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise ValueError(f"input {name!r} has a string that is not UTF-8, as ONNX demands ({error})") from None
    return _objects(items).reshape(array.shape)


def _with_bytes(array: Array) -> Array:
    items = [item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1).tolist()]
    return _objects(items).reshape(array.shape)


def _objects(items: Sequence[Any]) -> Array:
    """Text or bytes in one dimension, which NumPy would make fixed-size strings of."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _bits(value: Any) -> Array:
    """A copy of a bfloat16 OrtValue's elements as uint16."""
    shape = tuple(value.shape())
    size = math.prod(shape) * 2
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(raw), dtype=np.uint16).reshape(shape)


# --- Errors

_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .* failed:|/\S+:\d+ .*?\) (?=[A-Z])|Please fix either .*"
)

_EXPLANATIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"),
        "has IR version {0}, and {framework} knows those up to {1}; install a newer onnxruntime, or save the model "
        "with an older IR version",
    ),
    (
        re.compile(r"Opset (\d+) is under development.*support for domain (\S+) is till opset (\d+)", re.DOTALL),
        "has opset {0} of {1}, and {framework} knows those up to {2}; install a newer onnxruntime, or export the model "
        "with an older opset",
    ),
    (
        re.compile(r"(\S*:\w+)\(-?\d+\) is not a registered function/op"),
        "uses the operator {0}, which {framework} does not have; export the model without custom operators, or install "
        "a newer onnxruntime",
    ),
    (
        re.compile(r"No Op registered for (\w+) with domain_version of (\d+)"),
        "uses the operator {0} of opset {1}, which {framework} does not have; install a newer onnxruntime, or export "
        "the model without it",
    ),
    (
        re.compile(r"Could not find an implementation for (\w+)\((\d+)\)"),
        "uses the operator {0} (opset {1}) with a type that {framework} cannot compute with; convert the model to "
        "float32",
    ),
    (
        re.compile(r"EPContext"),
        "was compiled for one kind of accelerator, which {framework} does not have; use the model as it was before",
    ),
    (
        re.compile(r"MLDataType for: tensor\((\w+)\)"),
        "has a tensor of type {0}, which {framework} does not have; convert the model with another type",
    ),
    (re.compile(r"bad_alloc|bad allocation|Failed to allocate memory"), "needs more memory than there is"),
)
"""What a text of ONNX Runtime says about a model, in words."""


def _explain(path: Path, framework: str, text: str) -> str:
    """One sentence for people out of ONNX Runtime's error text."""
    for pattern, words in _EXPLANATIONS:
        if found := pattern.search(text):
            return f"{path.name} {words.format(*found.groups(), framework=framework)}"
    reason = _cleaned(text, 200) or "no reason given"
    return f"{framework} cannot load {path.name}, which may be damaged ({reason}); copy or export the file again"


def _cleaned(text: str, most: int) -> str:
    """ONNX Runtime's text in one line, without codes, places in its source and advice that does not fit here."""
    return _NOISE.sub("", " ".join(text.split()))[:most].strip().rstrip(".")


def _properties(native: Any) -> dict[str, str]:
    """What the file's author wrote into it; nothing where that is no UTF-8 or too long to be a description."""
    try:
        found = {str(name): str(text) for name, text in native.get_modelmeta().custom_metadata_map.items()}
    except Exception:  # a description is never worth refusing a model for
        return {}
    return found if sum(map(len, found.values())) <= MAX_PROPERTY_CHARS else {}
