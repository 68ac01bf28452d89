"""Which files make up a version, and the digest that identifies their content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from pocketserve.repository.scan import VersionEntry
from pocketserve.repository.toml_table import is_contained_name
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.state.plain_files import open_plain

MAX_FILES = 4096

Stamp = tuple[tuple[str, int, int, int, int], ...]

_NAMED: dict[Path, tuple[Stamp, tuple[str, ...]]] = {}
"""What files name, by their stamps: who asks for the files of one that failed does not read it each time."""


def version_files(version: VersionEntry) -> list[Path]:
    """Every file whose content decides what the version does, in a fixed order.

    A folder stands for all files in it; so does the folder of a TensorFlow.js ``model.json``, whose shards lie there,
    and an ONNX file counts with the weights that it names.

    Raises:
        ModelLoadError: more files than any model has.
    """
    path = version.path
    if path.is_dir():
        return files_below(path)
    files = [path]
    weights = version.options.get("weights")
    if isinstance(weights, str):
        if not is_contained_name(weights):
            raise ModelLoadError(f"weights must be a file in the model's folder, not {weights!r:.80}")
        files.append(path.parent / weights)
    if version.format.whole_folder:
        files += [other for other in files_below(path.parent) if other != path]
    files += [path.parent / name for name in _other_files(version.format, Path(os.path.realpath(path)))]
    return list(dict.fromkeys(files))


def stamp(files: Sequence[Path]) -> Stamp:
    """Return what changes when one of the files is written or replaced; missing files are left out."""
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return tuple(found)


def key_of(path: Path) -> str:
    """Return what a file or folder is known by in the state folder: its path without links."""
    return os.path.realpath(path)


def file_bytes(version: VersionEntry) -> int:
    """Size of a version's files: the estimate of its memory before it is loaded. 0 if they cannot be read."""
    try:
        return sum(entry[1] for entry in stamp(version_files(version)))
    except (ModelLoadError, OSError):
        return 0  # opening it will say why


def digest(files: Sequence[Path], base: Path) -> str:
    """SHA-256 of the content: of a single file its own, of several that of the lines ``HASH  NAME``.

    Args:
        base: the folder to which names are relative.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    try:
        return digest_of([(_sha256(path), path.relative_to(base)) for path in files])
    except OSError as error:
        raise unreadable(error) from None
    except ValueError as error:
        raise ModelLoadError(f"the model's files cannot be read: {error}") from None


def digest_of(hashes: Sequence[tuple[str, Path]]) -> str:
    """Return what :func:`digest` makes of the files' own SHA-256 and their names relative to the base."""
    if len(hashes) == 1:
        return hashes[0][0]
    return hashlib.sha256("".join(f"{value}  {name.as_posix()}\n" for value, name in hashes).encode()).hexdigest()


def unreadable(error: OSError) -> ModelLoadError:
    """One sentence for a file of a model that cannot be read."""
    name = Path(error.filename).name if error.filename else "one of them"
    return ModelLoadError(f"the model's files cannot be read: {name}: {error.strerror or error}")


def base_of(version: VersionEntry) -> Path:
    """The folder that the names of a version's files are relative to."""
    return version.path if version.path.is_dir() else version.path.parent


def content_digest(version: VersionEntry) -> str:
    """The SHA-256 of a version's content, as ``sha256`` in a manifest states it.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    return digest(version_files(version), base_of(version))


def check_digest(version: VersionEntry, found: str) -> None:
    """Hold the digest of a version's content against its manifest's ``sha256``.

    Raises:
        ModelLoadError: they differ.
    """
    if version.sha256 is not None and found != version.sha256.lower():
        raise ModelLoadError(
            f"its SHA-256 is {found}, but model.toml says {version.sha256}; copy the file again or correct model.toml"
        )


def _sha256(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _other_files(format: ModelFormat, path: Path) -> tuple[str, ...]:
    """Return the names of files that a model's file names; it is read once for each content, and not mapped.

    Raises:
        ModelLoadError: it is damaged, or what it names is not there.
    """
    if format.other_files is None:
        return ()
    now = stamp([path])
    known = _NAMED.get(path)
    if known is not None and known[0] == now:
        return known[1]
    names = tuple(format.other_files(path))
    if len(_NAMED) >= MAX_FILES:
        _NAMED.clear()
    _NAMED[path] = now, names
    return names


def files_below(folder: Path) -> list[Path]:
    """List the files of a folder that is a model, in a fixed order.

    Raises:
        ModelLoadError: it holds links, or more files than any model has.
    """
    found = sorted(folder.rglob("*"))
    if any(path.is_symlink() for path in found):
        raise ModelLoadError(f"the folder {folder.name} holds links; copy the files themselves into it")
    files = [path for path in found if path.is_file()]
    if len(files) > MAX_FILES:
        raise ModelLoadError(f"the folder {folder.name} holds {len(files)} files; a model has {MAX_FILES} at most")
    return files
