"""Run Keras models: ``.keras``, ``.h5`` and ``.hdf5`` files.

Nothing in a model file is run as code: its configuration may name known classes only (``keras_config``), ``safe_mode``
refuses Lambda layers, and versions of Keras in which it could be got round are refused themselves. A model is called
through one traced function, ten times faster than calling the model object.
"""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.framework_import import require_framework
from pocketserve.runtimes.model_files import file_errors, load_errors
from pocketserve.runtimes.tensorflow import FORMATS, INSTALL
from pocketserve.tensors import Array, TensorSpec

from . import common
from .keras_config import (
    check_config,
    keras_configuration,
    layers_with_neutral_options,
    without_neutral_options,
)

MINIMUM_KERAS = (3, 14)
"""In older versions, files could run code and access other files.

See CVE-2025-9905, CVE-2026-1669 and GHSA-hqp4-2352-xf5r.
"""

MAX_INFLATION = 100
"""Limit of an archive's compression ratio.

Keras does not compress; a zip bomb has a ratio of 1,000.
"""

MAX_METADATA_BYTES = 1 << 16
"""Keras writes its version and a date: some dozens of bytes."""


class KerasRuntime:
    """Opens Keras models."""

    platform = "keras"
    option_keys: frozenset[str] = frozenset()
    fixed_threads = True  # TensorFlow takes it once for the process

    def open(self, source: ModelSource) -> common.TensorFlowSession:
        """Load a model.

        Outputs have the names of their layers, or the keys of the model's dictionary.
        """
        name = source.path.name
        tf, keras, model = load_keras_model(source)
        specs = _symbolic_inputs(tf, model, name)
        function = _trace(tf, model, list(specs.values()), name)
        loaded = common.LoadedObject(
            model, restorers=common.variable_restorers(function)
        )
        entry = _entry(tf, model, specs, function)
        return common.open_session(
            loaded,
            entry,
            f"keras {keras.__version__} (tensorflow {tf.__version__})",
            _weight_bytes(tf, model),
        )


RUNTIME = KerasRuntime()


def load_keras_model(source: ModelSource) -> tuple[Any, Any, Any]:
    """Check a file and load it; return TensorFlow, Keras and the model.

    Raises:
        ModelLoadError: the file cannot be served.
    """
    saved_by = _check_file(source.path)
    tf = common.import_tensorflow(source.threads)
    keras = _import_keras()
    title = f"Keras {keras.__version__}"
    with load_errors(
        lambda error: _explain(source.path.name, title, saved_by, _innermost(error))
    ):
        check_config(source.path)
        layers = _tolerant_layers(
            keras, layers_with_neutral_options(keras_configuration(source.path))
        )
        model = keras.models.load_model(
            source.path, layers, compile=False, safe_mode=True
        )
    return tf, keras, model


