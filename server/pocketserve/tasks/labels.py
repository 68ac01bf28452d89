"""Class names: from the manifest's file or from the model file itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pocketserve.runtimes import tflite_metadata
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.flatbuffer import DamagedFileError
from pocketserve.tasks.facts import ModelFacts

MAX_LABELS_BYTES = 8 * 2**20


def read_labels(folder: Path, name: str) -> list[str]:
    """One label per line, in the order of the classes.

    Raises:
        ModelLoadError: the file cannot be read.
    """
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ModelLoadError(f"model.toml: labels names {name}, a link that leaves the model's folder")
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise ModelLoadError(f"model.toml: labels names {name}, which is larger than {MAX_LABELS_BYTES} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"model.toml: labels names {name}, which cannot be read: {error}") from None


def labels_of(facts: ModelFacts, output: int, language: str | None = None) -> list[str]:
    """The class names of an output: the manifest's file, else the TFLite file's own; empty where there are none.

    Raises:
        ModelLoadError: the manifest's file cannot be read.
    """
    if facts.manifest.labels is not None:
        return read_labels(facts.entry.folder, facts.manifest.labels)
    metadata = facts.metadata
    if metadata is None or output >= len(metadata.outputs):
        return []
    try:
        return tflite_metadata.labels_of(facts.version.path, metadata.outputs[output], language) or []
    except DamagedFileError:
        return []


def label_of(labels: Sequence[str], index: int) -> str:
    """The class's name, or its number where no name is known."""
    return labels[index].strip() if index < len(labels) else str(index)
