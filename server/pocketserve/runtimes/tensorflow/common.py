"""Import TensorFlow, convert tensors and explain errors.

TensorFlow has no type information; its modules, tensors and functions are Any.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError, Signature
from pocketserve.runtimes.framework_import import (
    FRAMEWORK_ENVIRONMENT,
    require_framework,
)
from pocketserve.runtimes.tensorflow import INSTALL
from pocketserve.tensors import Array, TensorSpec, datatype_of

_WRITING = re.compile(r"Assign|Resource(?:Scatter|Apply|Sparse)")
"""In the names of all operators that write to a variable."""

_configuring = threading.Lock()


def import_tensorflow(threads: int) -> Any:
    """Import TensorFlow on the CPU; the first model sets the threads."""
    # With oneDNN, as on x86-64, TensorFlow has an allocator of its own that never gives anything back.
    os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "true")
    tf = require_framework("tensorflow", "TensorFlow", INSTALL)
    if (
        os.environ["TF_CPP_MIN_LOG_LEVEL"]
        == FRAMEWORK_ENVIRONMENT["TF_CPP_MIN_LOG_LEVEL"]
    ):
        tf.get_logger().setLevel("ERROR")
    # Raises if TensorFlow was already used, here or in the embedding program.
    with (
        _configuring,
        contextlib.suppress(RuntimeError),
    ):
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    return tf


class EntryPoint(NamedTuple):
    """An entry point of a model: its specs and its function."""

    signature: Signature
    call: Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(slots=True)
class LoadedObject:
    """A model as a loader returns it."""

    owner: Any  # keeps the variables alive
    entries: dict[str, EntryPoint] = field(default_factory=dict)  # by signature
    # By signature: the reason why it can't be served.
    problems: dict[str, str] = field(default_factory=dict)
    # Releases resources that the garbage collector does not.
    close: Callable[[], None] = lambda: None
    # give the variables that runs change the values that they had in the file
    restorers: list[Callable[[], None]] = field(default_factory=list)


class TensorFlowSession:
    """A loaded model."""

    device = "cpu"

    def __init__(
        self, model: LoadedObject, default: EntryPoint, runtime: str, memory_bytes: int
    ) -> None:
        self._model: LoadedObject | None = model
        self._default = default
        self.inputs: Sequence[TensorSpec] = default.signature.inputs
        self.outputs: Sequence[TensorSpec] = default.signature.outputs
        self.signatures: Mapping[str, Signature] = {
            name: entry.signature for name, entry in model.entries.items()
        }
        self.runtime = runtime
        self.memory_bytes = memory_bytes

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        if self._model is None:
            raise RuntimeError("the session is closed")
        entry = self._default if signature is None else self._model.entries[signature]
        return entry.call(inputs)

    def close(self) -> None:
        """Release the variables.

        The objects have cycles, so the engine's next garbage collection frees them."""
        if self._model is not None:
            self._model.close()
            self._model = None
            del self._default


class StatefulTensorFlowSession(TensorFlowSession):
    """A loaded model whose only entry point changes variables."""

    def reset(self) -> None:
        for restore in self._model.restorers if self._model is not None else ():
            restore()


def open_session(
    model: LoadedObject, default: EntryPoint, runtime: str, memory_bytes: int
) -> TensorFlowSession:
    """Return a session, with a reset if its only entry point changes variables.

    As with TFLite: what has several signatures decides itself what becomes of its state, and keeps it.
    """
    stateful = model.restorers and len(model.entries) < 2
    return (StatefulTensorFlowSession if stateful else TensorFlowSession)(
        model, default, runtime, memory_bytes
    )


