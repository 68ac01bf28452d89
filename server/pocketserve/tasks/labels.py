"""Class names: from the manifest's file or from the model file itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pocketserve.runtimes.base import ModelLoadError

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


def label_of(labels: Sequence[str], index: int) -> str:
    """The class's name, or its number where no name is known."""
    return labels[index].strip() if index < len(labels) else str(index)
