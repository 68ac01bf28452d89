"""Sessions of Hugging Face folders that tasks serve: a process that runs transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.hugging_face.library import LIBRARY_BYTES, check_library
from pocketserve.runtimes.hugging_face.task_folder import read_task_folder
from pocketserve.runtimes.hugging_face.task_process import (
    NetworkEndedError,
    NetworkProcess,
    NetworkSettings,
    WaitCheck,
)
from pocketserve.runtimes.hugging_face.weights import weight_files
from pocketserve.runtimes.llm.memory import budget_error, mebibytes
from pocketserve.runtimes.llm.session import MAX_DEATHS
from pocketserve.tensors import Array, TensorSpec


class TaskFolderRuntime:
    """Opens Hugging Face folders for tasks."""

    platform = "transformers"
    option_keys: frozenset[str] = frozenset()

    def open(self, source: ModelSource) -> TaskFolderSession:
        name = source.original.parent.name
        try:
            folder = read_task_folder(source.path)
        except (DamagedFileError, ModelLoadError) as error:
            raise ModelLoadError(f"{name}: {error}") from error
        check_library()
        file_bytes = 0
        for file in weight_files(source.path.parent):
            file_bytes += (source.path.parent / file).stat().st_size
        settings = NetworkSettings(
            source.path.parent,
            source.threads,
            LIBRARY_BYTES + folder.weight_bytes,
            file_bytes,
        )
        return TaskFolderSession(settings, name)


def task_folder_bytes(path: Path, sections: Mapping[type, Any], budget: int) -> int:
    """Return the memory that a model will take; 0 where it can't be read.

    Raises:
        ApiError: MEMORY_BUDGET, it can't fit into the budget.
    """
    try:
        folder = read_task_folder(path)
    except (DamagedFileError, ModelLoadError):
        return 0  # the load reports the fault
    size = LIBRARY_BYTES + folder.weight_bytes
    if budget and size > budget:
        weights = mebibytes(folder.weight_bytes)
        library = mebibytes(LIBRARY_BYTES)
        way_out = "export it to ONNX, take a smaller model, or raise --memory-budget"
        parts = f"weights {weights}, library {library}"
        raise budget_error(size, parts, budget, way_out)
    return size


class TaskFolderSession:
    """A network in a process of its own, which is started again when it dies.

    Args:
        title: of the model in errors.

    Attributes:
        memory_bytes: the library and the weights in single precision.
    """

    signatures: Mapping[str, Signature] = {}
    device = "cpu"
    runtime = "transformers"

    def __init__(self, settings: NetworkSettings, title: str) -> None:
        self.memory_bytes = settings.memory_bytes
        self._settings = settings
        self._title = title
        self._is_closed = False
        self._process: NetworkProcess | None = None
        self._deaths = 0
        try:
            description = self._load()
            self.inputs: Sequence[TensorSpec] = _specs(description["inputs"])
            self.outputs: Sequence[TensorSpec] = _specs(description["outputs"])
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int | None:
        """Return the process's number; None where none runs."""
        process = self._process
        return process.pid if process is not None and process.runs else None

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the network.

        Raises:
            NetworkEndedError: the process died or hung; the next run starts a new one,
                unless it died too often.
        """
        process = self._running()
        with self._counted_deaths():
            outputs = process.run(inputs)
        self._deaths = 0
        return outputs

    def ensure_running(self, check: WaitCheck) -> None:
        """Start the process again if it died.

        Args:
            check: called while waiting; may raise to give up, and the load goes on.

        Raises:
            NetworkEndedError: it died again, or too often.
            ModelLoadError: it can't load the model any more.
        """
        self._running(check)

    def try_out(self) -> None:
        """Run an example that suits the network, for a trial."""
        if not self._running().try_out():
            raise ModelLoadError(
                f"{self._title}: the model's outputs are not numbers; the file is"
                " probably damaged"
            )

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._end()

    def _running(self, check: WaitCheck = lambda: None) -> NetworkProcess:
        """Return the process with its model loaded; start it again if it died."""
        if self._is_closed:
            raise RuntimeError("the session is closed")
        process = self._process
        if process is None or not process.runs:
            self._end()
            if self._deaths >= MAX_DEATHS:
                raise NetworkEndedError(
                    f"the model's process died {self._deaths} times in a row; load the"
                    " model again"
                )
        with self._counted_deaths():
            self._load(check)
        assert self._process is not None
        return self._process

    def _load(self, check: WaitCheck = lambda: None) -> Mapping[str, Any]:
        """Start a process unless one runs; wait for its model."""
        try:
            if self._process is None:
                self._process = NetworkProcess(self._settings)
            return self._process.describe(check)
        except NetworkEndedError as error:
            if error.by_system:
                raise
            raise ModelLoadError(f"{self._title} can't be loaded: {error}") from error
        except ValueError as error:
            raise ModelLoadError(f"{self._title} can't be loaded: {error}") from error

    @contextlib.contextmanager
    def _counted_deaths(self) -> Iterator[None]:
        try:
            yield
        except NetworkEndedError as error:
            if not error.by_system:
                self._deaths += 1
            raise
        except ModelLoadError:
            self._deaths += 1
            raise

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


def _specs(entries: Sequence[Mapping[str, Any]]) -> list[TensorSpec]:
    specs = []
    for entry in entries:
        shape = tuple(entry["shape"])
        datatype = entry.get("dtype", "FP32")
        specs.append(TensorSpec(entry["name"], datatype, shape, batch="batch"))
    return specs


RUNTIME = TaskFolderRuntime()