def make_entry(
    tf: Any,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    invoke: Callable[[Mapping[str, Array]], Iterable[Any]],
) -> EntryPoint:
    """Return the entry point of a function.

    Args:
        inputs, outputs: TensorFlow's tensors or specs by name.
        invoke: returns NumPy's results for arrays by name, in the order of the outputs.
    """
    input_specs = _tensor_specs(inputs)
    output_specs = _tensor_specs(outputs)
    input_errors = (
        tf.errors.InvalidArgumentError,
        tf.errors.OutOfRangeError,
        TypeError,
    )

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        try:
            values = invoke(arrays)
        except input_errors as error:
            raise ValueError(_complaint(error)) from error
        results = {}
        for spec, value in zip(output_specs, values, strict=True):
            results[spec.name] = _as_array(value)
        return results

    return EntryPoint(Signature(input_specs, output_specs), call)


def variable_restorers(function: Any) -> list[Callable[[], None]]:
    """Return functions that restore a function's present variables.

    The list is empty if no run changes them.

    State elsewhere, such as in a table that a run adds to, is not seen.
    """
    graph = function.graph.as_graph_def()
    bodies = (graph.node, *(function.node_def for function in graph.library.function))
    if not any(_WRITING.search(node.op) for nodes in bodies for node in nodes):
        return []
    # Reading costs no memory: TensorFlow makes a copy when it writes to a variable whose value is held elsewhere.
    values = [(variable, variable.read_value()) for variable in function.variables]

    def restore() -> None:
        for variable, value in values:
            variable.assign(value, read_value=False)

    return [restore]


def _tensor_specs(specs: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    return tuple(tensor_spec(name, spec) for name, spec in specs.items())


def tensor_spec(name: str, spec: Any) -> TensorSpec:
    """Return the spec of anything with ``dtype`` and ``shape``."""
    dtype = getattr(spec, "dtype", None)
    is_dense = type(spec).__name__ not in ("RaggedTensorSpec", "SparseTensorSpec")
    if dtype is None or not hasattr(spec, "shape") or not is_dense:
        raise ModelLoadError(
            f"tensor {name!r} is sparse, ragged or no tensor at all, which cannot be served"
        )
    datatype = _datatype(name, dtype)
    if spec.shape.rank is None:
        return TensorSpec(name, datatype, (-1,), open=True)
    sizes = []
    for size in spec.shape.as_list():
        if size is None:
            sizes.append(-1)
        else:
            sizes.append(int(size))
    return TensorSpec(name, datatype, tuple(sizes))


def _datatype(name: str, dtype: Any) -> str:
    """Return the protocol's name of a type."""
    if dtype.name == "bfloat16":
        return "BF16"
    try:
        return datatype_of(dtype.as_numpy_dtype)
    except (ValueError, TypeError) as error:
        raise ModelLoadError(
            f"tensor {name!r} has type {dtype.name}, which cannot be served"
        ) from error


def input_converters(
    tf: Any, specs: Mapping[str, Any]
) -> dict[str, Callable[[Array], Any]]:
    """Return a converter from array to tensor for each input."""

    def converter(dtype: Any) -> Callable[[Array], Any]:
        if dtype.name == "bfloat16":
            return lambda array: tf.bitcast(
                tf.convert_to_tensor(array, tf.uint16), tf.bfloat16
            )
        return lambda array: tf.convert_to_tensor(array, dtype)

    return {name: converter(spec.dtype) for name, spec in specs.items()}


def _as_array(value: Any) -> Array:
    """Convert a result to an array; text keeps trailing zero bytes."""
    if isinstance(value, bytes | str):
        text = np.empty((), dtype=object)
        text[()] = value
        return text
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    return array


def _complaint(error: BaseException) -> str:
    """Return TensorFlow's message without Python frames and nodes."""
    noise = (
        " ",
        "\t",
        "Graph execution error",
        "Detected at node",
        "Stack trace",
        "Errors may have",
        "Input Source",
    )
    lines = (
        line
        for line in str(error).splitlines()
        if line.strip() and not line.startswith(noise)
    )
    return (
        excerpt(next(lines, str(error)).partition(" [Op:")[0]) or type(error).__name__
    )


def error_text(error: BaseException) -> str:
    """Return an error's text as part of a sentence."""
    text = f"KeyError: {error}" if isinstance(error, KeyError) else error
    return excerpt(text) or type(error).__name__
