"""Keras models and SavedModels as a SavedModel with a signature.

All of TensorFlow's tools convert from it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve_lab.convert.converter import ConversionError, ConversionRequest

FORMATS = ("keras", "savedmodel")
_DEFAULT = "serving_default"


class SavedSignature(NamedTuple):
    """A SavedModel, and the signature to convert.

    Attributes:
        inputs, outputs: the source's names -> the signature's, in the source's order.
    """

    folder: Path
    key: str
    inputs: dict[str, str]
    outputs: dict[str, str]


@contextmanager
def saved_signature(
    request: ConversionRequest, rows: int | None = None
) -> Iterator[SavedSignature]:
    """Yield the request's model as a SavedModel, which may be temporary.

    Args:
        rows: of a Keras model, whose layers are traced again for so many rows; None
            takes any number.

    Raises:
        ConversionError: it does not load, or has no such signature.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if request.format == "savedmodel":
        yield _signature(request, request.source)
        return
    folder = Path(tempfile.mkdtemp(dir=request.output.parent))
    try:
        _export(request, folder, rows)
        yield _signature(request, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _export(request: ConversionRequest, folder: Path, rows: int | None) -> None:
    """Write a Keras model as a SavedModel, with named outputs."""
    import keras

    try:
        model = keras.models.load_model(request.source, compile=False)
        names = [tensor.name for tensor in request.outputs]
        if len(model.outputs or ()) == len(names):
            # Only a dictionary of outputs gives them names.
            outputs = dict(zip(names, model.outputs, strict=True))
            model = keras.Model(model.inputs, outputs)
        if rows is None:
            model.export(folder, "tf_saved_model", verbose=False)
        else:
            _export_rows(keras, model, folder, rows)
    # A layer may raise anything.
    except Exception as error:
        raise _load_error(request, error) from error


def _load_error(request: ConversionRequest, error: Exception) -> ConversionError:
    text = " ".join(str(error).split())
    return ConversionError(
        f"{request.title} does not load: {text:.300}", detail=str(error)
    )


def _export_rows(keras: Any, model: Any, folder: Path, rows: int) -> None:
    """Write a Keras model for a fixed number of rows.

    ``model.export`` takes any.
    """
    import tensorflow as tf

    specs = []
    for tensor in model.inputs:
        shape = rows, *tensor.shape[1:]
        specs.append(tf.TensorSpec(shape, tensor.dtype, name=tensor.name))
    archive = keras.export.ExportArchive()
    archive.track(model)
    argument = specs if len(specs) > 1 else specs[0]
    archive.add_endpoint("serve", model.__call__, [argument])
    archive.write_out(folder, verbose=False)


def _signature(request: ConversionRequest, folder: Path) -> SavedSignature:
    import tensorflow as tf

    try:
        signatures = dict(tf.saved_model.load(str(folder)).signatures)
    # TensorFlow's errors have no common class with Python's.
    except Exception as error:
        raise _load_error(request, error) from error
    key = _signature_key(request, signatures)
    function = signatures[key]
    inputs = _matched(
        [tensor.name for tensor in request.inputs],
        list(function.structured_input_signature[1]),
    )
    outputs = _matched(
        [tensor.name for tensor in request.outputs], list(function.structured_outputs)
    )
    return SavedSignature(folder, key, inputs, outputs)


def _signature_key(request: ConversionRequest, signatures: dict[str, Any]) -> str:
    """Return the requested signature, else the default one, else the first."""
    key = _DEFAULT
    if key not in signatures:
        key = next(iter(signatures), "")
    key = str(request.options.get("signature") or key)
    if key not in signatures:
        keys = ", ".join(signatures) or "none"
        raise ConversionError(
            f"{request.title} has no signature {key!r}, but {keys}; "
            "a conversion needs one"
        )
    return key


def _matched(names: list[str], signature: list[str]) -> dict[str, str]:
    """Match names to the signature's, by name or order."""
    if set(names) == set(signature) or len(names) != len(signature):
        return {name: name for name in signature}
    return dict(zip(names, signature, strict=True))


def missing_operators(error: Exception) -> list[str]:
    """Return the operators that an error of TensorFlow's tools reports."""
    import re

    unsupported = r"Unsupported Ops[^:\n]*[:\n]\s*([\w, ]+)"
    pattern = rf"\btf\.([A-Z]\w+)|Flex(\w+)|{unsupported}|op ([A-Z]\w+) is not"
    names: set[str] = set()
    for groups in re.findall(pattern, str(error)):
        names.update(filter(None, groups))
    return sorted(names)
