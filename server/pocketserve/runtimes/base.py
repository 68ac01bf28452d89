"""The interfaces of runtimes and their sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pocketserve.tensors import Array, TensorSpec

TRIAL_VARIABLE = "POCKETSERVE_IN_TRIAL"
"""Set in the environment of a trial's process.

Processes that a runtime starts there must stay in the trial's process group.
"""


class RuntimeMissingError(Exception):
    """A model's framework is not installed; the text has the install commands."""


class ModelLoadError(Exception):
    """A model file cannot be served; the text gives the reason and the remedy."""


class ModelSource(NamedTuple):
    """A version's files and load options."""

    # the model file (``model.py`` for unconverted PyTorch) in a private copy of the
    # version's files
    path: Path
    threads: int = 1  # threads per run
    # the version's table in the manifest, checked against the runtime's keys
    options: Mapping[str, Any] = {}
    # inputs, outputs: specs from the manifest, for formats whose files lack them
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    # SHA-256 of the code of this version that its owner trusts; no other code is run
    trusted: frozenset[str] = frozenset()
    # the owner's file that ``path`` is a copy of; None if it is no copy
    origin: Path | None = None
    # SHA-256 of the files beside it that a task may read; None if not hashed
    sides: Mapping[Path, str] | None = None
    sections: Mapping[type, Any] = {}  # the manifest's task tables by class
    memory_budget: int = 0  # bytes that the model may take; 0 means unlimited

    @property
    def original(self) -> Path:
        """The owner's file.

        Its permissions decide about trust; delegates and the like are beside it.
        """
        return self.origin or self.path

    def flag(self, option: str, default: bool = False) -> bool:
        """Return a Boolean option."""
        value = self.options.get(option, default)
        if not isinstance(value, bool):
            raise ModelLoadError(
                f"the option {option} is true or false, not {value!r:.100}"
            )
        return value


class Signature(NamedTuple):
    """A named entry point of a model file, with its own tensor names."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]


class Session(Protocol):
    """A loaded instance of a model; the engine uses it in one thread at a time."""

    # inputs, outputs: the specs of the default entry point, in the model's order
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    # named entry points; empty if the format has none
    signatures: Mapping[str, Signature]
    runtime: str  # the framework with its version, such as ``ai-edge-litert 2.3.0``
    # the actual device, such as ``cpu`` or a delegate's or execution provider's name
    device: str
    memory_bytes: int  # an estimate: weights and working memory

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Compute the outputs by name, in arrays that own their memory.

        Args:
            inputs: arrays by input name; dtypes and shapes fit the specs.
            signature: a named entry point; None is the default one.

        Raises:
            ValueError: the input does not fit.
            Exception: any error of the framework; the engine reports a failed
                inference.
        """
        ...

    def close(self) -> None:
        """Free all memory; the session must not be used afterwards."""
        ...


@runtime_checkable
class ResettableSession(Session, Protocol):
    """A session whose model keeps state between runs, such as a voice detector."""

    def reset(self) -> None:
        """Discard the state of earlier runs."""
        ...


class Runtime(Protocol):
    """Opens model files of some formats with a framework.

    A runtime whose thread count is process-wide sets ``fixed_threads = True``.
    """

    platform: str  # the name in OIP metadata, such as ``tensorflow_lite``
    # keys of a version's manifest table that this runtime accepts
    option_keys: frozenset[str]

    def open(self, source: ModelSource) -> Session:
        """Load a model.

        Raises:
            RuntimeMissingError: the framework is not installed.
            ModelLoadError: the file cannot be served.
        """
        ...
