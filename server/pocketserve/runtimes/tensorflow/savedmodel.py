"""Runs SavedModels, TensorFlow's own folders with a ``saved_model.pb``.

Before TensorFlow reads a folder, its graph is checked (see ``savedmodel_check``): a SavedModel may read files while it
answers. What is known of the loaders, found by running them:

* ``tf.saved_model.load`` fails on some SavedModels of old Keras versions, over optimizer state that nobody needs; the
  loader of TensorFlow 1 runs the same signatures. Its variables live in a session of its own.
* A signature does not keep its variables alive; the loaded object does.
* TensorFlow's threads are set once per process, before anything runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.repository.files import files_below, hash_files
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Signature
from pocketserve.runtimes.privacy import PRIVATE, import_framework
from pocketserve.runtimes.tensorflow import INSTALL
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.verified_files import not_trusted

from .savedmodel_check import ForbiddenError, check_files, check_graphs
from .savedmodel_graph import MetaGraph, read_meta_graphs
from .state import restorer
from .tensors import input_converters, input_errors, one_line, tensor_spec, to_array

# TensorFlow has no type information; its modules, tensors and functions are Any below.

_HOW_TO_INSTALL = f"TensorFlow is not installed; run: {INSTALL}"

_DEFAULT_SIGNATURE = "serving_default"
_INIT_SIGNATURES = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
_SERVE_TAG = "serve"
_configured = threading.Lock()
_DIGITS = re.compile(r"([0-9]+)")


def import_tensorflow(threads: int) -> Any:
    """TensorFlow, set up for serving: quiet, on the CPU.

    Args:
        threads: for one run. The first model's number counts for the whole process, as TensorFlow wants it.

    Raises:
        RuntimeMissingError: it is not installed, or does not load.
    """
    # With oneDNN, as on x86-64, TensorFlow has an allocator of its own that never gives anything back.
    os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "true")
    try:
        tf = import_framework("tensorflow")
    except ModuleNotFoundError as error:
        if error.name == "tensorflow":
            raise RuntimeMissingError(_HOW_TO_INSTALL) from None
        raise RuntimeMissingError(f"TensorFlow is installed but does not load: {one_line(error)}") from error
    except Exception as error:  # a native library that does not fit raises OSError, among others
        raise RuntimeMissingError(f"TensorFlow is installed but does not load: {one_line(error)}") from error
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == PRIVATE["TF_CPP_MIN_LOG_LEVEL"]:
        tf.get_logger().setLevel("ERROR")
    with _configured, contextlib.suppress(RuntimeError):  # it has run already, here or in the embedding program
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    return tf


class SavedModelRuntime:
    """Opens folders with a ``saved_model.pb``; the path of that file will do as well.

    Options: ``loader`` (``"v2"`` or ``"v1"``; without it the second is tried when the first fails), ``signature`` (the
    default entry point, where the file has several and none is called ``serving_default``), ``trust`` (``true`` says
    that the graph reads files or calls Python, so that its owner's consent is asked for).
    """

    platform = "tensorflow_savedmodel"
    option_keys = frozenset({"loader", "signature", "trust"})
    fixed_threads = True  # TensorFlow takes it once for the process

    def open(self, source: ModelSource) -> SavedModelSession:
        """Load a model.

        Raises:
            RuntimeMissingError: TensorFlow is not installed.
            ModelLoadError: the folder is damaged, reaches out of itself, or has nothing to serve.
        """
        folder = source.path if source.path.is_dir() else source.path.parent
        loader = _loader_option(source.options)
        graphs = _checked(folder, source)
        tags = _tags(folder, graphs)
        tf = import_tensorflow(source.threads)
        model, title = _load(tf, folder, tags, loader, source.threads)
        try:
            default = _default_entry(folder.name, model, source.options.get("signature"))
        except ModelLoadError:
            model.close()
            raise
        # As with TFLite: what has several signatures says itself what becomes of its state, and keeps it.
        stateful = model.restorers and len(model.entries) == 1
        kind = StatefulSession if stateful else SavedModelSession
        return kind(model, default, title, _memory(folder))


RUNTIME = SavedModelRuntime()
"""The runtime of the kind ``savedmodel``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry point: its specs, and a function from arrays by name to arrays by name."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    call: Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(slots=True)
class _Model:
    """What a loader gave: its entry points, and how to let go of it.

    Attributes:
        held: the loaded object, which owns the variables.
        problems: why signatures that are not among the entries cannot be served.
        restorers: give the variables that runs change the values that they had in the file.
    """

    entries: dict[str, Entry]
    problems: dict[str, str]
    held: Any
    close: Callable[[], None]
    restorers: list[Callable[[], None]] = field(default_factory=list)


class SavedModelSession:
    """One loaded SavedModel.

    Attributes:
        inputs, outputs: specs of the default signature; of the first, where none is called ``serving_default``, none is
            chosen, and requests must name one.
        signatures: all that can be served.
        runtime: such as ``tensorflow 2.21.0``, with ``(v1 loader)`` where that one was needed.
        device: ``cpu``.
        memory_bytes: the size of the folder; the variables are most of it, and held once.
    """

    device = "cpu"

    def __init__(self, model: _Model, default: Entry, runtime: str, memory_bytes: int) -> None:
        self._model: _Model | None = model
        self._entries: Mapping[str, Entry] = model.entries
        self._default: Entry | None = default
        self.inputs: Sequence[TensorSpec] = default.inputs
        self.outputs: Sequence[TensorSpec] = default.outputs
        self.signatures: Mapping[str, Signature] = {
            name: Signature(entry.inputs, entry.outputs) for name, entry in model.entries.items()
        }
        self.runtime = runtime
        self.memory_bytes = memory_bytes

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: no such signature, or TensorFlow says that the input does not fit.
        """
        if self._default is None:
            raise RuntimeError("the session is closed")
        entry = self._default if signature is None else self._entries.get(signature)
        if entry is None:
            raise ValueError(f"the model has no signature {signature!r}; it has: {', '.join(self._entries)}")
        return entry.call(inputs)

    def close(self) -> None:
        """Let go of the variables; objects refer to themselves, so they go with the engine's next collection."""
        if self._model is not None:
            self._model.close()
        self._model = self._default = None
        self._entries = {}


class StatefulSession(SavedModelSession):
    """One loaded SavedModel whose only entry point changes variables."""

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`."""
        if self._model is not None:
            for restore in self._model.restorers:
                restore()


def _loader_option(options: Mapping[str, Any]) -> str | None:
    loader, trust = options.get("loader"), options.get("trust", False)
    if loader not in (None, "v1", "v2"):
        raise ModelLoadError(f"the option loader is 'v2' or 'v1', not {loader!r:.80}")
    if not isinstance(trust, bool):
        raise ModelLoadError(f"the option trust is true or false, not {trust!r:.80}")
    return loader


def _checked(folder: Path, source: ModelSource) -> list[MetaGraph]:
    """The folder's graphs, once they are known to be whole, and to keep to themselves or to be trusted by the owner."""
    title = f"the SavedModel {folder.name}"
    try:
        graphs = read_meta_graphs(folder)
        check_files(folder, graphs)
    except DamagedFileError as error:
        raise ModelLoadError(f"{title} is damaged or not whole: {error}; copy or export it again") from error
    except ForbiddenError as error:
        raise ModelLoadError(f"{title} is not loaded: {error}") from error
    try:
        check_graphs(graphs)
    except ForbiddenError as error:
        if not source.trusted or hash_files(files_below(folder), folder) not in source.trusted:
            raise ModelLoadError(not_trusted(source.original, f"{title} is not loaded: {error}")) from error
    return graphs


def _tags(folder: Path, graphs: Sequence[MetaGraph]) -> list[str]:
    """The tags of the graph to load: the one for serving, else the only one."""
    for graph in graphs:
        if set(graph.tags) == {_SERVE_TAG}:
            return graph.tags
    if len(graphs) != 1:
        known = "; ".join(", ".join(graph.tags) or "none" for graph in graphs)
        raise ModelLoadError(f"no graph of the SavedModel {folder.name} has the tag 'serve' alone; it has {known}")
    return graphs[0].tags


def _load(tf: Any, folder: Path, tags: Sequence[str], loader: str | None, threads: int) -> tuple[_Model, str]:
    """Load with the loader that was asked for, else with the first that can."""
    title = f"tensorflow {tf.__version__}"
    first: Exception | None = None
    if loader != "v1":
        try:
            return _load_v2(tf, folder, tags), title
        except Exception as error:  # loaders raise anything on files that they do not like
            first = error
            if loader == "v2":
                raise ModelLoadError(
                    f"TensorFlow cannot load the SavedModel {folder.name}: {one_line(error)}"
                ) from error
    try:
        return _load_v1(tf, folder, tags, threads), f"{title} (v1 loader)"
    except Exception as error:
        reason, second = one_line(first or error), one_line(error)
        also = "" if reason in second else f" (and with the v1 loader: {second})"
        raise ModelLoadError(
            f"TensorFlow cannot load the SavedModel {folder.name}: {reason}{also}; if it was copied, copy it again"
        ) from error


def _load_v2(tf: Any, folder: Path, tags: Sequence[str]) -> _Model:
    loaded = tf.saved_model.load(str(folder), tags=list(tags))
    entries, problems, restorers = {}, {}, []
    for name, function in loaded.signatures.items():
        try:
            entries[name] = _v2_entry(tf, function)
        except ModelLoadError as error:
            problems[name] = str(error)
        else:
            restorers.append(restorer(function))
    return _Model(entries, problems, loaded, lambda: None, [restore for restore in restorers if restore is not None])


def _v2_entry(tf: Any, function: Any) -> Entry:
    given = function.structured_input_signature[1]
    inputs = tuple(tensor_spec(name, given[name]) for name in _in_order(given))
    results = _by_name(function.structured_outputs)
    outputs = tuple(tensor_spec(name, results[name]) for name in _in_order(results))
    convert = input_converters(tf, given)

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        with input_errors(tf):
            results = function(**{name: to_tensor(arrays[name]) for name, to_tensor in convert.items()})
        by_name = _by_name(results)
        return {spec.name: to_array(by_name[spec.name].numpy()) for spec in outputs}

    return Entry(inputs, outputs, call)


def _in_order(names: Iterable[str]) -> list[str]:
    """By name, ``output_10`` after ``output_2``.

    The file keeps no order, and what TensorFlow gives differs from process to process: whoever takes the first output
    would get another one after the next start.
    """

    def rank(name: str) -> tuple[list[Any], str]:
        parts: list[Any] = _DIGITS.split(name)  # texts with digits between them
        plain = (digits.lstrip("0") for digits in parts[1::2])
        parts[1::2] = [(len(digits), digits) for digits in plain]
        return parts, name

    return sorted(names, key=rank)


def _by_name(outputs: Any) -> Mapping[str, Any]:
    """A signature's outputs; those of old files may be a list or one tensor."""
    if isinstance(outputs, Mapping):
        return outputs
    items = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    return {f"output_{index}": item for index, item in enumerate(items)}


def _load_v1(tf: Any, folder: Path, tags: Sequence[str], threads: int) -> _Model:
    graph = tf.Graph()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        use_per_session_threads=True,
        device_count={"GPU": 0},
    )
    with graph.as_default():
        session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            loaded = tf.compat.v1.saved_model.load(session, list(tags), str(folder))
        except BaseException:
            session.close()
            raise
    entries, problems = {}, {}
    for name, definition in sorted(loaded.signature_def.items()):
        if name in _INIT_SIGNATURES:
            continue
        try:
            entries[name] = _v1_entry(tf, session, definition)
        except (ModelLoadError, ValueError, KeyError) as error:  # the latter for tensors that are not in the graph
            problems[name] = one_line(error)
    return _Model(entries, problems, session, session.close)


def _v1_entry(tf: Any, session: Any, definition: Any) -> Entry:
    given, results = definition.inputs, definition.outputs
    feeds = {name: _v1_tensor(tf, session, name, given[name]) for name in _in_order(given)}
    fetches = {name: _v1_tensor(tf, session, name, results[name]) for name in _in_order(results)}
    inputs = tuple(tensor_spec(name, tensor) for name, tensor in feeds.items())
    outputs = tuple(tensor_spec(name, tensor) for name, tensor in fetches.items())

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        given = {tensor: _v1_array(tensor, arrays[name]) for name, tensor in feeds.items()}
        with input_errors(tf):
            results = session.run(fetches, given)
        return {name: to_array(value) for name, value in results.items()}

    return Entry(inputs, outputs, call)


def _v1_tensor(tf: Any, session: Any, name: str, info: Any) -> Any:
    if info.WhichOneof("encoding") != "name":
        raise ModelLoadError(f"tensor {name!r} is sparse or ragged, which cannot be served")
    tensor = session.graph.get_tensor_by_name(info.name)
    if tensor.shape.rank is None and not info.tensor_shape.unknown_rank:
        tensor.set_shape([None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim])
    return tensor


def _v1_array(tensor: Any, array: Array) -> Array:
    return array.view(tensor.dtype.as_numpy_dtype) if tensor.dtype.name == "bfloat16" else array


def _default_entry(title: str, model: _Model, asked: Any) -> Entry:
    """The entry point that requests without a signature use.

    Raises:
        ModelLoadError: there is none, or no telling which.
    """
    entries = model.entries
    wanted = _DEFAULT_SIGNATURE if asked is None else asked
    if wanted in entries:
        return entries[wanted]
    if wanted in model.problems:
        raise ModelLoadError(
            f"the signature {wanted} of the SavedModel {title} cannot be served: {model.problems[wanted]}"
        )
    if asked is not None:
        raise ModelLoadError(f"the SavedModel {title} has no signature {asked!r:.80}; it has: {_listed(entries)}")
    if len(entries) == 1:
        return next(iter(entries.values()))
    if entries:
        return _nameless(title, entries)
    reasons = "".join(f"; {name}: {problem}" for name, problem in model.problems.items())
    raise ModelLoadError(
        f"the SavedModel {title} has no signature that can be served{reasons}; save it with signatures=, or with "
        "model.export() in Keras"
    )


def _nameless(title: str, entries: Mapping[str, Entry]) -> Entry:
    """Return what is described where there is no telling which is meant: the first, which only runs when it is
    named.
    """
    first = entries[_in_order(entries)[0]]

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        raise ValueError(
            f"the SavedModel {title} has no signature serving_default; choose one with signature_name in the request "
            f"or signature in model.toml: {_listed(entries)}"
        )

    return Entry(first.inputs, first.outputs, call)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"


def _memory(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
