"""The interface of frameworks: what a runtime and its sessions offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pocketserve.tensors import Array, TensorSpec

TRIAL_VARIABLE = "POCKETSERVE_IN_TRIAL"
"""Set in the environment of a trial's process: whatever a runtime starts there must stay in its process group."""


class RuntimeMissingError(Exception):
    """The framework that a model needs is not installed; the text holds the commands that install it."""


class ModelLoadError(Exception):
    """A model file that cannot be served; the text is one sentence that says why and what to do."""


class ModelSource(NamedTuple):
    """A version's files, and how its owner wants them loaded."""

    path: Path  # the model file (for unconverted PyTorch: ``model.py``), in a private copy of the version's files
    threads: int = 1  # threads that one run may use
    options: Mapping[
        str, Any
    ] = {}  # the version's table in the manifest, checked against the runtime's own keys
    # inputs, outputs: specs from the manifest, for frameworks whose files do not say
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    # SHA-256 of the code of this version that its owner trusts. Nothing else of it is run.
    trusted: frozenset[str] = frozenset()
    origin: Path | None = (
        None  # the owner's file that ``path`` is a copy of; None where it is no copy
    )
    # SHA-256 of the files beside it that a task may read; None where they were not hashed
    sides: Mapping[Path, str] | None = None
    sections: Mapping[type, Any] = {}  # the manifest's tables of tasks, by their class
    memory_budget: int = 0  # bytes that the model may take; 0 where nothing limits it

    @property
    def original(self) -> Path:
        """The owner's file: whose rights decide about trust, and beside which other things lie, such as delegates."""
        return self.origin or self.path

    def flag(self, option: str, default: bool = False) -> bool:
        """Return an option that is true or false."""
        value = self.options.get(option, default)
        if not isinstance(value, bool):
            raise ModelLoadError(
                f"the option {option} is true or false, not {value!r:.100}"
            )
        return value


class Signature(NamedTuple):
    """A named entry point of a model file, with the names that the file's author gave its tensors."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]


class Session(Protocol):
    """A loaded instance of a model. It is used by one thread at a time; the engine sees to that."""

    # inputs, outputs: the specs of the default entry point, in the model's order
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    signatures: Mapping[
        str, Signature
    ]  # named entry points, empty where the format has none
    runtime: str  # the framework with its version, such as ``ai-edge-litert 2.3.0``
    device: str  # what really runs it, such as ``cpu`` or the name of a delegate or execution provider
    memory_bytes: (
        int  # an estimate of what the instance holds: weights and working memory
    )

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Compute the outputs of one request by name, in arrays that own their memory.

        Args:
            inputs: arrays by input name; dtypes and shapes fit the specs.
            signature: one of the file's named entry points; None is the default one.

        Raises:
            ValueError: the input does not fit.
            Exception: whatever else the framework raises; the engine reports it as a failed inference.
        """
        ...

    def close(self) -> None:
        """Free all memory. The session is not used afterwards."""
        ...


@runtime_checkable
class ResettableSession(Session, Protocol):
    """A session whose model keeps state from run to run inside itself, such as a voice activity detector."""

    def reset(self) -> None:
        """Forget everything that earlier runs left."""
        ...


class Runtime(Protocol):
    """A framework: opens model files of some formats.

    A runtime that cannot change the threads of one run from model to model says so by ``fixed_threads = True``.
    """

    platform: str  # the name in OIP metadata, such as ``tensorflow_lite``
    option_keys: frozenset[
        str
    ]  # keys that a version's manifest table may have for this runtime

    def open(self, source: ModelSource) -> Session:
        """Load a model.

        Raises:
            RuntimeMissingError: the framework is not installed.
            ModelLoadError: the file cannot be served.
        """
        ...
