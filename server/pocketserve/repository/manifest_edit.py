"""Changes of ``model.toml`` by a command: comments, order and everything else in it stay."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.repository.manifest import FILE_NAME, parse_manifest, read_manifest
from pocketserve.repository.toml_table import ManifestError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def edit_manifest(folder: Path, change: Callable[[TOMLDocument], object]) -> None:
    """Change the manifest in a model's folder; one is made where there is none.

    The new text is checked as a server checks it and takes the file's place in one step, so that nobody reads half.

    Args:
        change: changes the document in place, such as ``document["default_version"] = "onnx"``.

    Raises:
        ManifestError: the manifest is broken already, the change would break it, or it cannot be written.
    """
    path = folder / FILE_NAME
    try:
        import tomlkit  # late: a server edits nothing
    except ImportError:
        raise ManifestError(f"{FILE_NAME} is edited with tomlkit, which is missing; pip install tomlkit") from None
    if path.exists():
        read_manifest(path)
    try:
        before = path.read_bytes().decode() if path.exists() else ""  # not read_text, which drops CRs
        document = tomlkit.parse(before)
        change(document)
        after = tomlkit.dumps(document)
        parse_manifest(tomllib.loads(after))
        _replace(path, after.encode())
    except OSError as error:
        raise ManifestError(f"{path} cannot be written: {error.strerror}") from None


def _replace(path: Path, content: bytes) -> None:
    """Write a file under another name, and give it the name and the rights of the old one."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    target = Path(os.path.realpath(path))  # of a link, its file changes
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, mode)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
