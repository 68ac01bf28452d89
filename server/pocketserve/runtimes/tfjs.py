"""Runs TensorFlow.js models in one Node process that all of them share.

Android ends child processes when all apps together have too many, so there is never more than one: it is started for
the first model, ends with the last one, and by itself after two minutes without work. A model that is asked something
afterwards has it started again. When it hangs or dies, the request under way fails and the next one starts a new one.

**Protocol.** Both directions of the pipes carry frames: two unsigned 32-bit little-endian lengths, a JSON header of the
first length, a payload of the second. Every request gets one answer, in order; one request is under way at a time. ::

    {"op": "start"}                                            -> {"version", "backend"}
    {"op": "open", "model", "file", "shards", "graph", "backend"}
                               -> {"inputs": [{"name", "shape", "dtype"}], "outputs": [...], "nodes", "backend"}
    {"op": "run", "model", "inputs": [{"dtype", "shape", "bytes"}]} + payload
                               -> {"outputs": [{"dtype", "shape", "bytes"}]} + payload
    {"op": "close", "model"}                                   -> {"tensors": how many are left}
    any of them                                                -> {"error", "input": is the input at fault}

Payloads are the tensors' bytes, little-endian and row-major, one after the other. ``shards`` are absolute paths that
were checked here to lie in the model's folder; the process opens nothing else, and nothing from the network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from pocketserve.tensors import Array, TensorSpec

from .base import TRIAL_VARIABLE, ModelLoadError, ModelSource, RuntimeMissingError, Signature

MODULES_VARIABLE = "POCKETSERVE_TFJS_MODULES"
NO_NODE = "Node.js is not installed; in Termux: pkg install nodejs (elsewhere: nodejs.org)"

PACKAGES = ("@tensorflow/tfjs@4.22.0", "@tensorflow/tfjs-backend-wasm@4.22.0")

START_TIMEOUT_S = 30.0
"""Node and TensorFlow.js start in a quarter of a second on a desktop, in a few on a phone that is busy."""

OPEN_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 120.0
"""Beyond what any model that is of use takes; a hung process is recognised by it."""

IDLE_S = 120.0
"""After this long without work the process ends itself."""

MAX_MODEL_JSON_BYTES = 64 * 2**20
"""The graph without its weights; the largest in the wild have a few megabytes."""

MAX_HEADER_BYTES = 16 * 2**20
MAX_PAYLOAD_BYTES = 2**30
STDERR_BYTES = 4096
"""What is kept of the process's complaints."""

_DATATYPES = {"float32": "FP32", "int32": "INT32", "bool": "BOOL"}
_DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4"), "bool": np.dtype("?")}
_GRAPH_TYPES = {"DT_FLOAT": "float32", "DT_HALF": "float32", "DT_DOUBLE": "float32", "DT_BOOL": "bool"}
_GRAPH_TYPES |= dict.fromkeys(("DT_INT8", "DT_UINT8", "DT_INT16", "DT_UINT16", "DT_INT32", "DT_INT64"), "int32")
# Other signatures write the enumeration of TensorFlow's types.proto as numbers.
_TYPE_NUMBERS = {1: "DT_FLOAT", 2: "DT_DOUBLE", 3: "DT_INT32", 4: "DT_UINT8", 5: "DT_INT16", 6: "DT_INT8"}
_TYPE_NUMBERS |= {9: "DT_INT64", 10: "DT_BOOL", 17: "DT_UINT16", 19: "DT_HALF"}
_STORED_BYTES = {"float32": 4, "int32": 4, "bool": 1, "complex64": 8, "uint8": 1, "uint16": 2, "float16": 2}
_LENGTHS = struct.Struct("<II")


class WorkerError(RuntimeError):
    """The Node process died, hung or wrote nonsense."""


class _EndedError(WorkerError):
    """The process had ended before it took the request."""


