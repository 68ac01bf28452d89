"""TensorFlow Lite models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.runtimes.model_format import ModelFormat, Requirement

if TYPE_CHECKING:
    from pocketserve.runtimes.metadata import ModelMetadata

FRAMEWORKS = (
    Requirement("ai_edge_litert.interpreter", ".tflite models", "ai-edge-litert"),
    Requirement("tflite_runtime.interpreter", ".tflite models", "tflite-runtime", "python-tflite-runtime"),
)
INSTALL = f"pip install 'pocketserve[tflite]'; in Termux: pkg install {FRAMEWORKS[1].termux}"


def _metadata(path: Path) -> ModelMetadata | None:
    from pocketserve.runtimes.tflite.description import read_metadata  # late: not for other formats

    return read_metadata(path)


def _associated_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    from pocketserve.runtimes.tflite.archive import read_associated_files  # late: few models carry files

    return read_associated_files(path, names, limit)


def _properties(path: Path) -> Mapping[str, str]:
    from pocketserve.runtimes.tflite.archive import read_properties  # late: not for other formats

    return read_properties(path)


FORMATS = (
    ModelFormat(
        "tflite",
        "pocketserve.runtimes.tflite.session",
        suffixes=(".tflite",),
        magic=((4, b"TFL3"),),
        packages=("ai_edge_litert", "tflite_runtime", "tensorflow"),
        install=INSTALL,
        frameworks=FRAMEWORKS,
        own_threads=True,
        code_options=("delegate", "delegate_options"),
        metadata=_metadata,
        associated_files=_associated_files,
        properties=_properties,
    ),
)
