"""Collect the facts that decide a model's task: tensors, manifest and files."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.repository.manifest import Manifest
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import (
    TASK_FILE,
    folders_of,
    names_for,
    sidecar_files,
)
from pocketserve.runtimes.base import ModelLoadError, Session
from pocketserve.runtimes.metadata import ClassOutput, ModelMetadata, TensorMetadata
from pocketserve.tensors import TensorSpec
from pocketserve_wire.files.plain_file import read_plain

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
EXPORT_FILES = ("metadata.json", "metadata.yaml", "signature.json")
CONVERTED_LABELS = "labels.txt"
CONVERTED_MODELS = (
    "model_unquant.tflite",
    "model.tflite",
    "keras_model.h5",
    "model.savedmodel",
)
"""Names that Teachable Machine's converter gives to labels and models, in lower case."""

# Characters of a text in Python's notation; parsing takes a hundred times its size.
MAX_LITERAL = 1 << 18
# Of a configuration beside a model; 21,000 class names are about 1 MB.
MAX_JSON_BYTES = 4 * 2**20


class MetadataError(ModelLoadError):
    """The metadata needs something unsupported, and the manifest doesn't say more.

    The model then runs as tensors.
    """


@dataclass(frozen=True, eq=False, repr=False)
class ModelFacts:
    """The facts that tasks use.

    Attributes:
        inputs: of the default entry point, as clients see them, in the model's order.
        properties: see :func:`properties_of`.
        max_image_pixels: larger pictures are rejected.
        opened: the opened copy of the version's file; None if it was opened itself.
        trusted: SHA-256 of the code that may run.
        sides: SHA-256 of the files beside the model at their trial.
        weights: estimated bytes of labels and tokenizer, by name.
        cache: results that several parts of a task share.
        assumed: settings that no file states, such as ``pixels 0..1``.
        notes: faults of files beside the model that don't prevent serving.
    """

    entry: ModelEntry
    version: VersionEntry
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    max_image_pixels: int = 64_000_000
    opened: Path | None = None
    trusted: frozenset[str] = frozenset()
    sides: Mapping[Path, str] | None = None
    weights: dict[str, int] = field(default_factory=dict)
    cache: dict[object, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def memory_bytes(self) -> int:
        """The estimated memory of the task's labels and its tokenizer."""
        return sum(self.weights.values())

    @property
    def manifest(self) -> Manifest:
        """The owner's settings; a task's table is ``manifest.section(Options)``."""
        return self.entry.manifest

    @functools.cached_property
    def metadata(self) -> ModelMetadata:
        """The file's metadata; empty where there is none."""
        read = self.version.format.metadata
        try:
            return (read and read(self.opened or self.version.path)) or ModelMetadata()
        except DamagedFileError:
            # The model runs without it; `inspect` reports the fault.
            return ModelMetadata()

    @functools.cached_property
    def class_outputs(self) -> Mapping[str, ClassOutput]:
        """Return a classifier's outputs in the graph, by name; empty without any."""
        read = self.version.format.class_outputs
        try:
            if read is None:
                return {}
            return read(self.opened or self.version.path)
        except DamagedFileError:
            return {}  # the model runs without names of classes

    def input_metadata(self, number: int) -> TensorMetadata:
        """Return an input's metadata; empty where there is none."""
        return next(iter(self.metadata.inputs[number : number + 1]), TensorMetadata(""))

    def output_metadata(self, number: int) -> TensorMetadata:
        """Return an output's metadata; empty where there is none."""
        return next(
            iter(self.metadata.outputs[number : number + 1]), TensorMetadata("")
        )

    def associated_files(self, names: Sequence[str], limit: int) -> list[bytes]:
        """Read files in the metadata, of at most ``limit`` bytes together.

        Raises:
            DamagedFileError: one is missing or they are larger.
        """
        read = self.version.format.associated_files
        assert read is not None  # a format whose metadata names files reads them
        return read(self.opened or self.version.path, names, limit)

    @functools.cached_property
    def _side_files(self) -> dict[str, Path]:
        paths: Iterable[Path] = self.sides or ()
        if self.sides is None:
            paths = sidecar_files(self.entry, self.version)
        return {str(path): path for path in paths}

    def beside(self, name: str) -> Path | None:
        """Return a sidecar file of the model.

        None if there is no such file.
        """
        assert name in names_for(self.manifest), (
            f"{name} is read, but counts for no verdict"
        )
        for folder in folders_of(self.entry, self.version):
            path = str(folder / name)  # keeps "..", as the paths of the scan do
            if path in self._side_files:
                return self._side_files[path]
        return None

    def read_beside(self, path: Path, limit: int) -> bytes:
        """Read a file that hasn't changed since its trial."""
        try:
            return self.read_tried(path, limit)
        except OSError as error:
            raise ModelLoadError(
                f"{path.name} beside the model cannot be read: {error.strerror}"
            ) from None

    def read_tried(self, path: Path, limit: int) -> bytes:
        """Read like :meth:`read_beside`, but raise OSError.

        It is raised if the file cannot be read or is larger.
        """
        content = read_plain(path, limit)
        if self.sides is not None and hashlib.sha256(
            content
        ).hexdigest() != self.sides.get(path):
            raise ModelLoadError(
                f"{path.name} changed while the model was loaded; load the model again"
            )
        return content

    def json_beside(self, name: str) -> dict[str, Any]:
        """Read a JSON object beside the model; empty if missing."""
        content = self._any_json_beside(name)
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise ModelLoadError(f"{name} beside the model holds no JSON object")
        return content

    def json_list_beside(self, name: str) -> list[Any] | None:
        """Read a JSON list beside the model; None if missing."""
        content = self._any_json_beside(name)
        if content is not None and not isinstance(content, list):
            raise ModelLoadError(f"{name} beside the model holds no JSON list")
        return content

    def _any_json_beside(self, name: str) -> Any:
        path = self.beside(name)
        if path is None:
            return None
        try:
            return json.loads(self.read_beside(path, MAX_JSON_BYTES).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ModelLoadError(
                f"{name} beside the model cannot be read: {str(error)[:200]}"
            ) from None

    @functools.cached_property
    def may_be_export(self) -> bool:
        """Return whether the files could be a known tool's export."""
        if self.properties:
            return True
        if any(self.beside(name) is not None for name in EXPORT_FILES):
            return True
        if self.version.path.name.lower() not in CONVERTED_MODELS:
            return False
        return self.beside(CONVERTED_LABELS) is not None

    @property
    def sent_inputs(self) -> tuple[TensorSpec, ...]:
        """Return a request's inputs.

        These are all that neither ``[state.feedback]`` nor ``[fixed_inputs]`` fills.
        """
        names = self.filled_inputs
        return tuple(
            spec
            for spec in self.inputs
            if not any(name in names for name in (spec.name, *spec.aliases))
        )

    @property
    def filled_inputs(self) -> frozenset[str]:
        """Names of the inputs that the server fills."""
        return frozenset((*self.manifest.state.feedback, *self.manifest.fixed_inputs))

    def only_input(self, task: str) -> TensorSpec:
        """Return the only input of a request."""
        specs = self.sent_inputs
        if len(specs) == 1:
            return specs[0]
        raise ModelLoadError(
            f"model.toml: task {task} needs one input, the model has {len(specs)}: "
            f"{', '.join(repr(spec.name) for spec in specs)}; name inputs that take an output's value back in "
            "[state.feedback], and those that always have the same value in [fixed_inputs]"
        )


def named_tensor(specs: Sequence[TensorSpec], key: str, name: str) -> TensorSpec:
    """Return the tensor that a manifest's key names.

    A tensor's own name precedes all aliases.
    """
    exact = [spec for spec in specs if spec.name == name]
    matches = exact[:1] or [spec for spec in specs if name in spec.aliases]
    if len(matches) == 1:
        return matches[0]
    fault = ""
    if matches:
        fault = ", another name of several"
    raise ModelLoadError(
        f"model.toml: {key} names {name!r}{fault}; the model has {', '.join(repr(spec.name) for spec in specs)}"
    )


def properties_of(version: VersionEntry, session: Session) -> dict[str, str]:
    """Return a model file's own properties.

    Values are in Python's notation.
    """
    read = version.format.properties
    return dict(
        getattr(session, "properties", {}) if read is None else read(version.path)
    )


def task_file(entry: ModelEntry, version: VersionEntry) -> Path | None:
    """Return the ``task.py`` that would be used, if any."""
    if entry.manifest.task not in (None, "custom"):
        return None
    return ModelFacts(entry, version, (), ()).beside(TASK_FILE)


def literal(text: str) -> Any:
    """Parse Python's notation, such as ``[640, 640]``; None for anything else."""
    try:
        if len(text) <= MAX_LITERAL:
            return ast.literal_eval(text)
        return None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
