"""Publish a result as a new version of the same model: a file beside the original, a table in the manifest."""

from __future__ import annotations

import copy
import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.messages import excerpt
from pocketserve.repository.files import version_files
from pocketserve.repository.manifest import FILE_NAME, is_valid_name, read_manifest
from pocketserve.repository.manifest_edit import (
    Document,
    declare_versions,
    edit_manifest,
)
from pocketserve.repository.scan import ModelEntry
from pocketserve.repository.toml_table import ManifestError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.state.folder_lock import PARTIAL_SUFFIX, acquire_lock, remove_tree
from pocketserve_lab.convert.converter import KINDS, ConversionError
from pocketserve_lab.convert.staging import copy_result

PARTIAL_PREFIX = ".pocketserve-convert-"
"""What the names of files begin with that are there during a publication; names with a dot in front are no models."""

JOURNAL = f"{PARTIAL_PREFIX}journal"
"""The file that says what is published, until it is: whoever comes after an interruption takes it back."""

MAX_FILE_NAME_BYTES = 255

LOCK_WAIT_S = 120.0
"""How long a conversion waits for another one that copies a result into the same folder."""


class NewVersion(NamedTuple):
    """A version to be: its name, its file's or folder's name in the model's folder, and whether it replaces one."""

    name: str
    file: str
    replaces: bool = False


def model_folder(entry: ModelEntry) -> Path:
    """Return the model's own folder; of a bare file, the one that :func:`publish` makes for it."""
    return (
        entry.folder if entry.folder.name == entry.name else entry.folder / entry.name
    )


def choose_name(
    entry: ModelEntry, source: str, kind: str, quantize: str, wish: str | None = None
) -> NewVersion:
    """Return what a result is called: by its kind and quantisation; where that is taken, by its source as well.

    A version that an earlier conversion of the same source has made is replaced.

    Args:
        wish: the user's own name for it.

    Raises:
        ConversionError: the user's own name cannot be one, or is that of a version that no conversion has made.
    """
    name = kind if quantize == "none" else f"{kind}-{quantize}"
    if wish is None and name in entry.versions and not _is_converted(entry, name):
        name = f"{name}-from-{source}"
    name = name if wish is None else wish
    file_name = f"{entry.name}.{name}{KINDS[kind].suffix}"
    if wish is not None and not (
        is_valid_name(wish) and len(file_name.encode()) <= MAX_FILE_NAME_BYTES
    ):
        fault = f"--name {excerpt(wish, 40)!r} cannot name a version: it becomes a part of URLs and of a file's name"
        raise ConversionError(
            f"{fault}; use at most 128 letters, digits, dots and dashes"
        )
    replaces = name in entry.versions
    if replaces and not _is_converted(entry, name):
        raise ConversionError(
            f"the model has a version {name!r} that no conversion has made; name another with --name"
        )
    if replaces:
        return NewVersion(
            name,
            entry.versions[name].path.relative_to(entry.folder).as_posix(),
            replaces=True,
        )
    suffix, home = KINDS[kind].suffix, model_folder(entry)
    rest = name.removeprefix(kind).lstrip("-")
    stem = entry.name if suffix else kind
    names = (
        f"{stem}.{rest}{suffix}" if rest else f"{stem}{suffix}",
        f"{entry.name}.{name}{suffix}",
    )
    bare = (
        {version.path.name for version in entry.versions.values()}
        if home != entry.folder
        else set()
    )
    file = next(
        (file for file in names if not (home / file).exists() and file not in bare),
        None,
    )
    if file is None:
        raise ConversionError(
            f"{names[-1]} is there already and belongs to no version; remove it, or use --name"
        )
    return NewVersion(name, file)


def _is_converted(entry: ModelEntry, name: str) -> bool:
    options = entry.manifest.versions.get(name)
    return options is not None and options.is_converted


def publish(
    entry: ModelEntry,
    source: str,
    result: Path,
    new: NewVersion,
    provenance: Mapping[str, Any],
    *,
    listed: bool = True,
) -> Path:
    """Put a result beside the original and name it in the manifest; return its path.

    The default version stays what it was. A bare file gets a folder of its own, which has the original, too.

    Args:
        source: the version that it was made from, whose options for its task hold for the new one as well.
        listed: whether it becomes a version; else it is only a file.

    Raises:
        ConversionError: the folder or the manifest cannot be written; all is as it was.
    """
    home = model_folder(entry)
    with _writing(home), _alone(home):
        _take_back(home)
        target, copied, old = _places(home, new.file)
        is_new = not any(home.iterdir())
        journal = {
            "version": new.name,
            "file": new.file,
            "replaces": target.exists(),
            "folder": is_new,
        }
        journal["provenance"] = provenance if listed else None
        try:
            (home / JOURNAL).write_text(json.dumps(journal), encoding="utf-8")
            if home != entry.folder:
                _adopt(entry, home)
            copy_result(result, copied)
            if copied.is_file():
                with copied.open("rb") as file:
                    os.fsync(file.fileno())
            if target.exists():
                os.replace(target, old)
            os.replace(copied, target)
            if listed:
                edit_manifest(
                    home,
                    lambda document: _add_version(
                        document, entry, source, new, provenance
                    ),
                )
        except BaseException:  # also Ctrl-C: half a folder would hide the bare file
            _take_back(home)
            raise
        _remove(old)
        (home / JOURNAL).unlink()
        return target


