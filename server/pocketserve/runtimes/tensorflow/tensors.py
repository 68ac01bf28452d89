"""TensorFlow's tensors and NumPy's, for the SavedModel and the Keras runtimes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array, TensorSpec, datatype_of


def tensor_spec(name: str, spec: Any) -> TensorSpec:
    """Return what TensorFlow says of a tensor; anything with ``dtype`` and ``shape``.

    A tensor of unknown rank takes any shape.

    Raises:
        ModelLoadError: the protocol cannot carry it.
    """
    dtype = getattr(spec, "dtype", None)
    if dtype is None or not hasattr(spec, "shape") or type(spec).__name__ in ("RaggedTensorSpec", "SparseTensorSpec"):
        raise ModelLoadError(f"tensor {name!r} is sparse, ragged or no tensor at all, which cannot be served")
    try:
        datatype = "BF16" if dtype.name == "bfloat16" else datatype_of(dtype.as_numpy_dtype)
    except (ValueError, TypeError) as error:
        raise ModelLoadError(f"tensor {name!r} has type {dtype.name}, which cannot be served") from error
    if spec.shape.rank is None:
        return TensorSpec(name, datatype, (-1,), open=True)
    return TensorSpec(name, datatype, tuple(-1 if size is None else int(size) for size in spec.shape.as_list()))


def input_converters(tf: Any, specs: Mapping[str, Any]) -> dict[str, Callable[[Array], Any]]:
    """Per input, a function from an array to a tensor of the right type."""
    return {name: _converter(tf, spec.dtype) for name, spec in specs.items()}


def _converter(tf: Any, dtype: Any) -> Callable[[Array], Any]:
    if dtype.name == "bfloat16":
        return lambda array: tf.bitcast(tf.convert_to_tensor(array, tf.uint16), tf.bfloat16)
    return lambda array: tf.convert_to_tensor(array, dtype)


def to_array(value: Any) -> Array:
    """A result as an array, of shape () too; text keeps its bytes, also zeros at the end."""
    if isinstance(value, bytes | str):
        text = np.empty((), dtype=object)
        text[()] = value
        return text
    array = np.asarray(value)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


@contextlib.contextmanager
def input_errors(tf: Any) -> Any:
    """Turn TensorFlow's complaints about an input into ValueError, as other frameworks raise."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, TypeError) as error:
        raise ValueError(_complaint(error)) from error


def _complaint(error: BaseException) -> str:
    """Return what TensorFlow says without the Python frames and nodes that it says it with."""
    lines = str(error).splitlines()
    noise = (" ", "\t", "Graph execution error", "Detected at node", "Stack trace", "Errors may have", "Input Source")
    plain = [line for line in lines if line.strip() and not line.startswith(noise)]
    text = plain[0].partition(" [Op:")[0] if plain else str(error)
    return one_line(ValueError(text))


def one_line(error: BaseException | None, limit: int = 300) -> str:
    """An error's text as part of a sentence."""
    text = f"KeyError: {error}" if isinstance(error, KeyError) else error
    return excerpt(text, limit) or type(error).__name__
