"""Publish a result as a new version of its model."""

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
from functools import partial
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
"""Prefix of temporary files; names of models have no leading dot."""

JOURNAL = f"{PARTIAL_PREFIX}journal"
"""The journal of a publication in progress.

After an interruption, the next command rolls it back."""

MAX_FILE_NAME_BYTES = 255

LOCK_WAIT_S = 120.0
"""Wait for another conversion that copies a result into the same folder."""


class NewVersion(NamedTuple):
    """A future version.

    Attributes:
        file: in the model's folder; it may be a folder.
        replaces: whether the version exists already.
        main: the file of such a folder that stands for it.
    """

    name: str
    file: str
    replaces: bool = False
    main: str = ""

    @property
    def listed_file(self) -> str:
        """Return the file in the manifest."""
        return f"{self.file}/{self.main}" if self.main else self.file


def model_folder(entry: ModelEntry) -> Path:
    """Return the model's own folder.

    For a bare file, the one to make for it.
    """
    if entry.folder.name == entry.name:
        return entry.folder
    return entry.folder / entry.name


def choose_name(
    entry: ModelEntry, source: str, kind: str, quantize: str, wish: str | None = None
) -> NewVersion:
    """Choose a result's name by its kind and quantisation.

    The source is part of the name if the name is taken. A version from an earlier
    conversion of the same source is replaced.

    Args:
        wish: the user's own name for it.

    Raises:
        ConversionError: the user's own name is invalid, or that of a version that is
            not a conversion.
    """
    name = _default_name(entry, source, kind, quantize)
    if wish is not None:
        _check_name(entry, wish, kind)
        name = wish
    if name not in entry.versions:
        return NewVersion(name, _choose_file(entry, name, kind))
    if not _is_converted(entry, name):
        raise ConversionError(
            f"the model has a version {name!r} that no conversion made; choose another "
            "name with --name"
        )
    file = entry.versions[name].path.relative_to(entry.folder)
    return NewVersion(name, file.as_posix(), replaces=True)


def _default_name(entry: ModelEntry, source: str, kind: str, quantize: str) -> str:
    """Return the name of a new version, apart from one of the user's own."""
    name = kind if quantize == "none" else f"{kind}-{quantize}"
    if name in entry.versions and not _is_converted(entry, name):
        return f"{name}-from-{source}"
    return name


def _check_name(entry: ModelEntry, name: str, kind: str) -> None:
    """Raise ConversionError for an invalid or long name."""
    file_name = f"{entry.name}.{name}{KINDS[kind].suffix}"
    is_too_long = len(file_name.encode()) > MAX_FILE_NAME_BYTES
    if is_too_long or not is_valid_name(name):
        raise ConversionError(
            f"--name {excerpt(name, 40)!r} cannot name a version: it becomes a part of "
            "URLs and of a file's name; use at most 128 letters, digits, dots and "
            "dashes"
        )


def _choose_file(entry: ModelEntry, name: str, kind: str) -> str:
    """Return a free file name for a new version."""
    home = model_folder(entry)
    used = set()
    if home != entry.folder:
        used = _bare_files(entry)
    short, long = _file_names(entry, name, kind)
    for file in (short, long):
        if file not in used and not (home / file).exists():
            return file
    raise ConversionError(
        f"{long} exists already and belongs to no version; remove it, or use --name"
    )


def _file_names(entry: ModelEntry, name: str, kind: str) -> tuple[str, str]:
    """Return a short and a long file name for a version."""
    suffix = KINDS[kind].suffix
    stem = kind
    if suffix:
        stem = entry.name
    rest = name.removeprefix(kind).lstrip("-")
    if rest:
        stem = f"{stem}.{rest}"
    return f"{stem}{suffix}", f"{entry.name}.{name}{suffix}"


def _bare_files(entry: ModelEntry) -> set[str]:
    return {version.path.name for version in entry.versions.values()}


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
    input_shapes: Mapping[str, list[int]] | None = None,
) -> Path:
    """Copy a result into the model's folder and its manifest.

    Return its path. The default version does not change. A bare file gets a folder of
    its own, with the original in it.

    Args:
        source: the version that it was made from, whose options for its task apply to
            the new one as well.
        listed: whether it becomes a version; else it is only a file.
        input_shapes: of the inputs with sizes that its file fixes.

    Raises:
        ConversionError: the folder or the manifest cannot be written; nothing has
            changed.
    """
    home = model_folder(entry)
    with _writing(home), _alone(home):
        _take_back(home)
        places = _places(home, new.file)
        journal = {
            "version": new.name,
            "file": new.file,
            "listed_file": new.listed_file,
            "replaces": places.target.exists(),
            "folder": not any(home.iterdir()),
            "provenance": provenance if listed else None,
        }
        try:
            (home / JOURNAL).write_text(json.dumps(journal), encoding="utf-8")
            if home != entry.folder:
                _adopt(entry, home)
            _copy_durably(result, places.copied)
            if places.target.exists():
                os.replace(places.target, places.old)
            os.replace(places.copied, places.target)
            if listed:
                change = partial(
                    _add_version,
                    entry=entry,
                    source=source,
                    new=new,
                    provenance=provenance,
                    input_shapes=input_shapes or {},
                )
                edit_manifest(home, change)
        # Also on Ctrl-C: an incomplete folder would hide the bare file.
        except BaseException:
            _take_back(home)
            raise
        _remove(places.old)
        (home / JOURNAL).unlink()
        return places.target


def _copy_durably(result: Path, target: Path) -> None:
    """Copy a result; a file is written to the disk."""
    copy_result(result, target)
    if target.is_file():
        with target.open("rb") as file:
            os.fsync(file.fileno())