class TfjsRuntime:
    """Opens folders with a ``model.json``; the path of that file will do as well.

    Options: ``backend`` (``"wasm"`` or ``"cpu"``; without it wasm where it is available).

    Args:
        modules: the ``node_modules`` folder; by default ``POCKETSERVE_TFJS_MODULES``, else one in the state folder.
        node: the program to start, by default ``node`` on the path.
        start_timeout, open_timeout, run_timeout: seconds that the process may take.
        idle: seconds without work after which it ends itself.
    """

    platform = "tensorflow_js"
    option_keys = frozenset({"backend"})

    def __init__(
        self,
        modules: Path | None = None,
        node: str = "node",
        *,
        start_timeout: float = START_TIMEOUT_S,
        open_timeout: float = OPEN_TIMEOUT_S,
        run_timeout: float = RUN_TIMEOUT_S,
        idle: float = IDLE_S,
    ) -> None:
        self._worker = _Worker(modules, node, idle, start_timeout)
        self._open_timeout = open_timeout
        self._run_timeout = run_timeout

    @property
    def pid(self) -> int | None:
        """The Node process, where one runs."""
        return self._worker.pid

    def open(self, source: ModelSource) -> TfjsSession:
        """Load a model.

        Raises:
            RuntimeMissingError: Node or the packages are not installed, or do not start.
            ModelLoadError: the files are damaged, reach out of their folder, or need what cannot be served.
        """
        backend = source.options.get("backend")
        if backend not in (None, "wasm", "cpu"):
            raise ModelLoadError(f"the option backend is 'wasm' or 'cpu', not {backend!r:.80}")
        files = read_files(source.path / "model.json" if source.path.is_dir() else source.path)
        return TfjsSession(self._worker, files, backend, source.threads, self._open_timeout, self._run_timeout)


class TfjsSession:
    """One model in the Node process.

    Attributes:
        inputs, outputs: specs. Of graph models, inputs have the placeholders' names and outputs the signature's, as
            TensorFlow.js calls them; the other names of both are aliases.
        signatures: none; the formats have one entry point.
        runtime: such as ``tensorflow.js 4.22.0``.
        device: ``wasm`` or ``cpu``, the backend of TensorFlow.js that runs it.
        memory_bytes: the weights as they are in memory, where quantised ones are real numbers again.

    Raises:
        RuntimeMissingError: the process does not start.
        ModelLoadError: TensorFlow.js cannot load the model.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self,
        worker: _Worker,
        files: ModelFiles,
        backend: str | None,
        threads: int,
        open_timeout: float,
        run_timeout: float,
    ) -> None:
        self._worker = worker
        self._files = files
        self._backend = backend
        self._threads = threads
        self._timeouts = (open_timeout, run_timeout)
        self._name = worker.enlist()
        self._process = 0
        self._is_open = True
        try:
            described = self._load()
            self.runtime = f"tensorflow.js {worker.version}"
            self.device: str = described["backend"]
            self.memory_bytes = files.memory_bytes
            self.inputs: Sequence[TensorSpec] = _input_specs(described["inputs"], files)
            self.outputs: Sequence[TensorSpec] = _output_specs(described, files)
            if any(spec.open for spec in self.outputs):
                self.outputs = self._probed()
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerError):
                raise ModelLoadError(f"{files.title} could not be loaded: {error}") from error
            raise

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: a signature was asked for, or TensorFlow.js says that the input does not fit.
            WorkerError: the process died or hung; the next run has a new one.
            RuntimeError: the run itself failed.
        """
        if not self._is_open:
            raise RuntimeError("the session is closed")
        if signature is not None:
            raise ValueError(f"the model has no signature {signature!r}; TensorFlow.js models have none")
        return {spec.name: array for spec, array in zip(self.outputs, self._compute(inputs), strict=True)}

    def close(self) -> None:
        """Let go of the model; the last one takes the process with it."""
        if self._is_open:
            self._is_open = False
            self._worker.dismiss(self._name, self._process)

    def _load(self) -> dict[str, Any]:
        """Open the model in the process; it has to be done again in every new one.

        Raises:
            ModelLoadError: TensorFlow.js cannot load it.
        """
        files = self._files
        header = {
            "op": "open",
            "model": self._name,
            "file": str(files.path),
            "shards": [str(path) for path in files.shards],
            "graph": files.graph,
            "backend": self._backend,
        }
        with self._worker.turn(sum(self._timeouts)):
            self._process = self._worker.ready(self._threads)
            answer, _ = self._worker.ask(header, (), self._timeouts[0])
        if "error" in answer:
            raise ModelLoadError(f"TensorFlow.js cannot load {files.title}: {_sentence(answer['error'])}")
        return answer

    def _compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        arrays = [np.ascontiguousarray(inputs[s.name], dtype=_DTYPES[_dtype_of(s)]) for s in self.inputs]
        header = {
            "op": "run",
            "model": self._name,
            "inputs": [
                {"dtype": _dtype_of(spec), "shape": list(inputs[spec.name].shape), "bytes": array.nbytes}
                for spec, array in zip(self.inputs, arrays, strict=True)
            ],
        }
        payload = [array.reshape(-1).view(np.uint8).data for array in arrays]
        with self._worker.turn(sum(self._timeouts)):
            answer, data = self._ask_loaded(header, payload)
        if "error" in answer:
            raise _run_error(answer)
        return _arrays(answer["outputs"], data)

    def _ask_loaded(self, header: Mapping[str, Any], payload: Sequence[memoryview]) -> tuple[dict[str, Any], bytearray]:
        """Ask the process that has the model, which may have to be started and to load it first."""
        for attempt in (1, 2):
            if self._process != self._worker.ready(self._threads):
                self._load()
            try:
                return self._worker.ask(header, payload, self._timeouts[1])
            except _EndedError:  # it ended for idleness just now
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _probed(self) -> Sequence[TensorSpec]:
        """Outputs that the file does not describe, as seen in a run on zeros; where that fails they stay unknown."""
        zeros = {
            spec.name: np.zeros([max(1, size) for size in spec.shape], _DTYPES[_dtype_of(spec)]) for spec in self.inputs
        }
        try:
            seen = self._compute(zeros)
        except (ValueError, RuntimeError):
            return self.outputs
        free = any(-1 in spec.shape for spec in self.inputs)
        return [_seen(spec, array, free) if spec.open else spec for spec, array in zip(self.outputs, seen, strict=True)]