def _tolerant_layers(keras: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return layer classes that accept options of Keras 2, by name."""
    return {
        name: _tolerant_layer(getattr(keras.layers, name), name)
        for name in sorted(names)
    }


def _tolerant_layer(layer: Any, name: str) -> Any:
    def from_config(cls: Any, options: Mapping[str, Any]) -> Any:
        return layer.from_config(without_neutral_options(name, options))

    return type(name, (layer,), {"from_config": classmethod(from_config)})


def _entry(
    tf: Any, model: Any, specs: Mapping[str, Any], function: Any
) -> common.EntryPoint:
    results = list(function.structured_outputs)
    outputs = dict(zip(_output_names(model, len(results)), results, strict=True))
    converters = common.input_converters(tf, specs).items()

    def invoke(arrays: Mapping[str, Array]) -> Iterable[Any]:
        values = [convert(arrays[name]) for name, convert in converters]
        return [tensor.numpy() for tensor in function(*values)]

    entry = common.make_entry(tf, specs, outputs, invoke)
    inputs = _with_batch(entry.signature.inputs)
    return entry._replace(signature=entry.signature._replace(inputs=inputs))


def _with_batch(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Mark the free first dimensions of inputs as the batch.

    Keras itself demands as many rows of all inputs; its graph would broadcast a single
    one.
    """
    marked = []
    for spec in specs:
        if spec.shape[:1] == (-1,) and not spec.open:
            marked.append(spec._replace(batch="batch"))
        else:
            marked.append(spec)
    return marked


def _weight_bytes(tf: Any, model: Any) -> int:
    """Return the memory of a model's variables."""
    total = 0
    for variable in model.variables:
        sizes = [int(size or 1) for size in variable.shape]
        item_bytes = tf.as_dtype(variable.dtype).size
        total += math.prod(sizes) * int(item_bytes or 1)
    return total


def _import_keras() -> Any:
    """Import Keras 3 on TensorFlow."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    keras = require_framework("keras", "Keras", INSTALL, MINIMUM_KERAS)
    if keras.backend.backend() != "tensorflow":
        raise RuntimeMissingError(
            f"Keras is set to compute with {keras.backend.backend()}; set KERAS_BACKEND=tensorflow for the server"
        )
    return keras


def _check_file(path: Path) -> str:
    """Reject an incomplete model; return its Keras version, if it is in the file."""
    suffixes, ((_, hdf5),) = FORMATS[0].suffixes, FORMATS[0].magic
    with file_errors(path.name):
        with path.open("rb") as file:
            head = file.read(len(hdf5))
        # Keras checks the suffix, in small letters only.
        if path.suffix not in suffixes and path.suffix.lower() in suffixes:
            raise ModelLoadError(
                f"{path.name}: Keras wants the ending in small letters, {path.suffix.lower()}; rename it"
            )
        if path.suffix == ".keras":
            return _check_archive(path)
    if head != hdf5:
        raise ModelLoadError(
            f"{path.name} is not an HDF5 file; copy or save the model again"
        )
    return ""


def _check_archive(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inflated = sum(info.file_size for info in archive.infolist())
            if "config.json" not in names:
                raise ModelLoadError(
                    f"{path.name} is a zip archive without config.json, so it is not a "
                    "Keras model"
                )
            if inflated > MAX_INFLATION * path.stat().st_size:
                raise ModelLoadError(
                    f"{path.name} would inflate to {inflated} bytes, which no Keras model does"
                )
            metadata: Any = {}
            if "metadata.json" in names:
                with archive.open("metadata.json") as file:
                    content = file.read(MAX_METADATA_BYTES + 1)
                if len(content) <= MAX_METADATA_BYTES:
                    metadata = json.loads(content)
    except (
        zipfile.BadZipFile,
        ValueError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        EOFError,
    ) as error:
        raise ModelLoadError(
            f"{path.name} is not a complete Keras archive ({common.error_text(error)}); "
            "copy or save the model again"
        ) from error
    if isinstance(metadata, dict):
        return str(metadata.get("keras_version", ""))
    return ""


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
_OLD_CLASSES = frozenset(
    {
        "TFOpLambda",
        "SlicingOpLambda",
        "ClassMethod",
        "InstanceProperty",
        "ModuleWrapper",
    }
)


def _innermost(error: Exception) -> str:
    """Return the cause of an error without the layers' configurations."""
    text = (
        str(error)
        .rpartition("Exception encountered:")[2]
        .partition("Full object config:")[0]
    )
    if isinstance(error, KeyError):
        text = f"KeyError: {text}"
    return excerpt(text, 1000) or type(error).__name__


def _explain(name: str, title: str, saved_by: str, text: str) -> str:
    """Explain Keras's error text."""
    origin = f" (this is {title})"
    if saved_by:
        origin = f" (it was saved by Keras {saved_by}, this is {title})"
    if "Lambda" in text and _UNSAFE.search(text):
        return (
            f"{name} has a Lambda layer, which is Python code inside the file and is not run; save the model with "
            "built-in layers instead, or convert it to .tflite or a SavedModel where you trust it"
        )
    if _UNSAFE.search(text):
        start = max(text.find("Not allowed"), 0)
        reason, _, _ = text[start:].partition(" List of objects")
        return f"{name} is not loaded because it is unsafe: {excerpt(reason)}"
    unknown = _UNKNOWN_CLASS.search(text)
    if unknown:
        other = ""
        if title != f"Keras {saved_by}":
            other = f" or belongs to another version of Keras{origin}"
        return _explain_class(name, unknown[1], origin, other)
    option = _UNKNOWN_OPTION.search(text)
    if option:
        options = f"{option[3]!r}"
        if option[1]:
            options = f"{option[1]}: {option[2]}"
        return (
            f"{name} has layers with options that this Keras does not know ({options}){origin}; load and save it again "
            "with the Keras that made it, as .keras or SavedModel, or convert it to .tflite there"
        )
    if "No model config found" in text:
        return f"{name} holds weights only, without the model; save the whole model with model.save()"
    if re.search(
        r"truncated file|file signature not found|[Uu]nable to (?:synchronously )?open|bad object header",
        text,
    ):
        return f"{name} is damaged or truncated ({excerpt(text, 200)}); copy or save the file again"
    return f"Keras cannot load {name}{origin}: {excerpt(text)}; copy it again, or save it again with this Keras"


def _explain_class(name: str, unknown: str, origin: str, other: str) -> str:
    """Explain a class that Keras does not know."""
    if unknown in _OLD_CLASSES:
        return (
            f"{name} calls TensorFlow operators outside of layers ({unknown}), which "
            f"Keras 3 cannot read back{origin}; export it as SavedModel or .tflite "
            "with the TensorFlow that made it"
        )
    return (
        f"{name} needs {unknown}, which is custom code{other}; export the model as "
        "SavedModel or .tflite where that code is"
    )


def _symbolic_inputs(tf: Any, model: Any, file_name: str) -> dict[str, Any]:
    """Return TensorSpecs by input name, in the model's order."""
    try:
        tensors = list(model.inputs or ())
    except AttributeError:  # a Sequential model that was never built
        tensors = []
    if not tensors:
        raise ModelLoadError(
            f"{file_name} does not state its inputs; give the model an Input and save "
            "it again"
        )
    for tensor in tensors:
        if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
            raise ModelLoadError(
                f"{file_name} has sparse or ragged inputs, which cannot be served"
            )
    specs: dict[str, Any] = {}
    for position, tensor in enumerate(tensors):
        name = tensor.name
        if name in specs:
            name = f"{name}_{position}"
        specs[name] = tf.TensorSpec(
            tensor.shape, tensor.dtype, name=f"input_{position}"
        )
    return specs


def _trace(tf: Any, model: Any, specs: Sequence[Any], file_name: str) -> Any:
    """Trace one graph for all sizes, with tensors in the model's order."""

    def call(*tensors: Any) -> Any:
        # A model whose inputs were given as a dictionary takes a flat list too, but not the other way round.
        structure = getattr(model, "_inputs_struct", None)
        inputs = (
            list(tensors)
            if structure is None
            else tf.nest.pack_sequence_as(structure, list(tensors))
        )
        return tf.nest.flatten(
            model(tensors[0] if len(tensors) == 1 else inputs, training=False)
        )

    fault = f"{file_name} was loaded, but its graph cannot be built"
    with load_errors(lambda error: f"{fault}: {common.error_text(error)}"):
        return tf.function(call, autograph=False).get_concrete_function(*specs)


def _output_names(model: Any, count: int) -> list[str]:
    """Return output names: keys of a dictionary, layer names, or numbers."""
    structure = getattr(model, "_outputs_struct", None)
    if isinstance(structure, Mapping) and len(structure) == count:
        return sorted(map(str, structure))  # the order in which TensorFlow flattens
    names = _layer_names(model, count)
    if len(names) != count or len(set(names)) != count:
        return [f"output_{position}" for position in range(count)]
    return names


def _layer_names(model: Any, count: int) -> list[str]:
    """Return the names of the layers with outputs; empty if unknown."""
    names = getattr(model, "output_names", None)
    if names:
        return [str(name) for name in names]
    # A Sequential model does not list names.
    layers = getattr(model, "layers", None)
    if count == 1 and layers:
        return [str(layers[-1].name)]
    return []
