"""Run SavedModels, TensorFlow's folders with a ``saved_model.pb``.

Before TensorFlow reads a folder, its graph is checked (see ``savedmodel_check``): a SavedModel may read files while it
answers. Known of the loaders, by running them:

* ``tf.saved_model.load`` fails on some SavedModels of old Keras versions, over optimizer state that nobody needs; the
  loader of TensorFlow 1 runs the same signatures. Its variables live in a session of its own.
* A signature does not keep its variables alive; the loaded object does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.repository.files import files_below, hash_files
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.model_files import file_errors
from pocketserve.tensors import Array
from pocketserve.trust.verified_files import not_trusted

from . import common
from .savedmodel_check import ForbiddenError, check_files, check_meta_graphs
from .savedmodel_graph import INIT_SIGNATURE, MetaGraph, read_meta_graphs

_DEFAULT_SIGNATURE = "serving_default"
_INIT_SIGNATURES = (INIT_SIGNATURE, "__saved_model_train_op")
_SERVE_TAG = "serve"


class SavedModelRuntime:
    """Opens folders with a ``saved_model.pb``, or that file.

    Options: ``loader`` (``"v2"`` or ``"v1"``; without it both are tried), ``signature`` (the default entry point),
    ``trust`` (``true`` says that the graph reads files or calls Python, so that its owner's consent is asked for).
    """

    platform = "tensorflow_savedmodel"
    option_keys = frozenset({"loader", "signature", "trust"})
    fixed_threads = True  # TensorFlow takes it once for the process

    def open(self, source: ModelSource) -> common.TensorFlowSession:
        folder = source.path if source.path.is_dir() else source.path.parent
        loader = source.options.get("loader")
        source.flag("trust")  # for `pocketserve trust`
        if loader not in (None, "v1", "v2"):
            raise ModelLoadError(
                f"the option loader is 'v2' or 'v1', not {loader!r:.80}"
            )
        tags = _choose_tags(folder, _checked_graphs(folder, source))
        tf = common.import_tensorflow(source.threads)
        model, mark = _load(tf, folder, tags, loader, source.threads)
        try:
            default = _default_entry(
                folder.name, model, source.options.get("signature")
            )
        except ModelLoadError:
            model.close()
            raise
        title = f"tensorflow {tf.__version__}{mark}"
        return common.open_session(model, default, title, _file_bytes(folder))


RUNTIME = SavedModelRuntime()


def _checked_graphs(folder: Path, source: ModelSource) -> list[MetaGraph]:
    """Return the folder's graphs if they are safe or trusted."""
    title = f"the SavedModel {folder.name}"
    with file_errors(title, "is damaged or not whole", "copy or export it again"):
        graphs = read_meta_graphs(folder)
        try:
            check_files(folder, graphs)
        except ForbiddenError as error:
            raise ModelLoadError(f"{title} is not loaded: {error}") from error
    try:
        check_meta_graphs(graphs)
    except ForbiddenError as error:
        if (
            not source.trusted
            or hash_files(files_below(folder), folder) not in source.trusted
        ):
            raise ModelLoadError(
                not_trusted(source.original, f"{title} is not loaded: {error}")
            ) from error
    return graphs


def _choose_tags(folder: Path, graphs: Sequence[MetaGraph]) -> list[str]:
    """Return the tags of the serving graph, or of the only one."""
    for graph in graphs:
        if set(graph.tags) == {_SERVE_TAG} or len(graphs) == 1:
            return graph.tags
    texts = []
    for graph in graphs:
        text = ", ".join(graph.tags)
        texts.append(text or "none")
    raise ModelLoadError(
        f"no graph of the SavedModel {folder.name} has the tag 'serve' alone; "
        f"it has {'; '.join(texts)}"
    )


def _load(
    tf: Any, folder: Path, tags: Sequence[str], loader: Any, threads: int
) -> tuple[common.LoadedObject, str]:
    """Load a model with the chosen loader, else the first that works."""
    loaders = {"v2": (_load_v2, ""), "v1": (_load_v1, " (v1 loader)")}
    choices = list(loaders.values())
    if loader:
        choices = [loaders[loader]]
    reasons: dict[str, None] = {}
    for load, mark in choices:
        try:
            return load(tf, folder, tags, threads), mark
        except Exception as error:
            # Loaders raise anything for files that they can't load.
            reasons[f"{common.error_text(error)}{mark}"] = None
    raise ModelLoadError(
        f"TensorFlow cannot load the SavedModel {folder.name}: {'; '.join(reasons)}; "
        "if it was copied, copy it again"
    )


def _load_v2(
    tf: Any, folder: Path, tags: Sequence[str], threads: int
) -> common.LoadedObject:
    model = common.LoadedObject(tf.saved_model.load(str(folder), tags=list(tags)))
    for name, function in model.owner.signatures.items():
        try:
            model.entries[name] = _v2_entry(tf, function)
        except ModelLoadError as error:
            model.problems[name] = str(error)
        else:
            model.restorers += common.variable_restorers(function)
    return model


def _v2_entry(tf: Any, function: Any) -> common.EntryPoint:
    inputs = _sorted(function.structured_input_signature[1])
    outputs = _sorted(_by_name(function.structured_outputs))
    converters = common.input_converters(tf, inputs)

    def invoke(arrays: Mapping[str, Array]) -> Iterable[Any]:
        values = {}
        for name, convert in converters.items():
            values[name] = convert(arrays[name])
        results = _by_name(function(**values))
        return [results[name].numpy() for name in outputs]

    return common.make_entry(tf, inputs, outputs, invoke)


def _sorted(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Sort by name, ``output_10`` after ``output_2``.

    TensorFlow's own order differs between processes.
    """

    def key(name: str) -> list[tuple[int, str]]:
        # Texts alternate with numbers.
        parts = enumerate(re.split("0*([0-9]+)", name))
        return [(len(part) if at % 2 else 0, part) for at, part in parts]

    return {
        name: tensors[name]
        for name in sorted(tensors, key=lambda name: (key(name), name))
    }


def _by_name(outputs: Any) -> Mapping[str, Any]:
    """Return a signature's outputs by name; old files may have a list."""
    if isinstance(outputs, Mapping):
        return outputs
    items = [outputs]
    if isinstance(outputs, list | tuple):
        items = list(outputs)
    return {f"output_{index}": item for index, item in enumerate(items)}


def _file_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; most are variables."""
    total = 0
    for path in folder.rglob("*"):
        if path.is_file():
            total += path.stat().st_size
    return total


def _load_v1(
    tf: Any, folder: Path, tags: Sequence[str], threads: int
) -> common.LoadedObject:
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
            definitions = tf.compat.v1.saved_model.load(
                session, list(tags), str(folder)
            ).signature_def
        except BaseException:
            session.close()
            raise
    model = common.LoadedObject(session, close=session.close)
    for name, definition in sorted(definitions.items()):
        if name in _INIT_SIGNATURES:
            continue
        try:
            model.entries[name] = _v1_entry(tf, session, definition)
        # KeyError: a tensor is not in the graph.
        except (ModelLoadError, ValueError, KeyError) as error:
            model.problems[name] = common.error_text(error)
    return model


def _v1_entry(tf: Any, session: Any, definition: Any) -> common.EntryPoint:
    feeds, fetches = (
        {
            name: _v1_tensor(session, name, info)
            for name, info in _sorted(tensors).items()
        }
        for tensors in (definition.inputs, definition.outputs)
    )

    def invoke(arrays: Mapping[str, Array]) -> Any:
        values = {
            tensor: arrays[name].view(tensor.dtype.as_numpy_dtype)
            if tensor.dtype.name == "bfloat16"
            else arrays[name]
            for name, tensor in feeds.items()
        }
        return session.run([*fetches.values()], values)

    return common.make_entry(tf, feeds, fetches, invoke)


def _v1_tensor(session: Any, name: str, info: Any) -> Any:
    if info.WhichOneof("encoding") != "name":
        raise ModelLoadError(
            f"tensor {name!r} is sparse or ragged, which cannot be served"
        )
    tensor = session.graph.get_tensor_by_name(info.name)
    if tensor.shape.rank is None and not info.tensor_shape.unknown_rank:
        sizes: list[int | None] = []
        for dim in info.tensor_shape.dim:
            if dim.size < 0:
                sizes.append(None)
            else:
                sizes.append(dim.size)
        tensor.set_shape(sizes)
    return tensor


def _no_signature(title: str, model: common.LoadedObject) -> ModelLoadError:
    reasons = ""
    for name, problem in model.problems.items():
        reasons += f"; {name}: {problem}"
    return ModelLoadError(
        f"the SavedModel {title} has no signature that can be served{reasons}; save it "
        "with signatures=, or with model.export() in Keras"
    )


def _default_entry(
    title: str, model: common.LoadedObject, signature: Any
) -> common.EntryPoint:
    """Return the entry point of requests without a signature.

    If there is no clear choice, it rejects all requests.
    """
    entries = model.entries
    names = ", ".join(entries) or "none"
    name = signature
    if signature is None:
        name = _DEFAULT_SIGNATURE
    if name in entries:
        return entries[name]
    if name in model.problems:
        raise ModelLoadError(
            f"the signature {name} of the SavedModel {title} cannot be served: {model.problems[name]}"
        )
    if signature is not None:
        raise ModelLoadError(
            f"the SavedModel {title} has no signature {signature!r:.80}; it has: {names}"
        )
    if len(entries) == 1:
        return next(iter(entries.values()))
    if not entries:
        raise _no_signature(title, model)

    def refuse(arrays: Mapping[str, Array]) -> dict[str, Array]:
        raise ValueError(
            f"the SavedModel {title} has no signature serving_default; choose one with signature_name in the request "
            f"or signature in model.toml: {names}"
        )

    return common.EntryPoint(next(iter(_sorted(entries).values())).signature, refuse)
