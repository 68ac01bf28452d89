"""A version's files, their hash, and change detection."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files
from pocketserve.repository.toml_table import is_contained_name
from pocketserve.runtimes.base import ModelLoadError
from pocketserve_wire.files.plain_file import open_plain

MAX_FILES = 4096

HASH_VERSION = 2
"""Version of the text hashed for several files; other versions' hashes are ignored."""

_CONTROL = r"[\x00-\x1f\x7f-\x9f]"

Stamp = tuple[tuple[str, int, int, int, int], ...]


def version_files(version: VersionEntry) -> list[Path]:
    """Return all files that affect a version, in a fixed order.

    These are all files of a folder or of a TensorFlow.js model's folder, and an ONNX
    file with its external weights.

    Raises:
        ModelLoadError: there are too many files, or a file that lists others is
            damaged.
    """
    path = version.path
    if path.is_dir():
        return files_below(path)
    files = [path]
    weights = version.options.get("weights")
    if isinstance(weights, str):
        files.append(_weights_file(path.parent, weights))
    if version.format.whole_folder:
        files += files_below(path.parent)
    if version.format.other_files is not None:
        real = Path(os.path.realpath(path))
        names = _other_files(version.format.other_files, real, stamp([real]))
        files += [path.parent / name for name in names]
    return list(dict.fromkeys(files))


def _weights_file(folder: Path, name: str) -> Path:
    if not is_contained_name(name):
        raise ModelLoadError(
            f"weights must be a file in the model's folder, not {name!r:.80}"
        )
    return folder / name


@functools.lru_cache(MAX_FILES)
def _other_files(
    read: Callable[[Path], Iterable[str]], path: Path, _stamp: Stamp
) -> tuple[str, ...]:
    return tuple(read(path))


def stamp(files: Sequence[Path]) -> Stamp:
    """Return a value that changes with the existing files."""
    entries = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            continue
        entries.append(
            (
                str(path),
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_ino,
            )
        )
    return tuple(entries)


def fingerprint(entry: ModelEntry, version: VersionEntry) -> object:
    """Return a value that changes with files or manifest.

    No content is read, except for the file names in an ONNX file.
    """
    manifest = entry.manifest.of_one_version()
    try:
        return (
            version,
            manifest,
            stamp(version_files(version)),
            stamp(sidecar_files(entry, version)),
        )
    except (ModelLoadError, OSError):
        return version, manifest


def key_of(path: Path) -> str:
    """Return the key of a path in the state folder: its real path."""
    return os.path.realpath(path)


def file_bytes(version: VersionEntry) -> int:
    """Return a version's size in bytes; 0 if unreadable."""
    try:
        return sum(entry[1] for entry in stamp(version_files(version)))
    except (ModelLoadError, OSError):
        return 0  # opening it will report the error


def hash_files(files: Sequence[Path], base: Path) -> str:
    """Return the SHA-256 of one file or several."""
    hashes = []
    try:
        for path in files:
            hashes.append((sha256_of(path), path.relative_to(base)))
        return combine_hashes(hashes)
    except OSError as error:
        raise read_error(error) from None
    except ValueError as error:
        raise ModelLoadError(f"the model's files cannot be read: {error}") from None


def combine_hashes(hashes: Sequence[tuple[str, Path]]) -> str:
    """Return :func:`hash_files` from the files' own SHA-256 and relative names."""
    if len(hashes) == 1:
        return hashes[0][0]
    described = []
    for value, name in hashes:
        described.append((value, name.as_posix()))
    return hashlib.sha256(describe_hashes(described)).hexdigest()


def describe_hashes(hashes: Iterable[tuple[str, str]]) -> bytes:
    """Return an unambiguous text of hashes and names."""
    lines = [f"files {HASH_VERSION}\n".encode()]
    for value, name in hashes:
        encoded = name.encode(errors="surrogateescape")
        start = f"{value} {len(encoded)} ".encode()
        lines.append(start + encoded + b"\n")
    return b"".join(lines)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of one regular file."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_error(error: OSError) -> ModelLoadError:
    """Return the error for an unreadable file of a model."""
    name = "one of them"
    if error.filename:
        name = Path(error.filename).name
    return ModelLoadError(
        f"the model's files cannot be read: {name}: {error.strerror or error}"
    )


def base_of(version: VersionEntry) -> Path:
    """Return the base folder of a version's file names."""
    if version.path.is_dir():
        return version.path
    return version.path.parent


def content_digest(version: VersionEntry) -> str:
    """Return the SHA-256 of a version's content."""
    return hash_files(version_files(version), base_of(version))


def check_digest(version: VersionEntry, digest: str) -> None:
    """Raise if a version's content has another SHA-256."""
    if version.sha256 is not None and digest != version.sha256.lower():
        raise ModelLoadError(
            f"its SHA-256 is {digest}, but model.toml says {version.sha256}; "
            "copy the file again or correct model.toml"
        )


def has_control_characters(name: str) -> bool:
    """Return whether a file's name contains control characters."""
    return re.search(_CONTROL, name) is not None


def files_below(folder: Path) -> list[Path]:
    """List the files of a model that is a folder.

    Raises:
        ModelLoadError: it contains links, too many files, or control characters in
            names.
    """
    paths = sorted(folder.rglob("*"))
    if any(path.is_symlink() for path in paths):
        raise ModelLoadError(
            f"the folder {folder.name} holds links; copy the files themselves into it"
        )
    for path in paths:
        if has_control_characters(path.name):
            raise ModelLoadError(
                f"the folder {folder.name} holds the name {ascii(path.name)[:100]}, "
                "which has control characters; rename it"
            )
    files = [path for path in paths if path.is_file()]
    if len(files) > MAX_FILES:
        raise ModelLoadError(
            f"the folder {folder.name} holds {len(files)} files; "
            f"a model has {MAX_FILES} at most"
        )
    return files
