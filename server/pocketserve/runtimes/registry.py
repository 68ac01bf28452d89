"""The registry of model formats; importing it imports no framework."""

from __future__ import annotations

import functools
import importlib
import re
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
    "speech",
    "hugging_face",
)
"""Packages beside this module, each with its ``FORMATS``; add new formats here."""


def _formats() -> Iterator[ModelFormat]:
    for package in FORMAT_PACKAGES:
        yield from importlib.import_module(f"{__package__}.{package}").FORMATS


FORMATS: tuple[ModelFormat, ...] = tuple(
    sorted(_formats(), key=lambda format: format.last_choice)
)
"""All formats, in order of preference for the default version."""

SUFFIXES = tuple(suffix for format in FORMATS for suffix in format.suffixes)
FRAMEWORKS: tuple[Requirement, ...] = tuple(
    dict.fromkeys(f for format in FORMATS for f in format.frameworks)
)
"""All frameworks that are Python packages."""

MARKERS = {format.marker: format for format in FORMATS if format.marker is not None}

CLAIMING = tuple(format for format in FORMATS if format.claims is not None)
"""Formats of several files, whose suffixes belong to other formats, too."""

NOT_MODELS = frozenset(
    (
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
    )
)
"""Suffixes of files that are not models; a scan doesn't open them."""

SURE_CONTENTS = ("tflite", "executorch", "torchscript")
"""Formats whose first bytes or zip members are unmistakable."""

_NUMBERED = re.compile(r"-\d{5}-of-\d{5}$")
"""The end of the name of a part, without its suffix."""

# PyTorch before 1.6 saved plain pickles: the PROTO opcode and a protocol number.
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def format_named(name: str) -> ModelFormat | None:
    for format in FORMATS:
        if format.name == name:
            return format
    return None


def format_of_name(file_name: str) -> ModelFormat | None:
    """Return the format that a file's name implies, or None."""
    if file_name in MARKERS:
        return MARKERS[file_name]
    lower = file_name.lower()
    for format in FORMATS:
        if format.suffixes and lower.endswith(format.suffixes):
            return format
    return None


def stem_of(path: Path) -> str:
    """Return a model file's name without its format's suffix and a part's number."""
    file_name = path.name
    kind = format_of_name(file_name)
    if kind is None:
        return file_name
    for suffix in kind.suffixes:
        if file_name.lower().endswith(suffix):
            stem = file_name[: len(file_name) - len(suffix)]
            if kind.is_split is not None and kind.is_split(path):
                stem = _NUMBERED.sub("", stem)
            return stem or file_name
    return file_name


def format_at(path: Path) -> ModelFormat | None:
    """Detect the format of a file or folder by its content, else by its name."""
    if path.is_dir():
        for marker, format in MARKERS.items():
            if (path / marker).is_file():
                return format
        return None
    claiming = claiming_format(path)
    if claiming is not None:
        return claiming
    announced = format_of_name(path.name)
    if announced is None:
        return format_of_content(path)
    if announced.by_name:
        return announced
    return format_named(content_of(path) or "") or announced


def claiming_format(path: Path) -> ModelFormat | None:
    """Return the format of several files whose main file this is, or None."""
    for format in CLAIMING:
        if path.name.startswith(format.file_starts) and _claims(format, path):
            return format
    return None


def is_part(path: Path) -> bool:
    """Return whether a file belongs to another main file."""
    main = _main_file(path.name)
    if main is not None:
        return path.with_name(main).is_file()
    candidates = [f for f in CLAIMING if path.name.startswith(f.part_starts)]
    return any(_claims(format, path) for format in candidates)


def _main_file(file_name: str) -> str | None:
    """Return the name of the main file of a later part, by its name alone."""
    kind = format_of_name(file_name)
    if kind is None or kind.main_file is None:
        return None
    return kind.main_file(file_name)


def _claims(format: ModelFormat, path: Path) -> bool:
    return format.claims is not None and format.claims(path)


def format_of_content(path: Path) -> ModelFormat | None:
    """Return the format of a file by its content alone, if unmistakable."""
    if path.name.startswith(".") or path.suffix.lower() in NOT_MODELS:
        return None
    head = first_bytes(path, 64)
    if head is None:
        return None
    if _begins_like_onnx(head):
        return format_named("onnx")
    content = content_of(path)
    if content in SURE_CONTENTS:
        return format_named(content)
    return None


def _begins_like_onnx(head: bytes) -> bool:
    """Return whether a file begins like an ONNX model.

    An IR version comes first, then short texts about the producer, then a graph. Field
    numbers of ``ModelProto`` (onnx/onnx, onnx/onnx.proto): 1 ir_version, 2 to 4 and 6
    texts, 7 graph.
    """
    if len(head) < 5 or head[0] != 0x08 or not 3 <= head[1] <= 20:
        return False
    at = 2
    while at + 2 < len(head) and head[at] in (0x12, 0x1A, 0x22, 0x32):
        start = at + 2
        at = start + head[at + 1]
        text = head[start:at]
        if not text.isascii() or (text and not text.decode("ascii").isprintable()):
            return False
    if at >= len(head):
        return True  # a long name
    return head[at] == 0x3A


def first_bytes(path: Path, maximum: int) -> bytes | None:
    """Return a regular file's first bytes; None if unreadable."""
    try:
        if not path.is_file():  # opening a named pipe would wait for a writer
            return None
        with path.open("rb") as file:
            return file.read(maximum)
    except OSError:
        return None


def content_of(path: Path) -> str | None:
    """Identify a file by its first bytes: a format, a kind of zip, or None."""
    head = first_bytes(path, 8)
    if head is None:
        return None
    if head.startswith(b"PK\3\4"):
        # late: most models are no archives
        from pocketserve.formats.zip_archives import kind_of_zip

        return kind_of_zip(path)
    if head.startswith(_PICKLES):
        return "state_dict"
    for format in FORMATS:
        for offset, magic in format.magic:
            if head[offset : offset + len(magic)] == magic:
                return format.name
    return None


@functools.cache
def missing_framework(format: ModelFormat) -> str | None:
    """Return how to install a missing framework; None if one is installed.

    No framework is imported.
    """
    if format.missing is not None:
        return format.missing()
    from importlib.util import find_spec  # late: not before the first model

    if not format.packages:
        return None
    for package in format.packages:
        if find_spec(package) is not None:
            return None
    return f"no framework for {format.name} models is installed: {format.install}"


def look_again() -> None:
    """Clear the cache of missing frameworks: one may have been installed."""
    importlib.invalidate_caches()
    missing_framework.cache_clear()


def runtime_for(format: ModelFormat) -> Runtime:
    """Import a format's runtime; ``open`` imports the framework."""
    runtime: Runtime = importlib.import_module(format.runtime).RUNTIME
    return runtime
