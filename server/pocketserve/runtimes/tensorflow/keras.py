"""Runs Keras models: ``.keras`` archives and the older ``.h5`` and ``.hdf5`` files.

Nothing in a model file is run as code: its configuration may name known classes only (``keras_config``), ``safe_mode``
refuses Lambda layers, and versions of Keras in which it could be got round are refused themselves. A model is called
through one traced function, ten times faster than calling the model object.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Signature
from pocketserve.runtimes.privacy import import_framework
from pocketserve.runtimes.tensorflow import INSTALL
from pocketserve.tensors import Array, TensorSpec

from .keras_config import check_config
from .savedmodel import import_tensorflow
from .state import restorer
from .tensors import input_converters, input_errors, one_line, tensor_spec, to_array

# Keras and TensorFlow have no type information; models and tensors are Any below.

MINIMUM_KERAS = (3, 14)
"""Below it, files could run code, read or write other files (CVE-2025-9905, CVE-2026-1669, GHSA-hqp4-2352-xf5r)."""

MAX_INFLATION = 100
"""How much larger an archive's content may be than the archive. Keras does not even compress; a bomb reaches 1,000."""

ENDINGS = (".keras", ".h5", ".hdf5")
"""Keras goes by them, and knows no capitals."""

_HDF5 = b"\x89HDF\r\n\x1a\n"


class KerasRuntime:
    """Opens Keras models."""

    platform = "keras"
    option_keys: frozenset[str] = frozenset()
    fixed_threads = True  # TensorFlow takes it once for the process

    def open(self, source: ModelSource) -> KerasSession:
        """Load a model.

        Raises:
            RuntimeMissingError: TensorFlow or Keras is not installed, or Keras is too old to be safe.
            ModelLoadError: the file is damaged, holds code, does not fit this Keras, does not say what it takes, or
                cannot be traced.
        """
        saved_by = _check_file(source.path)
        tf = import_tensorflow(source.threads)
        keras = _import_keras()
        try:
            check_config(source.path)
            model = keras.models.load_model(source.path, compile=False, safe_mode=True)
        except Exception as error:  # Keras raises anything on files that it does not like
            title = f"Keras {keras.__version__}"
            raise ModelLoadError(_explain(source.path.name, title, saved_by, _innermost(error))) from error
        given = _symbolic_inputs(tf, model, source.path.name)
        function = _traced(tf, model, list(given.values()), source.path.name)
        restore = restorer(function)
        if restore is None:
            return KerasSession(tf, keras, model, given, function)
        return StatefulSession(tf, keras, model, given, function, restore)


RUNTIME = KerasRuntime()
"""The runtime of the kind ``keras``."""


class KerasSession:
    """One loaded model.

    Args:
        given: TensorFlow's specs of the inputs by name.
        function: the model as one graph, see :func:`_traced`.

    Attributes:
        inputs: specs under the names of the model's inputs.
        outputs: specs under the names of the layers that compute them, or of the dictionary that the model returns.
        signatures: none; Keras files have one entry point.
        runtime: such as ``keras 3.15.1 (tensorflow 2.21.0)``.
        device: ``cpu``.
        memory_bytes: the weights.
    """

    device = "cpu"
    signatures: Mapping[str, Signature] = {}

    def __init__(self, tf: Any, keras: Any, model: Any, given: Mapping[str, Any], function: Any) -> None:
        self._tf = tf
        self._model = model
        inputs = [tensor_spec(name, spec) for name, spec in given.items()]
        # Keras itself demands as many rows of all inputs; its graph would broadcast a single one.
        self.inputs: Sequence[TensorSpec] = tuple(
            spec._replace(batch="batch") if spec.shape[:1] == (-1,) and not spec.open else spec for spec in inputs
        )
        self._convert = list(input_converters(tf, given).items())
        self._function: Any = function
        results = list(self._function.structured_outputs)
        names = _output_names(model, len(results))
        self.outputs: Sequence[TensorSpec] = tuple(map(tensor_spec, names, results))
        self.runtime = f"keras {keras.__version__} (tensorflow {tf.__version__})"
        self.memory_bytes = sum(_weight_bytes(tf, variable) for variable in model.variables)

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: a signature was asked for, or TensorFlow says that the input does not fit.
        """
        if self._function is None:
            raise RuntimeError("the session is closed")
        if signature is not None:
            raise ValueError(f"the model has no signature {signature!r}; Keras files have none")
        with input_errors(self._tf):
            results = self._function(*[convert(inputs[name]) for name, convert in self._convert])
        return {spec.name: to_array(tensor.numpy()) for spec, tensor in zip(self.outputs, results, strict=True)}

    def close(self) -> None:
        """Let go of the weights; models refer to themselves, so they go with the engine's next collection."""
        self._model = self._function = None


