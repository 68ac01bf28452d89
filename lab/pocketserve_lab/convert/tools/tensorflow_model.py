"""Keras models and SavedModels alike: a SavedModel with a signature, from which all of TensorFlow's tools convert."""

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
    """A SavedModel, and the entry point that is converted.

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
    """Yield the request's model as a SavedModel, which goes with the context if it was made for it.

    Args:
        rows: of a Keras model, whose layers are traced anew for so many rows; None takes any number.

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
    """Write a Keras model as a SavedModel. Only a dictionary of outputs gives them names."""
    import keras

    try:
        model = keras.models.load_model(request.source, compile=False)
        names = [tensor.name for tensor in request.outputs]
        if len(model.outputs or ()) == len(names):
            model = keras.Model(
                model.inputs, dict(zip(names, model.outputs, strict=True))
            )
        if rows is None:
            model.export(folder, "tf_saved_model", verbose=False)
        else:
            _export_rows(keras, model, folder, rows)
    except Exception as error:  # a layer may raise anything
        words = " ".join(str(error).split())
        raise ConversionError(
            f"{request.title} does not load: {words:.300}", detail=str(error)
        ) from error


def _export_rows(keras: Any, model: Any, folder: Path, rows: int) -> None:
    """Write a Keras model for a number of rows. ``model.export`` would take any."""
    import tensorflow as tf

    specs = [
        tf.TensorSpec((rows, *tensor.shape[1:]), tensor.dtype, name=tensor.name)
        for tensor in model.inputs
    ]
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serve", model.__call__, [specs if len(specs) > 1 else specs[0]]
    )
    archive.write_out(folder, verbose=False)


def _signature(request: ConversionRequest, folder: Path) -> SavedSignature:
    import tensorflow as tf

    try:
        signatures = dict(tf.saved_model.load(str(folder)).signatures)
    except Exception as error:  # TensorFlow's errors have no common class with Python's
        words = " ".join(str(error).split())
        raise ConversionError(
            f"{request.title} does not load: {words:.300}", detail=str(error)
        ) from error
    key = str(
        request.options.get("signature")
        or (_DEFAULT if _DEFAULT in signatures else next(iter(signatures), ""))
    )
    if key not in signatures:
        keys = ", ".join(signatures) or "none"
        raise ConversionError(
            f"{request.title} has no signature {key!r}, but {keys}; a conversion needs one"
        )
    function = signatures[key]
    inputs = _matched(
        [tensor.name for tensor in request.inputs],
        list(function.structured_input_signature[1]),
    )
    outputs = _matched(
        [tensor.name for tensor in request.outputs], list(function.structured_outputs)
    )
    return SavedSignature(folder, key, inputs, outputs)


def _matched(names: list[str], signature: list[str]) -> dict[str, str]:
    """Return the signature's name for each of the source's: the same one, else the one at its place."""
    if set(names) == set(signature) or len(names) != len(signature):
        return {name: name for name in signature}
    return dict(zip(names, signature, strict=True))


def missing_operators(error: Exception) -> list[str]:
    """Return the names of operators that an error of TensorFlow's tools complains about."""
    import re

    text = str(error)
    unsupported = r"Unsupported Ops[^:\n]*[:\n]\s*([\w, ]+)"
    matches: Any = re.findall(
        rf"\btf\.([A-Z]\w+)|Flex(\w+)|{unsupported}|op ([A-Z]\w+) is not", text
    )
    return sorted({name for groups in matches for name in groups if name})