def check_writable(entry: ModelEntry) -> None:
    """Check that the model's folder can be written.

    Raises:
        ConversionError: the text has the system's reason.
    """
    home = model_folder(entry)
    folder = home if home.is_dir() else home.parent
    with _writing(home), tempfile.TemporaryFile(dir=folder):
        return


@contextmanager
def _writing(home: Path) -> Iterator[None]:
    """Turn errors of writing to a model's folder into a ConversionError."""
    try:
        yield
    except OSError as error:
        way = "copy the model to a folder where you may write, and convert it there"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            way = "make room and try again"
        raise ConversionError(
            f"{home} cannot be written: {error.strerror}; {way}"
        ) from None
    except (ManifestError, ModelLoadError) as error:
        raise ConversionError(str(error)) from None


def recover(entry: ModelEntry) -> bool:
    """Roll back or complete an interrupted publication, if there is one."""
    home = model_folder(entry)
    if not (home / JOURNAL).is_file():
        return False
    with _writing(home), _alone(home):
        _take_back(home)
    return True


class _Places(NamedTuple):
    """The paths of a publication.

    Attributes:
        target: of the result.
        copied: of the copy before it is renamed.
        old: of the file that it replaces, meanwhile.
    """

    target: Path
    copied: Path
    old: Path


def _places(home: Path, file: str) -> _Places:
    """Return where a file is, is prepared, and is kept while it is replaced."""
    target = home / file
    copied = target.with_name(f"{PARTIAL_PREFIX}copy")
    old = target.with_name(f"{PARTIAL_PREFIX}old")
    return _Places(target, copied, old)


def _take_back(home: Path) -> None:
    """Roll back the publication in the journal.

    It is completed instead if the manifest has the new version already. Each step can
    be interrupted and repeated.
    """
    journal = _read_journal(home)
    if journal is None:
        return
    target, copied, old = _places(home, journal["file"])
    is_done = target.exists() and _is_listed(home, journal)
    if journal["folder"] and not is_done:
        remove_tree(home)
        return
    unfinished = [copied, *home.glob(f".{FILE_NAME}.*{PARTIAL_SUFFIX}")]
    for path in unfinished:
        _remove(path)
    if is_done:
        _remove(old)
    elif not journal["replaces"]:
        _remove(target)
    elif old.exists():
        _remove(target)
        os.replace(old, target)
    (home / JOURNAL).unlink()


def _read_journal(home: Path) -> dict[str, Any] | None:
    """Return the journal of a publication; None if nothing has happened."""
    try:
        text = (home / JOURNAL).read_text(encoding="utf-8")
        journal: dict[str, Any] = json.loads(text)
        return journal
    except FileNotFoundError:
        return None
    except ValueError:
        # It is incomplete, and written first.
        (home / JOURNAL).unlink()
        return None


def _is_listed(home: Path, journal: Mapping[str, Any]) -> bool:
    """Return whether the manifest has the version of a journal.

    A version that replaces another must have the journal's provenance.
    """
    if journal["provenance"] is None:
        return False
    try:
        version = read_manifest(home / FILE_NAME).versions.get(journal["version"])
    except ManifestError:
        return False
    # Earlier releases wrote no other name.
    listed_file = journal.get("listed_file", journal["file"])
    if version is None or version.file != listed_file:
        return False
    return not journal["replaces"] or dict(version.provenance) == journal["provenance"]


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Lock a model's folder while publishing.

    The folder is made if it is missing. A file system may support no locks.

    Raises:
        ConversionError: another conversion holds the lock for too long.
        OSError: the folder cannot be made.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        home.mkdir(exist_ok=True)
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not acquire_lock(descriptor, deadline) and time.monotonic() >= deadline:
                raise ConversionError(
                    f"another conversion has been writing to {home} for "
                    f"{LOCK_WAIT_S:g} s; try again"
                )
            if home.exists() and os.path.samestat(os.fstat(descriptor), home.stat()):
                yield
                return
            # The other conversion has failed and removed the folder.
        finally:
            os.close(descriptor)


def _adopt(entry: ModelEntry, home: Path) -> None:
    """Link a model's bare files into its folder, or copy them."""
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
    input_shapes: Mapping[str, list[int]],
) -> None:
    """Add a version to a manifest that declares all versions.

    If it replaces one, other entries of that version's table are kept.
    """
    declare_versions(document, entry)
    versions = document["versions"]
    if new.name in versions:
        table = versions[new.name]
        table["file"] = new.listed_file
        # The hash is of the replaced file.
        table.pop("sha256", None)
        _update(table, "provenance", provenance)
    else:
        versions[new.name] = {
            "file": new.listed_file,
            "provenance": copy.deepcopy(dict(provenance)),
        }
    table = versions[new.name]
    if input_shapes:
        _update(table, "input_shapes", input_shapes)
    else:
        table.pop("input_shapes", None)
    _copy_audio(document, source, new.name)


def _copy_audio(document: Document, source: str, name: str) -> None:
    """Give a version the audio options of its source, unless it has some."""
    versions = document.get("audio", {}).get("versions", {})
    if source in versions and name not in versions:
        versions[name] = copy.deepcopy(versions[source])


def _update(table: Document, name: str, values: Mapping[str, Any]) -> None:
    """Replace the values of an inner table, but keep its comments."""
    if name not in table:
        table[name] = copy.deepcopy(dict(values))
        return
    inner = table[name]
    for key in [key for key in inner if key not in values]:
        del inner[key]
    for key, value in values.items():
        if inner.get(key) != value:
            inner[key] = copy.deepcopy(value)
