"""A models folder with nothing but a result, laid out as it would be published: where it is tried before it is."""

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
    """A staged result: the models folder, the version's name in it, and the state folder with the consents to it."""

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
    """Lay a result out as the only version of its model, with the manifest and what else tells how it is asked.

    Code beside the model that its owner trusts, and the result itself, which was made a moment ago, may run there.

    Raises:
        ConversionError: the manifest does not fit.
    """
    models_dir, own_state = folder / "models", folder / "state"
    home = models_dir / entry.name
    home.mkdir(parents=True)
    own_state.mkdir(mode=0o700)
    _copy_sides(entry, source, home)
    target = home / result.name
    copy_result(result, target)
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
    """Copy what tells how the model is asked; not the code that only the source's own format runs."""
    for file in sidecar_files(entry, source):
        if (
            source.format.code is Code.MODULES
            and file.suffix == ".py"
            and not (file.parent / "task.py").exists()
        ):
            continue
        base = next(
            (base for base in (entry.folder, source.path) if file.is_relative_to(base)),
            file.parent,
        )
        target = home / file.relative_to(base)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copyfile(file, target)
    if (entry.folder / FILE_NAME).is_file() and entry.folder.name == entry.name:
        shutil.copyfile(entry.folder / FILE_NAME, home / FILE_NAME)


def _write_manifest(entry: ModelEntry, home: Path, version: str, file: str) -> None:
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
    try:
        trusted = TrustStore(state_dir).check(entry, source)
        parts = [
            part
            for part in code_of(staged, version)
            if part.digest in trusted or part.path is None or part.path == version.path
        ]
    except ModelLoadError as error:
        raise ConversionError(str(error)) from None
    if parts:
        TrustStore(own_state).add(staged.name, parts)