# --- The files


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files, checked.

    Attributes:
        path: the ``model.json``.
        title: how the model is called in texts.
        shards: the weight files in order, absolute.
        graph: whether it is a graph model; else a layers model.
        signature: what a graph model's file says of its tensors.
        memory_bytes: the weights in memory.
    """

    path: Path
    title: str
    shards: tuple[Path, ...]
    graph: bool
    signature: Mapping[str, Any]
    memory_bytes: int


def read_files(path: Path) -> ModelFiles:
    """Read ``model.json`` and check that the weights are there, whole, and inside its folder.

    Raises:
        ModelLoadError: they are not.
    """
    title = f"{path.parent.name}/{path.name}"
    try:
        document = _read_json(path, title)
        groups = [_Group(group) for group in document["weightsManifest"]]
        topology = document["modelTopology"]
        topology = json.loads(topology) if isinstance(topology, str) else topology
        graph = document.get("format") == "graph-model" or "node" in topology
        signature = document.get("signature") or (document.get("userDefinedMetadata") or {}).get("signature")
        memory_bytes = sum(group.memory_bytes for group in groups)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"{title} is no whole TensorFlow.js model ({type(error).__name__}: {str(error)[:100]}); copy or convert it "
            "again"
        ) from error
    shards = [shard for group in groups for shard in _checked_shards(path.parent, group, title)]
    return ModelFiles(
        path.absolute(), title, tuple(shards), graph, signature if isinstance(signature, dict) else {}, memory_bytes
    )


class _Group:
    """A group of weights, which lie one after the other in its files.

    Attributes:
        paths: as the file writes them.
        stored_bytes: their size; None where there is text among the weights, whose size only its content tells.
        memory_bytes: once they are real numbers.
    """

    def __init__(self, group: Mapping[str, Any]) -> None:
        self.paths: list[Any] = list(group["paths"])
        counts = [(weight, math.prod(_sizes(weight["shape"]))) for weight in group["weights"]]
        self.memory_bytes = sum(4 * count for _, count in counts)
        self.stored_bytes: int | None = None
        if all(weight["dtype"] != "string" for weight, _ in counts):
            self.stored_bytes = sum(count * _STORED_BYTES[_stored_dtype(weight)] for weight, count in counts)


def _stored_dtype(weight: Mapping[str, Any]) -> str:
    quantization = weight.get("quantization")
    return str(quantization["dtype"] if quantization else weight["dtype"])


def _sizes(shape: Iterable[Any]) -> list[int]:
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise ValueError("a weight has a negative size")
    return sizes


def _read_json(path: Path, title: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_MODEL_JSON_BYTES:
            raise ModelLoadError(f"{title} is larger than {MAX_MODEL_JSON_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{title} cannot be read: {error.strerror or error}") from error
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return document


def _checked_shards(folder: Path, group: _Group, title: str) -> list[Path]:
    shards = [_checked_shard(folder, name, title) for name in group.paths]
    found = sum(path.stat().st_size for path in shards)
    if group.stored_bytes is not None and found != group.stored_bytes:
        names = ", ".join(map(str, group.paths[:3])) + (" …" if len(group.paths) > 3 else "")
        raise ModelLoadError(
            f"{title}: the weights in {names} have {found} bytes and must have {group.stored_bytes}; "
            "copy the files again"
        )
    return shards


def _checked_shard(folder: Path, name: Any, title: str) -> Path:
    """The file that a weights manifest names.

    Raises:
        ModelLoadError: it leads out of the folder, or does not exist.
    """
    inside = isinstance(name, str) and name != "" and not any(mark in name for mark in ("\0", "\\", "://"))
    if not inside or name.startswith("/") or ".." in name.split("/"):
        raise ModelLoadError(f"{title} names the weights file {name!r:.100}, which is not inside the model's folder")
    path = Path(os.path.realpath(folder / name))
    if not path.is_relative_to(os.path.realpath(folder)):
        raise ModelLoadError(
            f"{title}: the weights file {name} is a link that leaves the model's folder; copy it there"
        )
    if not path.is_file():
        raise ModelLoadError(f"{title}: the weights file {name} is missing")
    return path


# --- Specs


def _dtype_of(spec: TensorSpec) -> str:
    return next(dtype for dtype, datatype in _DATATYPES.items() if datatype == spec.datatype)


def _input_specs(described: Sequence[Mapping[str, Any]], files: ModelFiles) -> list[TensorSpec]:
    signature = _by_tensor(files.signature.get("inputs"))
    specs = []
    for entry in described:
        name, dtype = str(entry["name"]), entry["dtype"]
        if dtype not in _DATATYPES:
            raise ModelLoadError(f"input {name!r} of {files.title} is of type {dtype}, which cannot be served")
        key, _ = signature.get(name, (name, {}))
        aliases = _aliases(name, key, f"{name}:0" if files.graph else name)
        if entry["shape"] is None:
            specs.append(TensorSpec(name, _DATATYPES[dtype], (-1,), aliases=aliases, open=True))
        else:
            specs.append(TensorSpec(name, _DATATYPES[dtype], _free(entry["shape"]), aliases=aliases))
    return specs


def _output_specs(described: Mapping[str, Any], files: ModelFiles) -> list[TensorSpec]:
    """Outputs; those of which the file says too little are marked as open.

    TensorFlow.js calls a graph's outputs as its signature does, else as their nodes are called.
    """
    entries = [dict(entry) for entry in described["outputs"]]
    if not files.graph:
        return [_output_spec(entry, {}) for entry in entries]
    outputs = files.signature.get("outputs")
    signature = {str(k): v for k, v in outputs.items() if isinstance(v, dict)} if isinstance(outputs, dict) else {}
    nodes = {entry["name"]: entry for entry in entries}
    specs = []
    for name in described["nodes"]:
        info = signature.get(name, {})
        node = nodes.get(_node(str(info.get("name", name))), {})
        specs.append(_output_spec({"dtype": None, "shape": None, **node, "name": name}, info))
    return specs


def _output_spec(entry: Mapping[str, Any], info: Mapping[str, Any]) -> TensorSpec:
    name = str(entry["name"])
    tensor = str(info.get("name", name))
    dtype = _graph_dtype(info.get("dtype")) or entry["dtype"]
    shape = _graph_shape(info) if info else entry["shape"]
    aliases = _aliases(name, tensor, _node(tensor))
    if dtype not in _DATATYPES or shape is None:
        return TensorSpec(name, _DATATYPES.get(dtype or "", "FP32"), (-1,), aliases=aliases, open=True)
    return TensorSpec(name, _DATATYPES[dtype], _free(shape), aliases=aliases)


def _by_tensor(entries: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """A signature's entries by the node that they mean: its own name for it, and what it says of it."""
    if not isinstance(entries, dict):
        return {}
    named = {str(key): info for key, info in entries.items() if isinstance(info, dict)}
    return {_node(str(info.get("name", key))): (key, info) for key, info in named.items()}


