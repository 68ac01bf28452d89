"""Says what is wrong with a model's file: it cannot be read, is damaged, or is what a clone or download left there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pocketserve.formats import DamagedFileError

from .base import ModelLoadError
from .registry import first_bytes

_PAGE = rb"\s*<(?:!doctype\s+html|html|head|\?xml)[\s>]"


def failed_download(path: Path) -> str | None:
    """Return why a file is not what its name promises: a pointer of Git LFS, or the page that a link to it led to.

    Returns:
        A sentence that begins with the file's name; None for anything else, what cannot be read among it.
    """
    head = first_bytes(path, 64) or b""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return f"{path.name} is only a pointer of Git LFS: run git lfs pull in the clone, or download the file itself"
    if b"<" in head and re.match(_PAGE, head, re.IGNORECASE):  # compiled for the first that may be one
        return f"{path.name} is a web page instead of the model: download the file itself"
    return None


@contextmanager
def file_errors(
    name: str, fault: str = "is damaged or cut short", remedy: str = "copy the file again"
) -> Iterator[None]:
    """Turn a ``DamagedFileError`` or ``OSError`` into a ``ModelLoadError`` that begins with a file's name."""
    try:
        yield
    except DamagedFileError as error:
        raise ModelLoadError(f"{name} {fault} ({error}); {remedy}") from error
    except OSError as error:
        raise ModelLoadError(f"{name} cannot be read: {error.strerror or error}") from error


def file_size(path: Path) -> int:
    """Return the bytes of a model file."""
    with file_errors(path.name):
        return path.stat().st_size


@contextmanager
def load_errors(explain: Callable[[Exception], str]) -> Iterator[None]:
    """Turn whatever a framework raises into a ``ModelLoadError`` with an explanation."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(explain(error)) from error
