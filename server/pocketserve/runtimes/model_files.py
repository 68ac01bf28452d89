"""Reads the files of a model, and says what is wrong with them: damaged, outside, or what a download left there."""

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

# Absolute names, names that go up, a NUL, which hides the rest, and halves of letters but those that stand for the
# bytes of a file's name.
_NOT_BELOW = r"^$|^[/\\]|(?:^|[/\\])\.\.(?:[/\\]|$)|\0|[\ud800-\udc7f\udd00-\udfff]"
_PAGE = rb"\s*<(?:!doctype\s+html|html|head|\?xml)[\s>]"


def dictionaries(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all dictionaries in a file's JSON, however deeply they nest."""
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def failed_download(path: Path) -> str | None:
    """Return in a sentence what a file is instead of a model: a pointer of Git LFS, or a web page; None for others."""
    head = first_bytes(path, 64) or b""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return f"{path.name} is only a pointer of Git LFS: run git lfs pull in the clone, or download the file itself"
    if b"<" in head and re.match(
        _PAGE, head, re.IGNORECASE
    ):  # compiled for the first that may be one
        return (
            f"{path.name} is a web page instead of the model: download the file itself"
        )
    return None


@contextmanager
def file_errors(
    name: str,
    fault: str = "is damaged or cut short",
    remedy: str = "copy the file again",
) -> Iterator[None]:
    """Turn a ``DamagedFileError`` or ``OSError`` into a ``ModelLoadError`` that begins with a file's name."""
    try:
        yield
    except DamagedFileError as error:
        raise ModelLoadError(f"{name} {fault} ({error}); {remedy}") from error
    except OSError as error:
        raise ModelLoadError(
            f"{name} cannot be read: {error.strerror or error}"
        ) from error


def file_size(path: Path) -> int:
    """Return the bytes of a model file."""
    with file_errors(path.name):
        return path.stat().st_size


def regular_size(path: Path) -> int:
    """Return the bytes of a regular file; OSError for others: opening a pipe would wait, a device would never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is no regular file")
    return status.st_size


def weight_file(
    model: Path, title: str, name: Any, invalid_names: str
) -> tuple[Path, int]:
    """Return a file that a model names, and its size; it lies in the model's folder, once links are followed.

    The expression ``invalid_names`` finds names that mean no file of the folder to the format's framework.
    """
    fault = "is not a file inside its folder; save the model again with its weights beside it"
    if isinstance(name, str) and not re.search(f"{_NOT_BELOW}|{invalid_names}", name):
        target = Path(os.path.realpath(model.parent / name))
        if target.is_relative_to(os.path.realpath(model.parent)):
            try:
                return target, regular_size(target)
            except OSError:
                fault = "cannot be read; copy that file again"
                if not os.path.lexists(target):
                    fault = "is not there; copy that file into the model's folder"
    raise ModelLoadError(f"{title} keeps weights in {name!r:.200}, which {fault}")


@contextmanager
def load_errors(explain: Callable[[Exception], str]) -> Iterator[None]:
    """Turn whatever a framework raises into a ``ModelLoadError`` with an explanation."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(explain(error)) from error