def _aliases(name: str, *others: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(other for other in others if other != name))


def _node(tensor: str) -> str:
    return tensor.removesuffix(":0")


def _graph_dtype(code: Any) -> str | None:
    return _GRAPH_TYPES.get(_TYPE_NUMBERS.get(code, "") if isinstance(code, int) else str(code))


def _graph_shape(info: Mapping[str, Any]) -> list[int] | None:
    """A TensorShapeProto in JSON, which writes its sizes as text; a scalar's may be missing altogether."""
    shape = info.get("tensorShape")
    if not isinstance(shape, dict) or shape.get("unknownRank"):
        return None
    return [int(dimension.get("size", -1)) for dimension in shape.get("dim") or ()]


def _free(shape: Iterable[Any]) -> tuple[int, ...]:
    return tuple(-1 if size is None or int(size) < 0 else int(size) for size in shape)


def _seen(spec: TensorSpec, array: Array, free: bool) -> TensorSpec:
    """A size of 0 follows from the values; where inputs have free sizes, which were 1, so may a size of 1."""
    unsure = (0, 1) if free else (0,)
    shape = tuple(-1 if size in unsure else size for size in array.shape)
    datatype = next(_DATATYPES[dtype] for dtype, kind in _DTYPES.items() if kind == array.dtype)
    return replace(spec, datatype=datatype, shape=shape, open=False)


