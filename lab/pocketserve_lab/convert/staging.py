"""A temporary models folder, to try a result before publication."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from pocketserve.repository.manifest import FILE_NAME
from pocketserve.repository.manifest_edit import Document, edit_manifest
from pocketserve.repository.scan import ModelEntry, VersionEntry, scan
from pocketserve.repository.sidecar_files import sidecar_files
from pocketserve.repository.toml_table import ManifestError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import Code, ModelFormat
from pocketserve.trust.code_parts import code_of
from pocketserve.trust.store import TrustStore
from pocketserve_lab.convert.converter import ConversionError


class Staged(NamedTuple):
    """A staged result.

    Attributes:
        version: its name in the models folder.
        state_dir: the folder with the consents to its code.
    """

    models_dir: Path
    version: str
    state_dir: Path


def stage(
    entry: ModelEntry,
    source: VersionEntry,
    result: Path,
    format: ModelFormat,
    folder: Path,
    state_dir: Path,
) -> Staged:
    """Copy a result as the only version of its model.

    Code of the model that its owner trusts, and the new result itself, may run there.

    Raises:
        ConversionError: the manifest does not fit.
    """
    models_dir, own_state = folder / "models", folder / "state"
    home = models_dir / entry.name
    home.mkdir(parents=True)
    own_state.mkdir(mode=0o700)
    _copy_sides(entry, source, home)
    copy_result(result, home / result.name)
    _write_manifest(entry, home, format.name, result.name)
    staged = scan(models_dir)[entry.name]
    version = staged.versions.get(format.name)
    if version is None or version.format.name != format.name:
        fault = "no model" if version is None else f"a {version.format.name} model"
        raise ConversionError(
            f"the result is {staged.problem or fault}, and no {format.name} file"
        )
    _consent(entry, source, staged, version, own_state, state_dir)
    return Staged(models_dir, version.name, own_state)


def copy_result(result: Path, target: Path) -> None:
    """Copy a result, which is a file or a folder."""
    if result.is_dir():
        shutil.copytree(result, target)
    else:
        shutil.copyfile(result, target)


def _copy_sides(entry: ModelEntry, source: VersionEntry, home: Path) -> None:
    """Copy the files that define the task."""
    is_code = source.format.code is Code.MODULES
    for file in sidecar_files(entry, source):
        has_task = (file.parent / "task.py").exists()
        if is_code and file.suffix == ".py" and not has_task:
            continue
        target = home / file.relative_to(_base_of(file, entry, source))
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copyfile(file, target)
    _copy_manifest(entry, home)


def _copy_manifest(entry: ModelEntry, home: Path) -> None:
    manifest = entry.folder / FILE_NAME
    if manifest.is_file() and entry.folder.name == entry.name:
        shutil.copyfile(manifest, home / FILE_NAME)


def _base_of(file: Path, entry: ModelEntry, source: VersionEntry) -> Path:
    """Return the folder that a side file's path is relative to."""
    for base in (entry.folder, source.path):
        if file.is_relative_to(base):
            return base
    return file.parent


def _write_manifest(entry: ModelEntry, home: Path, version: str, file: str) -> None:
    """Describe a folder with the one version that is tried."""

    def change(document: Document) -> None:
        document["versions"] = {version: {"file": file}}
        document["default_version"] = version
        if isinstance(entry.manifest.labels, str):
            document["labels"] = entry.manifest.labels

    try:
        edit_manifest(home, change)
    except ManifestError as error:
        raise ConversionError(str(error)) from None


def _consent(
    entry: ModelEntry,
    source: VersionEntry,
    staged: ModelEntry,
    version: VersionEntry,
    own_state: Path,
    state_dir: Path,
) -> None:
    parts = []
    try:
        trusted = TrustStore(state_dir).check(entry, source)
        for part in code_of(staged, version):
            is_result = part.path is None or part.path == version.path
            if is_result or part.digest in trusted:
                parts.append(part)
    except ModelLoadError as error:
        raise ConversionError(str(error)) from None
    if parts:
        TrustStore(own_state).add(staged.name, parts)
