"""Publish a result as a new version of the same model: a file beside the original, a table in the manifest."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.convert.converter import KINDS, ConversionError
from pocketserve.repository.files import version_files
from pocketserve.repository.manifest_edit import edit_manifest
from pocketserve.repository.scan import ModelEntry
from pocketserve.repository.toml_table import ManifestError
from pocketserve.state.folder_lock import remove_tree

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

PARTIAL_PREFIX = ".pocketserve-convert-"
"""What the names of half-copied results begin with; names with a dot in front are no models."""


class NewVersion(NamedTuple):
    """A version to be: its name, its file's or folder's name in the model's folder, and whether it replaces one."""

    name: str
    file: str
    replaces: bool = False


def model_folder(entry: ModelEntry) -> Path:
    """Return the model's own folder; of a bare file, the one that :func:`publish` makes for it."""
    return entry.folder if entry.folder.name == entry.name else entry.folder / entry.name


def choose_name(entry: ModelEntry, source: str, kind: str, quantize: str, wish: str | None = None) -> NewVersion:
    """Return what a result is called: by its kind and quantisation; where that is taken, by its source as well.

    A version that an earlier conversion of the same source has made is replaced.

    Args:
        wish: the user's own name for it.

    Raises:
        ConversionError: the user's own name is that of a version that no conversion has made.
    """
    name = kind if quantize == "none" else f"{kind}-{quantize}"
    if wish is None and name in entry.versions and not _is_converted(entry, name):
        name = f"{name}-from-{source}"
    name = wish or name
    replaces = name in entry.versions
    if replaces and not _is_converted(entry, name):
        raise ConversionError(f"the model has a version {name!r} that no conversion has made; name another with --name")
    if replaces:
        return NewVersion(name, entry.versions[name].path.relative_to(entry.folder).as_posix(), replaces=True)
    suffix, home = KINDS[kind].suffix, model_folder(entry)
    rest = name.removeprefix(kind).lstrip("-")
    stem = entry.name if suffix else kind
    names = (f"{stem}.{rest}{suffix}" if rest else f"{stem}{suffix}", f"{entry.name}.{name}{suffix}")
    bare = {version.path.name for version in entry.versions.values()} if home != entry.folder else set()
    file = next((file for file in names if not (home / file).exists() and file not in bare), None)
    if file is None:
        raise ConversionError(f"{names[-1]} is there already and belongs to no version; remove it, or use --name")
    return NewVersion(name, file)


def _is_converted(entry: ModelEntry, name: str) -> bool:
    options = entry.manifest.versions.get(name)
    return options is not None and bool(options.provenance)


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
    made_folder = not home.exists()
    try:
        if home != entry.folder:
            _adopt(entry, home)
        target = home / new.file
        undo = _place(result, target)
    except OSError as error:
        if made_folder:
            remove_tree(home)
        reason = f"{home} cannot be written: {error.strerror}; make room, or convert a copy of the model"
        raise ConversionError(reason) from None
    try:
        if listed:
            edit_manifest(home, lambda document: _add_version(document, entry, source, new, provenance))
    except BaseException as error:
        undo()
        if made_folder:
            remove_tree(home)
        if isinstance(error, ManifestError):
            raise ConversionError(str(error)) from None
        raise
    if undo.before is not None:
        _remove(undo.before)
    return target


def _adopt(entry: ModelEntry, home: Path) -> None:
    """Make a folder for a model of bare files, with links to them, or copies where there are no links."""
    home.mkdir(exist_ok=True)
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


class _Undo(NamedTuple):
    target: Path
    before: Path | None

    def __call__(self) -> None:
        """Put what was there before into its place again."""
        _remove(self.target)
        if self.before is not None:
            os.replace(self.before, self.target)


def _place(result: Path, target: Path) -> _Undo:
    """Copy a file or folder under a temporary name, and give it its own in one step; return what takes that back."""
    for stale in target.parent.glob(f"{PARTIAL_PREFIX}*"):  # of an interrupted run
        _remove(stale)
    partial = target.with_name(f"{PARTIAL_PREFIX}{target.name}")
    before = target.with_name(f"{PARTIAL_PREFIX}before-{target.name}") if target.exists() else None
    try:
        if result.is_dir():
            shutil.copytree(result, partial)
        else:
            shutil.copyfile(result, partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        if before is not None:
            os.replace(target, before)
        os.replace(partial, target)
    except BaseException:
        _remove(partial)
        if before is not None and before.exists():
            os.replace(before, target)
        raise
    return _Undo(target, before)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _add_version(
    document: TOMLDocument, entry: ModelEntry, source: str, new: NewVersion, provenance: Mapping[str, Any]
) -> None:
    """Change a manifest: all versions that there are by name, the default one, and the new one with its provenance."""
    import tomlkit

    if "default_version" not in document and entry.default_version:
        document["default_version"] = entry.default_version
    if "labels" not in document and entry.manifest.labels is not None:  # of a config.pbtxt, which counts no longer
        document["labels"] = entry.manifest.labels
    if "versions" not in document:
        document["versions"] = tomlkit.table(is_super_table=True)
        for name, version in entry.versions.items():
            table = tomlkit.table()
            table["file"] = version.path.relative_to(entry.folder).as_posix()
            document["versions"][name] = table
    table = tomlkit.table()
    table["file"] = new.file
    inner = tomlkit.table()
    for key, value in provenance.items():
        inner[key] = value
    table["provenance"] = inner
    versions: Any = document["versions"]
    if new.name in versions:
        del versions[new.name]
    versions[new.name] = table
    audio: Any = document.get("audio", {})
    if source in audio.get("versions", {}) and new.name not in audio["versions"]:
        audio["versions"][new.name] = copy.deepcopy(audio["versions"][source])
