"""The formats of model files, and what opens each. Importing this module imports no framework."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.runtimes.model_format import ModelFormat, Requirement

if TYPE_CHECKING:
    from pocketserve.runtimes.base import Runtime

FORMAT_PACKAGES = (
    "tflite",
    "onnx",
    "executorch",
    "torch",
    "tensorflow",
    "tfjs",
    "llm",
)
"""Packages beside this module, each with its ``FORMATS``. To add a format: write its package and add it here."""


def _formats() -> Iterator[ModelFormat]:
    for package in FORMAT_PACKAGES:
        yield from importlib.import_module(f"{__package__}.{package}").FORMATS


FORMATS: tuple[ModelFormat, ...] = tuple(
    sorted(_formats(), key=lambda format: format.last_choice)
)
"""All formats, in the order in which a default version is chosen when nothing else decides."""

SUFFIXES = tuple(suffix for format in FORMATS for suffix in format.suffixes)
FRAMEWORKS: tuple[Requirement, ...] = tuple(
    dict.fromkeys(f for format in FORMATS for f in format.frameworks)
)
"""All frameworks that are Python packages."""

MARKERS = {format.marker: format for format in FORMATS if format.marker is not None}

NOT_MODELS = frozenset(
    (
        *(
            ".txt",
            ".md",
            ".json",
            ".toml",
            ".yaml",
            ".csv",
            ".npy",
            ".npz",
            ".py",
            ".pbtxt",
        ),
        *(
            ".png",
            ".jpg",
            ".jpeg",
            ".webp",
            ".gif",
            ".bmp",
            ".wav",
            ".mp3",
            ".mp4",
            ".pdf",
        ),
    )
)
"""Endings of files that are no models, which a scan doesn't open."""

SURE_CONTENTS = ("tflite", "executorch", "torchscript")
"""Formats whose first bytes, or a zip's directory, belong to nothing but a model."""

_PICKLES = tuple(
    bytes((0x80, protocol)) for protocol in range(2, 6)
)  # what PyTorch saved before 1.6


def format_named(name: str) -> ModelFormat | None:
    """Return the format of that name."""
    return next((format for format in FORMATS if format.name == name), None)


def format_of_name(file_name: str) -> ModelFormat | None:
    """Return the format that a file's name announces; None for a file that is no model."""
    if file_name in MARKERS:
        return MARKERS[file_name]
    lower = file_name.lower()
    return next(
        (
            format
            for format in FORMATS
            if format.suffixes and lower.endswith(format.suffixes)
        ),
        None,
    )


def stem_of(file_name: str) -> str:
    """Return a model file's name without what announces its format."""
    kind = format_of_name(file_name)
    suffixes = kind.suffixes if kind is not None else ()
    suffix = next(
        (suffix for suffix in suffixes if file_name.lower().endswith(suffix)), ""
    )
    return (
        file_name.removesuffix(file_name[len(file_name) - len(suffix) :]) or file_name
    )


def format_at(path: Path) -> ModelFormat | None:
    """Return the format of a file or folder: what first bytes or a zip's directory tell, else what its name does."""
    if path.is_dir():
        return next(
            (format for marker, format in MARKERS.items() if (path / marker).is_file()),
            None,
        )
    announced = format_of_name(path.name)
    if announced is None:
        return format_of_content(path)
    if announced.by_name:
        return announced
    return format_named(content_of(path) or "") or announced


def format_of_content(path: Path) -> ModelFormat | None:
    """Return the format of a file whose name announces none, if its content is surely a model."""
    if path.name.startswith(".") or path.suffix.lower() in NOT_MODELS:
        return None
    head = first_bytes(path, 64)
    if head is None:
        return None
    if _begins_like_onnx(head):
        return format_named("onnx")
    content = content_of(path)
    return format_named(content) if content in SURE_CONTENTS else None


def _begins_like_onnx(head: bytes) -> bool:
    """Return whether a file begins with an IR version, short texts about its producer, and a graph.

    Field numbers are those of ``ModelProto`` (onnx/onnx, onnx/onnx.proto): 1 ir_version, 2 to 4 and 6 texts, 7 graph.
    """
    if len(head) < 5 or head[0] != 0x08 or not 3 <= head[1] <= 20:
        return False
    at = 2
    while at + 2 < len(head) and head[at] in (0x12, 0x1A, 0x22, 0x32):
        text = head[at + 2 : at + 2 + head[at + 1]]
        if not text.isascii() or (text and not text.decode("ascii").isprintable()):
            return False
        at += 2 + head[at + 1]
    if at >= len(head):
        return True  # a long name
    return head[at] == 0x3A


def first_bytes(path: Path, maximum: int) -> bytes | None:
    """Return how a file begins; None for what is no file or cannot be read."""
    try:
        if not path.is_file():  # opening a named pipe would wait for a writer
            return None
        with path.open("rb") as file:
            return file.read(maximum)
    except OSError:
        return None


def content_of(path: Path) -> str | None:
    """Return what a file's first bytes tell: a format's name, one of :func:`kind_of_zip`, or None."""
    head = first_bytes(path, 8)
    if head is None:
        return None
    if head.startswith(b"PK\3\4"):
        from pocketserve.formats.zip_archives import (
            kind_of_zip,
        )  # late: most models are no archives

        return kind_of_zip(path)
    if head.startswith(_PICKLES):
        return "state_dict"
    marks = ((format.name, *mark) for format in FORMATS for mark in format.magic)
    return next(
        (name for name, at, mark in marks if head[at : at + len(mark)] == mark), None
    )


@functools.cache
def missing_framework(format: ModelFormat) -> str | None:
    """Return how to install what a format needs, if no package for it is there; no framework is imported."""
    if format.missing is not None:
        return format.missing()
    from importlib.util import find_spec  # late: not before the first model

    if not format.packages or any(
        find_spec(package) is not None for package in format.packages
    ):
        return None
    return f"no framework for {format.name} models is installed: {format.install}"


def look_again() -> None:
    """Forget which frameworks were there: something may have been installed."""
    importlib.invalidate_caches()
    missing_framework.cache_clear()


def runtime_for(format: ModelFormat) -> Runtime:
    """Import and return a format's runtime (its framework is imported later, by ``open``)."""
    runtime: Runtime = importlib.import_module(format.runtime).RUNTIME
    return runtime
