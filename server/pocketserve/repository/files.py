"""The files that make up a version, the hash of their content, and signs that they changed."""

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
"""Version of the text that is hashed for several files; consents and verdicts of another version do not count."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Stamp = tuple[tuple[str, int, int, int, int], ...]


def version_files(version: VersionEntry) -> list[Path]:
    """Return every file whose content decides what the version does, in a fixed order.

    A folder stands for all files in it; so does the folder of a TensorFlow.js ``model.json``, whose shards lie there,
    and an ONNX file counts with the weights that it names.

    Raises:
        ModelLoadError: more files than any model has, or a file that names others is damaged.
    """
    path = version.path
    if path.is_dir():
        return files_below(path)
    files = [path]
    weights = version.options.get("weights")
    if isinstance(weights, str):
        if not is_contained_name(weights):
            raise ModelLoadError(
                f"weights must be a file in the model's folder, not {weights!r:.80}"
            )
        files.append(path.parent / weights)
    if version.format.whole_folder:
        files += files_below(path.parent)
    if version.format.other_files is not None:
        real = Path(os.path.realpath(path))
        files += [
            path.parent / name
            for name in _other_files(version.format.other_files, real, stamp([real]))
        ]
    return list(dict.fromkeys(files))


@functools.lru_cache(MAX_FILES)
def _other_files(
    read: Callable[[Path], Iterable[str]], path: Path, _stamp: Stamp
) -> tuple[str, ...]:
    return tuple(read(path))


def stamp(files: Sequence[Path]) -> Stamp:
    """Return what changes when one of the files is written or replaced; missing files are left out."""
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
    """Return what changes with a version's files, the files beside it, or what its manifest says of it.

    Two results are equal as long as nothing has changed. No content is read, but for what an ONNX file names.
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
    """Return the name of a file or folder in the state folder: its path without links."""
    return os.path.realpath(path)


def file_bytes(version: VersionEntry) -> int:
    """Return the size of a version's files: the estimate of its memory before it is loaded. 0 if unreadable."""
    try:
        return sum(entry[1] for entry in stamp(version_files(version)))
    except (ModelLoadError, OSError):
        return 0  # opening it will say why


def hash_files(files: Sequence[Path], base: Path) -> str:
    """Return the SHA-256 of files: of one its own, of several that of their hashes and names relative to a base."""
    try:
        return combine_hashes(
            [(sha256_of(path), path.relative_to(base)) for path in files]
        )
    except OSError as error:
        raise read_error(error) from None
    except ValueError as error:
        raise ModelLoadError(f"the model's files cannot be read: {error}") from None


def combine_hashes(hashes: Sequence[tuple[str, Path]]) -> str:
    """Return what :func:`hash_files` makes of the files' own SHA-256 and their names relative to the base."""
    if len(hashes) == 1:
        return hashes[0][0]
    return hashlib.sha256(
        describe_hashes([(value, name.as_posix()) for value, name in hashes])
    ).hexdigest()


def describe_hashes(hashes: Iterable[tuple[str, str]]) -> bytes:
    """Return a text of hashes and names that no other names give: the length of each name stands before it."""
    lines = [f"files {HASH_VERSION}\n".encode()]
    for value, name in hashes:
        encoded = name.encode(errors="surrogateescape")
        lines.append(f"{value} {len(encoded)} ".encode() + encoded + b"\n")
    return b"".join(lines)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of one regular file."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_error(error: OSError) -> ModelLoadError:
    """Return the error for a file of a model that cannot be read."""
    name = Path(error.filename).name if error.filename else "one of them"
    return ModelLoadError(
        f"the model's files cannot be read: {name}: {error.strerror or error}"
    )


def base_of(version: VersionEntry) -> Path:
    """Return the folder that the names of a version's files are relative to."""
    return version.path if version.path.is_dir() else version.path.parent


def content_digest(version: VersionEntry) -> str:
    """Return the SHA-256 of a version's content, as ``sha256`` in a manifest states it."""
    return hash_files(version_files(version), base_of(version))


def check_digest(version: VersionEntry, digest: str) -> None:
    """Compare the digest of a version's content with its manifest's ``sha256``."""
    if version.sha256 is not None and digest != version.sha256.lower():
        raise ModelLoadError(
            f"its SHA-256 is {digest}, but model.toml says {version.sha256}; copy the file again or correct model.toml"
        )


def has_control_characters(name: str) -> bool:
    """Return whether a file's name has characters that terminals and lists take for something else."""
    return _CONTROL.search(name) is not None


def files_below(folder: Path) -> list[Path]:
    """List the files of a folder that is a model, in a fixed order.

    Raises:
        ModelLoadError: the folder holds links, too many files, or names with control characters.
    """
    paths = sorted(folder.rglob("*"))
    if any(path.is_symlink() for path in paths):
        raise ModelLoadError(
            f"the folder {folder.name} holds links; copy the files themselves into it"
        )
    for path in paths:
        if has_control_characters(path.name):
            raise ModelLoadError(
                f"the folder {folder.name} holds the name {ascii(path.name)[:100]}, which has control characters; "
                "rename it"
            )
    files = [path for path in paths if path.is_file()]
    if len(files) > MAX_FILES:
        raise ModelLoadError(
            f"the folder {folder.name} holds {len(files)} files; a model has {MAX_FILES} at most"
        )
    return files