class StatefulSession(KerasSession):
    """A model that keeps state from run to run, as recurrent layers with ``stateful=True`` do.

    Args:
        restore: gives its variables the values that they had in the file.
    """

    def __init__(
        self, tf: Any, keras: Any, model: Any, given: Mapping[str, Any], function: Any, restore: Callable[[], None]
    ) -> None:
        super().__init__(tf, keras, model, given, function)
        self._restore: Callable[[], None] | None = restore

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`."""
        if self._restore is not None:
            self._restore()

    def close(self) -> None:
        """Let go of the weights, and of the state that they began with."""
        self._restore = None
        super().close()


def _import_keras() -> Any:
    """Keras 3 on TensorFlow.

    Raises:
        RuntimeMissingError: it is missing, too old, or set to another framework.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    try:
        keras = import_framework("keras")
    except Exception as error:
        raise RuntimeMissingError(f"Keras is not usable ({one_line(error)}); run: {INSTALL}") from error
    version = tuple(int(part) for part in re.findall(r"\d+", keras.__version__)[:2])
    if version < MINIMUM_KERAS:
        raise RuntimeMissingError(
            f"Keras {keras.__version__} is too old to load model files safely; install {MINIMUM_KERAS[0]}."
            f"{MINIMUM_KERAS[1]} or newer: pip install -U 'pocketserve[tensorflow]'"
        )
    if keras.backend.backend() != "tensorflow":
        raise RuntimeMissingError(
            f"Keras is set to compute with {keras.backend.backend()}; set KERAS_BACKEND=tensorflow for the server"
        )
    return keras


def _check_file(path: Path) -> str:
    """Refuse a file that is plainly no whole model, without TensorFlow.

    Returns:
        The version of Keras that saved it, where the file tells it in the open; else "".
    """
    try:
        with path.open("rb") as file:
            head = file.read(8)
        if path.suffix not in ENDINGS and path.suffix.lower() in ENDINGS:
            raise ModelLoadError(
                f"{path.name}: Keras wants the ending in small letters, {path.suffix.lower()}; rename it"
            )
        if head == _HDF5 and path.suffix != ".keras":
            return ""
        if path.suffix != ".keras":
            raise ModelLoadError(f"{path.name} is no HDF5 file; copy or save the model again")
        return _check_archive(path)
    except OSError as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error.strerror or error}") from error


def _check_archive(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inflated = sum(info.file_size for info in archive.infolist())
            if "config.json" not in names:
                raise ModelLoadError(f"{path.name} is a zip archive without config.json, so no Keras model")
            if inflated > MAX_INFLATION * path.stat().st_size:
                raise ModelLoadError(f"{path.name} would inflate to {inflated} bytes, which no Keras model does")
            metadata = json.loads(archive.read("metadata.json")) if "metadata.json" in names else {}
    except (zipfile.BadZipFile, ValueError, RecursionError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ModelLoadError(
            f"{path.name} is no whole Keras archive ({one_line(error)}); copy or save the model again"
        ) from error
    return str(metadata.get("keras_version", "")) if isinstance(metadata, dict) else ""


_UNKNOWN_CLASS = re.compile(
    r"(?:Could not (?:locate|deserialize) (?:class|function)|Unknown (?:layer|object|\w+ function):?) "
    r"'?([\w.>-]*\w)"
)
_UNKNOWN_OPTION = re.compile(
    r"[Uu]nrecognized keyword arguments? passed to (\w+): (\{.*?\})|unexpected keyword argument '(\w+)'"
)
_UNSAFE = re.compile(
    r"safe_mode|[Uu]nsafe|arbitrary code|potential risk|Not allowed|is not allowed|disallowed|ExternalLink"
)
_OLD_CLASSES = frozenset({"TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceProperty", "ModuleWrapper"})


def _innermost(error: Exception) -> str:
    """Return what went wrong, without the configurations of all layers around it that Keras prints too."""
    text = str(error).rpartition("Exception encountered:")[2].partition("Full object config:")[0]
    if isinstance(error, KeyError):
        text = f"KeyError: {text}"
    return one_line(ValueError(text.strip() or type(error).__name__), 1000)


def _explain(name: str, title: str, saved_by: str, text: str) -> str:
    """One sentence for people out of Keras's error text."""
    origin = f" (it was saved by Keras {saved_by}, this is {title})" if saved_by else f" (this is {title})"
    if "Lambda" in text and _UNSAFE.search(text):
        return (
            f"{name} has a Lambda layer, which is Python code inside the file and is not run; save the model with "
            "built-in layers instead, or convert it to .tflite or a SavedModel where you trust it"
        )
    if _UNSAFE.search(text):
        reason = text[max(text.find("Not allowed"), 0) :].partition(" List of objects")[0]
        return f"{name} is not loaded because it is unsafe: {excerpt(reason)}"
    if unknown := _UNKNOWN_CLASS.search(text):
        return _explain_unknown(name, unknown[1], origin)
    if option := _UNKNOWN_OPTION.search(text):
        what = f"{option[1]}: {option[2]}" if option[1] else f"{option[3]!r}"
        return (
            f"{name} has layers with options that this Keras does not know ({what}){origin}; load and save it again "
            "with the Keras that made it, as .keras or SavedModel, or convert it to .tflite there"
        )
    if "No model config found" in text:
        return f"{name} holds weights only, without the model; save the whole model with model.save()"
    if re.search(
        r"truncated file|file signature not found|[Uu]nable to (?:synchronously )?open|bad object header", text
    ):
        return f"{name} is damaged or cut short ({excerpt(text, 200)}); copy or save the file again"
    return f"Keras cannot load {name}{origin}: {excerpt(text)}; copy it again, or save it again with this Keras"


def _explain_unknown(name: str, what: str, origin: str) -> str:
    if what in _OLD_CLASSES:
        return (
            f"{name} calls TensorFlow operators outside of layers ({what}), which Keras 3 cannot read back{origin}; "
            "export it as SavedModel or .tflite with the TensorFlow that made it"
        )
    return (
        f"{name} needs {what}, which is custom code or belongs to another version of Keras{origin}; export the model "
        "as SavedModel or .tflite where that code is"
    )


def _symbolic_inputs(tf: Any, model: Any, file_name: str) -> dict[str, Any]:
    """TensorSpecs by input name, in the model's order."""
    try:
        tensors = list(model.inputs or ())
    except AttributeError:  # a Sequential model that was never built
        tensors = []
    if not tensors:
        raise ModelLoadError(f"{file_name} does not say what it takes; give the model an Input and save it again")
    if any(getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False) for tensor in tensors):
        raise ModelLoadError(f"{file_name} has sparse or ragged inputs, which cannot be served")
    specs = {}
    for position, tensor in enumerate(tensors):
        name = tensor.name if tensor.name not in specs else f"{tensor.name}_{position}"
        specs[name] = tf.TensorSpec(tensor.shape, tensor.dtype, name=f"input_{position}")
    return specs


def _traced(tf: Any, model: Any, specs: Sequence[Any], file_name: str) -> Any:
    """One graph for all sizes of the free dimensions; its arguments and results are in the model's order."""
    # A model whose inputs were given as a dictionary takes a flat list too, but not the other way round.
    single = len(specs) == 1

    def call(*tensors: Any) -> list[Any]:
        results = model(tensors[0] if single else _restructured(tf, model, tensors), training=False)
        flat: list[Any] = tf.nest.flatten(results)
        return flat

    try:
        return tf.function(call, autograph=False).get_concrete_function(*specs)
    except Exception as error:
        raise ModelLoadError(f"{file_name} was loaded, but its graph cannot be built: {one_line(error)}") from error


def _restructured(tf: Any, model: Any, tensors: Sequence[Any]) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    return list(tensors) if structure is None else tf.nest.pack_sequence_as(structure, list(tensors))


def _output_names(model: Any, count: int) -> list[str]:
    """Names by flat position: keys of a dictionary, else the layers', else numbers."""
    structure = getattr(model, "_outputs_struct", None)
    if isinstance(structure, Mapping) and len(structure) == count:
        return sorted(map(str, structure))  # the order in which TensorFlow flattens
    names = [str(name) for name in getattr(model, "output_names", None) or ()]
    if not names and count == 1 and getattr(model, "layers", None):
        names = [str(model.layers[-1].name)]  # a Sequential model does not list names
    if len(names) != count or len(set(names)) != count:
        return [f"output_{position}" for position in range(count)]
    return names


def _weight_bytes(tf: Any, variable: Any) -> int:
    size = 1
    for dimension in variable.shape:
        size *= int(dimension or 1)
    return size * int(tf.as_dtype(variable.dtype).size or 1)
