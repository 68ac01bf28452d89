"""Run TensorFlow.js models in one shared Node process.

Android kills child processes if all apps together have too many, so there is at most
one. It starts with the first model and ends with the last one, or after two minutes
without work; the next request starts it again. If it hangs or dies, the current request
fails and the next one starts a new process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.probe import run_on_zeros
from pocketserve.tensors import Array, TensorSpec, datatype_of

from .files import ModelFiles, read_files
from .process import (
    IDLE_S,
    OPEN_TIMEOUT_S,
    RUN_TIMEOUT_S,
    EndedError,
    Worker,
    WorkerError,
)
from .specs import DTYPE_NAMES, DTYPES, input_specs, output_specs

# Errors about an operator that the backend lacks; the backend cpu has them all.
_LACKING = re.compile(
    r"not registered for backend 'wasm'|not (?:yet implemented or not )?found in the registry|not yet supported"
)
"""Operators that one backend lacks and another may have."""

_TEXT = "an output is of type string"  # the worker's error for such an output


class TfjsRuntime:
    """Opens folders with a ``model.json``, or that file.

    The option ``backend`` is ``"wasm"`` or ``"cpu"``; the default is wasm if available.

    Args:
        modules: the ``node_modules`` folder; see :func:`~.packages.find_modules` for the
            default.
        run_timeout: seconds that one run may take.
        idle: seconds after which an idle process ends.
    """

    platform = "tensorflow_js"
    option_keys = frozenset({"backend"})

    def __init__(
        self,
        modules: Path | None = None,
        node: str = "node",
        run_timeout: float = RUN_TIMEOUT_S,
        idle: float = IDLE_S,
    ) -> None:
        self._worker = Worker(modules, node, idle, run_timeout)

    @property
    def pid(self) -> int | None:
        """The Node process, if it runs."""
        return self._worker.pid

    def open(self, source: ModelSource) -> TfjsSession:
        backend = source.options.get("backend")
        if backend not in (None, "wasm", "cpu"):
            raise ModelLoadError(
                f"the option backend is 'wasm' or 'cpu', not {backend!r:.80}"
            )
        files = read_files(
            source.path / "model.json" if source.path.is_dir() else source.path
        )
        return (StatefulTfjsSession if files.stateful else TfjsSession)(
            self._worker, files, backend, source.threads
        )


class TfjsSession:
    """A model in the Node process.

    Attributes:
        inputs, outputs: specs. In a graph model, inputs have the placeholders' names and
            outputs the signature's; other names are aliases.
        device: ``wasm`` or ``cpu``, the backend of TensorFlow.js.
        memory_bytes: the weights in memory, dequantised; the wasm backend has a second
            copy in WebAssembly's memory (measured: 400 MB for 192).
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self, worker: Worker, files: ModelFiles, backend: str | None, threads: int
    ) -> None:
        self._worker = worker
        self._files = files
        self._backend = backend
        self._threads = threads
        self._name = worker.register()
        self._process = 0
        self._is_open = True
        try:
            description = self._load()
            self.runtime = f"tensorflow.js {worker.version}"
            self.device: str = description["backend"]
            self.memory_bytes = files.memory_bytes
            if self.device == "wasm":
                self.memory_bytes *= 2
            self.inputs: Sequence[TensorSpec] = input_specs(
                description["inputs"], files
            )
            self.outputs: Sequence[TensorSpec] = output_specs(description, files)
            if any(spec.open for spec in self.outputs):
                self._learn_outputs()
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerError):
                raise ModelLoadError(
                    f"{files.title} could not be loaded: {error}"
                ) from error
            raise

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the model.

        Raises:
            WorkerError: the process died or hung; the next run starts a new one.
        """
        if not self._is_open:
            raise RuntimeError("the session is closed")
        return {
            spec.name: array
            for spec, array in zip(self.outputs, self._compute(inputs), strict=True)
        }

    def close(self) -> None:
        """Free the model; the last one ends the process."""
        if self._is_open:
            self._is_open = False
            self._worker.unregister(self._name, self._process)

    def _load(self) -> dict[str, Any]:
        """Open the model in the current process."""
        files = self._files
        header = {
            "op": "open",
            "model": self._name,
            "file": str(files.path),
            "graph": files.graph,
        }
        header |= {
            "shards": [str(path) for path in files.shards],
            "backend": self._backend,
        }
        with self._worker.exclusive():
            self._process = self._worker.ensure_running(self._threads)
            answer, _ = self._worker.ask(header, (), OPEN_TIMEOUT_S)
        if "error" in answer:
            raise ModelLoadError(
                f"TensorFlow.js cannot load {files.title}: {excerpt(answer['error'], 400)}"
            )
        return answer

    def _compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Run the model in the process."""
        entries = []
        payload = []
        for spec in self.inputs:
            array = inputs[spec.name]
            dtype = DTYPE_NAMES[spec.datatype]
            values = np.ascontiguousarray(array, dtype=DTYPES[dtype])
            payload.append(values.reshape(-1).view(np.uint8).data)
            entries.append(_entry(dtype, array.shape, values.nbytes))
        request = {"op": "run", "model": self._name, "inputs": entries}
        answer, data = self._ask(request, payload)
        return _read_arrays(answer["outputs"], data)

    def _ask(
        self, header: Mapping[str, Any], payload: Sequence[memoryview]
    ) -> tuple[dict[str, Any], bytearray]:
        """Send a request; start the process and load the model if necessary."""
        with self._worker.exclusive():
            for is_last in (False, True):
                if self._process != self._worker.ensure_running(self._threads):
                    self._load()
                try:
                    answer, data = self._worker.ask(
                        header, payload, self._worker.run_timeout_s
                    )
                    break
                except EndedError:  # it ended for idleness just now
                    if is_last:
                        raise
        if "error" in answer:
            raise _run_error(answer)
        return answer, data

    def _learn_outputs(self) -> None:
        """Determine undescribed outputs by a run on zeros, if possible."""
        probe = run_on_zeros(lambda arrays: TfjsSession.run(self, arrays), self.inputs)
        if probe is not None:
            types = {
                name: datatype_of(array.dtype)
                for name, array in probe.results[0].items()
            }
            self.outputs = [
                probe.learned(spec)._replace(datatype=types[spec.name], open=False)
                if spec.open
                else spec
                for spec in self.outputs
            ]