def check_writable(entry: ModelEntry) -> None:
    """Refuse a model in whose folder nothing can be published, by a file without a name.

    Raises:
        ConversionError: the sentence has the system's reason.
    """
    home = model_folder(entry)
    with (
        _writing(home),
        tempfile.TemporaryFile(dir=home if home.is_dir() else home.parent),
    ):
        return


@contextmanager
def _writing(home: Path) -> Iterator[None]:
    """Raise a ConversionError for whatever keeps the block from writing to a model's folder."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        way = (
            "make room and try again"
            if is_full
            else "copy the model to where you may write, and convert it there"
        )
        raise ConversionError(
            f"{home} cannot be written: {error.strerror}; {way}"
        ) from None
    except (ManifestError, ModelLoadError) as error:
        raise ConversionError(str(error)) from None


def recover(entry: ModelEntry) -> bool:
    """Take back, or end, what a command that was ended while it published has left; return whether there was any."""
    home = model_folder(entry)
    if not (home / JOURNAL).is_file():
        return False
    with _writing(home), _alone(home):
        _take_back(home)
    return True


def _places(home: Path, file: str) -> tuple[Path, Path, Path]:
    """Return where a result goes, where it is copied to before, and where what it replaces waits."""
    target = home / file
    return (
        target,
        target.with_name(f"{PARTIAL_PREFIX}copy"),
        target.with_name(f"{PARTIAL_PREFIX}old"),
    )


def _take_back(home: Path) -> None:
    """Undo the publication that the journal tells of, or end it where the manifest has the new version already.

    It may be interrupted itself: each step leaves what the next one needs to go on.
    """
    try:
        journal = json.loads((home / JOURNAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:  # it is half written: nothing else has happened
        (home / JOURNAL).unlink()
        return
    target, copied, old = _places(home, journal["file"])
    is_done = target.exists() and _is_listed(home, journal)
    if journal["folder"] and not is_done:
        remove_tree(home)
        return
    for partial in (copied, *home.glob(f".{FILE_NAME}.*{PARTIAL_SUFFIX}")):
        _remove(partial)
    if is_done:
        _remove(old)
    elif not journal["replaces"]:
        _remove(target)
    elif old.exists():
        _remove(target)
        os.replace(old, target)
    (home / JOURNAL).unlink()


def _is_listed(home: Path, journal: Mapping[str, Any]) -> bool:
    """Return whether the manifest has the version of a journal: of one that replaces another, with its provenance."""
    if journal["provenance"] is None:
        return False
    try:
        version = read_manifest(home / FILE_NAME).versions.get(journal["version"])
    except ManifestError:
        return False
    if version is None or version.file != journal["file"]:
        return False
    return not journal["replaces"] or dict(version.provenance) == journal["provenance"]


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the lock of a model's folder while the block runs: one conversion at a time publishes there.

    The folder is made where it is missing. A file system without locks has none.

    Raises:
        ConversionError: another conversion has held it for too long.
        OSError: there can be no such folder.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        home.mkdir(exist_ok=True)
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not acquire_lock(descriptor, deadline) and time.monotonic() >= deadline:
                raise ConversionError(
                    f"another conversion has been writing to {home} for {LOCK_WAIT_S:g} s; try again"
                )
            if home.exists() and os.path.samestat(os.fstat(descriptor), home.stat()):
                yield
                return
            # The one that held the lock has failed and removed the folder.
        finally:
            os.close(descriptor)


def _adopt(entry: ModelEntry, home: Path) -> None:
    """Put links to a model's bare files into its folder, or copies where there are no links."""
    for version in entry.versions.values():
        for file in version_files(version):
            target = home / file.relative_to(entry.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                continue
            try:
                os.link(file, target)
            except OSError:
                shutil.copy2(file, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _add_version(
    document: Document,
    entry: ModelEntry,
    source: str,
    new: NewVersion,
    provenance: Mapping[str, Any],
) -> None:
    """Change a manifest: all versions that there are by name, the default one, and the new one with its provenance.

    Of a version that is replaced, everything else that its owner wrote into its table stays.
    """
    declare_versions(document, entry)
    versions = document["versions"]
    if new.name in versions:
        table = versions[new.name]
        table["file"] = new.file
        table.pop("sha256", None)  # of the file before
        _update(table, "provenance", provenance)
    else:
        versions[new.name] = {
            "file": new.file,
            "provenance": copy.deepcopy(dict(provenance)),
        }
    audio = document.get("audio", {})
    if source in audio.get("versions", {}) and new.name not in audio["versions"]:
        audio["versions"][new.name] = copy.deepcopy(audio["versions"][source])


def _update(table: Document, name: str, values: Mapping[str, Any]) -> None:
    """Give an inner table other values; comments in it stay."""
    if name not in table:
        table[name] = copy.deepcopy(dict(values))
        return
    inner = table[name]
    for key in [key for key in inner if key not in values]:
        del inner[key]
    for key, value in values.items():
        if inner.get(key) != value:
            inner[key] = copy.deepcopy(value)