# --- Talking to the process


def _run_error(answer: Mapping[str, Any]) -> Exception:
    text = _sentence(answer["error"])
    if "not registered for" in text and "backend" in text:
        return RuntimeError(f'{text}; set backend = "cpu" for this version in model.toml')
    return ValueError(text) if answer.get("input") else RuntimeError(text)


def _sentence(text: Any) -> str:
    return " ".join(str(text).split())[:400].rstrip(". ")


def _arrays(described: Sequence[Mapping[str, Any]], data: bytearray) -> list[Array]:
    """The payload's tensors. They share one memory that nobody else uses.

    Raises:
        WorkerError: the description does not fit the bytes.
    """
    arrays: list[Array] = []
    at = 0
    for entry in described:
        end = at + int(entry["bytes"])
        try:
            flat: Array = np.frombuffer(memoryview(data)[at:end], _DTYPES[entry["dtype"]])
            arrays.append(flat.reshape(entry["shape"]))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkerError(f"the Node process wrote an answer that cannot be read: {error}") from error
        at = end
    return arrays


def missing() -> str | None:
    """How to install what is missing, for listings; nothing is started."""
    try:
        find_modules()
    except RuntimeMissingError as error:
        return str(error)
    return None if shutil.which("node") else NO_NODE


def find_modules(modules: Path | None = None) -> Path:
    """The folder with the npm packages: as given, else from the environment, else in the state folder.

    Raises:
        RuntimeMissingError: the packages are not in it; the text tells the command that puts them there.
    """
    named = os.environ.get(MODULES_VARIABLE)
    folder = modules or (Path(named).expanduser() if named else _default_modules())
    folder = folder.absolute()  # Node takes a relative path for a package's name
    folder = folder if folder.name == "node_modules" else folder / "node_modules"
    missing = [name for name in PACKAGES if not (folder / name.rpartition("@")[0] / "package.json").is_file()]
    if missing:
        raise RuntimeMissingError(
            f"TensorFlow.js is not installed in {folder}; run (in Termux after: pkg install nodejs): "
            f"npm install --prefix {folder.parent} {' '.join(PACKAGES)}"
        )
    return folder