def _entry(dtype: str, shape: Sequence[int], size: int) -> dict[str, Any]:
    """Describe an array in a request to the process."""
    return {"dtype": dtype, "shape": list(shape), "bytes": size}


class StatefulTfjsSession(TfjsSession):
    """A model with layers that keep state from run to run."""

    _state_process = 0  # the process in which the state began

    def reset(self) -> None:
        self._ask({"op": "reset", "model": self._name}, ())
        self._state_process = self._process

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run; raise ``RuntimeError`` if the state's process has ended."""
        if not self._state_process:
            self.reset()  # a first run on zeros may have left its mark
        outputs = super().run(inputs, signature)
        if self._process != self._state_process:
            self._state_process = 0
            raise RuntimeError(
                "the model's state was lost with the Node process that had it; begin again"
            )
        return outputs


def _run_error(answer: Mapping[str, Any]) -> Exception:
    text = excerpt(answer["error"], 400)
    if text.startswith(_TEXT):
        return ModelLoadError(text)
    if _LACKING.search(text):
        return RuntimeError(
            f'{text}; set backend = "cpu" for this version in model.toml'
        )
    if answer.get("input"):
        return ValueError(text)
    return RuntimeError(text)


def _read_arrays(entries: Sequence[Mapping[str, Any]], data: bytearray) -> list[Array]:
    """Return the payload's tensors, which share one buffer."""
    arrays: list[Array] = []
    start = 0
    for entry in entries:
        end = start + int(entry["bytes"])
        try:
            flat: Array = np.frombuffer(
                memoryview(data)[start:end], DTYPES[entry["dtype"]]
            )
            arrays.append(flat.reshape(entry["shape"]))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkerError(
                f"the Node process wrote an answer that cannot be read: {error}"
            ) from error
        start = end
    return arrays


RUNTIME = TfjsRuntime()  # all its models share one process
