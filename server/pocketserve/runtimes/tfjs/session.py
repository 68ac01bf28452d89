"""Runs TensorFlow.js models in one Node process that all of them share.

Android ends child processes when all apps together have too many, so there is never more than one: it is started for
the first model, ends with the last one, and by itself after two minutes without work. A model that is asked something
afterwards has it started again. When it hangs or dies, the request under way fails and the next one starts a new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.tensors import Array, TensorSpec

from .files import ModelFiles, read_files
from .process import IDLE_S, OPEN_TIMEOUT_S, RUN_TIMEOUT_S, START_TIMEOUT_S, EndedError, Worker, WorkerError, sentence
from .specs import DTYPES, as_seen, dtype_of, input_specs, output_specs

_LACKING = re.compile(r"not registered for backend 'wasm'|not (?:yet implemented or not )?found in the registry")
"""What TensorFlow.js says of an operator that the chosen backend lacks; the one named cpu has them all."""

_TEXT = "an output is of type string"
"""What the worker says of an output that it cannot send."""

_COPIES = {"wasm": 2, "cpu": 1}
"""How many times a backend holds the weights."""


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
        self._worker = Worker(modules, node, idle, start_timeout)
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
        kind = StatefulSession if files.stateful else TfjsSession
        return kind(self._worker, files, backend, source.threads, self._open_timeout, self._run_timeout)


class TfjsSession:
    """One model in the Node process.

    Attributes:
        inputs, outputs: specs. Of graph models, inputs have the placeholders' names and outputs the signature's, as
            TensorFlow.js calls them; the other names of both are aliases.
        signatures: none; the formats have one entry point.
        runtime: such as ``tensorflow.js 4.22.0``.
        device: ``wasm`` or ``cpu``, the backend of TensorFlow.js that runs it.
        memory_bytes: the weights as they are in memory, where quantised ones are real numbers again, and with the wasm
            backend a second time in WebAssembly's own memory (measured: 400 MB for 192).

    Raises:
        RuntimeMissingError: the process does not start.
        ModelLoadError: TensorFlow.js cannot load the model.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self,
        worker: Worker,
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
            self.memory_bytes = files.memory_bytes * _COPIES[self.device]
            self.inputs: Sequence[TensorSpec] = input_specs(described["inputs"], files)
            self.outputs: Sequence[TensorSpec] = output_specs(described, files)
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
            raise ModelLoadError(f"TensorFlow.js cannot load {files.title}: {sentence(answer['error'])}")
        return answer

    def _compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        arrays = [np.ascontiguousarray(inputs[s.name], dtype=DTYPES[dtype_of(s)]) for s in self.inputs]
        header = {
            "op": "run",
            "model": self._name,
            "inputs": [
                {"dtype": dtype_of(spec), "shape": list(inputs[spec.name].shape), "bytes": array.nbytes}
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
            except EndedError:  # it ended for idleness just now
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _probed(self) -> Sequence[TensorSpec]:
        """Outputs that the file does not describe, as seen in a run on zeros; where that fails they stay unknown."""
        zeros = {
            spec.name: np.zeros([max(1, size) for size in spec.shape], DTYPES[dtype_of(spec)]) for spec in self.inputs
        }
        try:
            seen = self._compute(zeros)
        except (ValueError, RuntimeError) as error:
            if str(error).startswith(_TEXT):
                raise ModelLoadError(f"{self._files.title} cannot be served: {error}") from error
            return self.outputs
        free = any(-1 in spec.shape for spec in self.inputs)
        return [
            as_seen(spec, array, free) if spec.open else spec for spec, array in zip(self.outputs, seen, strict=True)
        ]


class StatefulSession(TfjsSession):
    """One model with layers that keep state from run to run."""

    _begun = 0
    """The process in which the state began."""

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`.

        Raises:
            WorkerError: the process died or hung.
            RuntimeError: TensorFlow.js cannot forget the state.
        """
        with self._worker.turn(sum(self._timeouts)):
            answer, _ = self._ask_loaded({"op": "reset", "model": self._name}, ())
        if "error" in answer:
            raise _run_error(answer)
        self._begun = self._process

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`TfjsSession`; also a RuntimeError for a step whose state went with the process that had it."""
        if not self._begun:
            self.reset()  # a first run on zeros may have left its mark
        outputs = super().run(inputs, signature)
        if self._process != self._begun:
            self._begun = 0
            raise RuntimeError("the model's state was lost with the Node process that had it; begin again")
        return outputs


def _run_error(answer: Mapping[str, Any]) -> Exception:
    text = sentence(answer["error"])
    if _LACKING.search(text):
        return RuntimeError(f'{text}; set backend = "cpu" for this version in model.toml')
    return ValueError(text) if answer.get("input") else RuntimeError(text)


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
            flat: Array = np.frombuffer(memoryview(data)[at:end], DTYPES[entry["dtype"]])
            arrays.append(flat.reshape(entry["shape"]))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkerError(f"the Node process wrote an answer that cannot be read: {error}") from error
        at = end
    return arrays


RUNTIME = TfjsRuntime()
"""The runtime of the kind ``tfjs``; all its models share one process."""