def _default_modules() -> Path:
    return platformdirs.user_state_path("pocketserve") / "tfjs" / "node_modules"


class _Worker:
    """The one Node process. Whoever holds a turn may start it and ask it.

    Attributes:
        version: of TensorFlow.js, once it has run.
    """

    def __init__(self, modules: Path | None, node: str, idle: float, start_timeout: float) -> None:
        self._modules = modules
        self._node = node
        self._idle = idle
        self._start_timeout = start_timeout
        self._lock = threading.RLock()
        self._child: _Child | None = None
        self._count = 0
        self._names = itertools.count(1)
        self._members: set[str] = set()
        self._membership = threading.Lock()
        self.version = ""

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.is_running else None

    def enlist(self) -> str:
        """Reserve the process for a session; returns the session's name in it."""
        with self._membership:
            name = f"m{next(self._names)}"
            self._members.add(name)
        return name

    def dismiss(self, name: str, process: int) -> None:
        """Free what a session holds; the last one ends the process."""
        with self._membership:
            self._members.discard(name)
        with contextlib.suppress(WorkerError), self.turn(OPEN_TIMEOUT_S + RUN_TIMEOUT_S):
            # Looked at under both locks: somebody may have come in the meantime.
            with self._membership:
                is_last = not self._members
            if is_last:
                self._end()
            elif process == self._count and self._child is not None:
                self.ask({"op": "close", "model": name}, (), self._start_timeout)

    @contextlib.contextmanager
    def turn(self, timeout: float) -> Any:
        """Have the process to oneself.

        Raises:
            WorkerError: others had it all the time.
        """
        if not self._lock.acquire(timeout=timeout):
            raise WorkerError(f"the Node process was busy with other models for {timeout:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def ready(self, threads: int) -> int:
        """Start the process if none runs.

        Args:
            threads: that a new one may use; one that runs keeps its own number.

        Returns:
            Which process it is: models that were opened in another one are gone.
        """
        if self._child is None or not self._child.is_running:
            self._end()
            self._child = self._started(threads)
            self._count += 1
        return self._count

    def ask(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], timeout: float
    ) -> tuple[dict[str, Any], bytearray]:
        """One request and its answer. A process that failed is done away with.

        Raises:
            WorkerError: it died, hung or wrote nonsense.
        """
        assert self._child is not None
        try:
            return self._child.exchange(header, payload, time.monotonic() + timeout)
        except TimeoutError:
            self._end()
            raise WorkerError(f"the Node process did not answer within {timeout:g} s and was ended") from None
        except WorkerError:
            self._end()
            raise

    def _started(self, threads: int) -> _Child:
        modules = find_modules(self._modules)
        node = shutil.which(self._node)
        if node is None:
            raise RuntimeMissingError(NO_NODE)
        script = Path(__file__).with_name("tfjs_worker.js")
        child = _Child([node, str(script), str(modules), str(threads), str(int(self._idle * 1000))])
        try:
            answer, _ = child.exchange({"op": "start"}, (), time.monotonic() + self._start_timeout)
        except (WorkerError, TimeoutError) as error:
            child.end()
            raise RuntimeMissingError(f"TensorFlow.js does not start: {error or 'no answer'}{child.said()}") from error
        if "error" in answer:
            child.end()
            raise RuntimeMissingError(f"TensorFlow.js does not start: {_sentence(answer['error'])}")
        self.version = str(answer["version"])
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _Child:
    """A process with pipes. All reads and writes have a deadline."""

    def __init__(self, command: Sequence[str]) -> None:
        # Not the server's own settings, and nothing that changes how Node runs.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NODE_", "POCKETSERVE_"))}
        # A session of its own, so that Ctrl-C in the terminal lets running requests finish; but not in a trial, which
        # is ended with all its processes.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=TRIAL_VARIABLE not in os.environ,
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._complaints = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The last line that it wrote to stderr, as the end of a sentence."""
        lines = self._complaints.decode("utf-8", errors="replace").strip().splitlines()
        return f" ({_sentence(lines[-1])[:200]})" if lines else ""

    def exchange(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], deadline: float
    ) -> tuple[dict[str, Any], bytearray]:
        """Write a frame and read the answer.

        Raises:
            TimeoutError: the deadline passed.
            WorkerError: the process ended or wrote nonsense.
        """
        text = json.dumps(header).encode()
        size = sum(part.nbytes for part in payload)
        if size > MAX_PAYLOAD_BYTES:
            raise ValueError(f"the inputs have {size} bytes, more than {MAX_PAYLOAD_BYTES}")
        unsent = [memoryview(_LENGTHS.pack(len(text), size) + text), *(part for part in payload if part.nbytes)]
        reader = _FrameReader()
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_WRITE)
            selector.register(self._out, selectors.EVENT_READ)
            selector.register(self._err, selectors.EVENT_READ)
            while not reader.complete:
                for key, _ in self._wait(selector, deadline):
                    if key.fd == self._in:
                        self._send(selector, unsent)
                    elif key.fd == self._err:
                        self._listen(selector)
                    else:
                        self._read(reader)
        return reader.header(), reader.payload

    def end(self) -> None:
        """Kill it and wait for it, which takes no time: SIGKILL ends even a stopped process."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    @staticmethod
    def _wait(selector: selectors.BaseSelector, deadline: float) -> list[tuple[selectors.SelectorKey, int]]:
        left = deadline - time.monotonic()
        events = selector.select(left) if left > 0 else []
        if not events and time.monotonic() >= deadline:
            raise TimeoutError
        return events

    def _send(self, selector: selectors.BaseSelector, unsent: list[memoryview]) -> None:
        try:
            count = os.write(self._in, unsent[0])
        except BlockingIOError:
            return
        except OSError:
            raise self._ended() from None
        unsent[0] = unsent[0][count:]
        if not unsent[0].nbytes:
            unsent.pop(0)
        if not unsent:
            selector.unregister(self._in)

    def _read(self, reader: _FrameReader) -> None:
        try:
            data = os.read(self._out, min(reader.missing, 1 << 20))
        except BlockingIOError:
            return
        if not data:
            raise self._ended()
        reader.feed(data)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        try:
            data = os.read(self._err, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(self._err)
        self._complaints = (self._complaints + data)[-STDERR_BYTES:]

    def _ended(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        with contextlib.suppress(OSError):  # its last words may still lie in the pipe
            while data := os.read(self._err, 1 << 16):
                self._complaints = (self._complaints + data)[-STDERR_BYTES:]
        code = self._process.returncode
        if code == 0:  # it only ends like this by itself, between two requests
            return _EndedError("the Node process had ended")
        how = f"with signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return WorkerError(f"the Node process ended {how} while it worked on this request{self.said()}")


class _FrameReader:
    """Puts one frame together. Its lengths are checked before memory is taken."""

    def __init__(self) -> None:
        self._lengths = bytearray()
        self._header = bytearray()
        self._sizes: tuple[int, int] | None = None
        self.payload = bytearray()

    @property
    def missing(self) -> int:
        """Bytes to read next; 0 once the frame is complete."""
        if self._sizes is None:
            return _LENGTHS.size - len(self._lengths)
        return self._sizes[0] - len(self._header) or self._sizes[1] - len(self.payload)

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def feed(self, data: bytes) -> None:
        """Take bytes, at most as many as are missing."""
        if self._sizes is None:
            self._lengths += data
            if len(self._lengths) == _LENGTHS.size:
                self._sizes = self._checked(*_LENGTHS.unpack(self._lengths))
        elif len(self._header) < self._sizes[0]:
            self._header += data
        else:
            self.payload += data

    def header(self) -> dict[str, Any]:
        try:
            header = json.loads(self._header)
        except ValueError as error:
            raise WorkerError(f"the Node process wrote an answer that cannot be read: {error}") from error
        if not isinstance(header, dict):
            raise WorkerError("the Node process wrote an answer that cannot be read")
        return header

    @staticmethod
    def _checked(header: int, payload: int) -> tuple[int, int]:
        if not 0 < header <= MAX_HEADER_BYTES or payload > MAX_PAYLOAD_BYTES:
            raise WorkerError(f"the Node process announced an answer of {header} + {payload} bytes")
        return header, payload


RUNTIME = TfjsRuntime()
"""The runtime of the kind ``tfjs``; all its models share one process."""
