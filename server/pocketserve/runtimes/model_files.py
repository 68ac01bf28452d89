"""Read model files and explain their faults."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pocketserve.formats import DamagedFileError

from .base import ModelLoadError
from .registry import first_bytes

# Absolute names, "..", NUL (which truncates the name in C), and lone surrogates
# except those with which Python represents undecodable bytes of a file name.
_NOT_BELOW = r"^$|^[/\\]|(?:^|[/\\])\.\.(?:[/\\]|$)|\0|[\ud800-\udc7f\udd00-\udfff]"
_PAGE = rb"\s*<(?:!doctype\s+html|html|head|\?xml)[\s>]"


def dictionaries(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all dictionaries in parsed JSON, at any depth."""
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def failed_download(path: Path) -> str | None:
    """Explain a failed download in a sentence; None for other files.

    Recognizes a Git LFS pointer and a web page.
    """
    head = first_bytes(path, 64) or b""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return (
            f"{path.name} is only a pointer of Git LFS: run git lfs pull in the clone, "
            "or download the file itself"
        )
    # Tests for "<" first, so that the expression is compiled only when needed.
    if b"<" in head and re.match(_PAGE, head, re.IGNORECASE):
        return (
            f"{path.name} is a web page instead of the model: download the file itself"
        )
    return None


@contextmanager
def file_errors(
    name: str,
    fault: str = "is damaged or truncated",
    remedy: str = "copy the file again",
) -> Iterator[None]:
    """Turn ``DamagedFileError`` and ``OSError`` into a ``ModelLoadError``."""
    try:
        yield
    except DamagedFileError as error:
        raise ModelLoadError(f"{name} {fault} ({error}); {remedy}") from error
    except OSError as error:
        raise ModelLoadError(
            f"{name} cannot be read: {error.strerror or error}"
        ) from error


def file_size(path: Path) -> int:
    """Return the size of a model file in bytes."""
    with file_errors(path.name):
        return path.stat().st_size


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes.

    Raises:
        OSError: it is not a regular file. Opening a pipe would block, and reading a
            device might never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is not a regular file")
    return status.st_size


def weight_file(
    model: Path, title: str, name: Any, invalid_names: str
) -> tuple[Path, int]:
    """Resolve a weights file to its path and size.

    The file must be in the model's folder after links are resolved.

    Args:
        invalid_names: a regular expression for names that the format's framework
            would not read as a file of this folder.

    Raises:
        ModelLoadError: the name or the file is invalid.
    """
    fault = (
        "is not a file inside its folder; save the model again with its weights "
        "beside it"
    )
    if isinstance(name, str) and not re.search(f"{_NOT_BELOW}|{invalid_names}", name):
        folder = os.path.realpath(model.parent)
        target = Path(os.path.realpath(model.parent / name))
        if target.is_relative_to(folder):
            try:
                return target, regular_size(target)
            except OSError:
                fault = "cannot be read; copy that file again"
                if not os.path.lexists(target):
                    fault = "is not there; copy that file into the model's folder"
    raise ModelLoadError(f"{title} keeps weights in {name!r:.200}, which {fault}")


@contextmanager
def load_errors(explain: Callable[[Exception], str]) -> Iterator[None]:
    """Turn any exception of a framework into an explained ``ModelLoadError``."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(explain(error)) from error
