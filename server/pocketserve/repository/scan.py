"""From a folder to the models in it. Reads names and manifests only; no model file is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserve.repository.manifest import (
    FILE_NAME,
    Manifest,
    ManifestError,
    VersionOptions,
    is_valid_name,
    read_manifest,
)
from pocketserve.runtimes.registry import KINDS, Kind, is_model_file, kind_of

EMPTY_MANIFEST = Manifest()


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One servable variant of a model.

    Attributes:
        problem: why it cannot be served, known without opening it; None if nothing speaks against it.
    """

    name: str
    kind: Kind
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model with its versions.

    Attributes:
        folder: where relative paths of the manifest start; for a bare file, the folder it lies in.
        default_version: answers requests that name no version; empty when there is none at all.
        problem: a fault of the whole model, such as a broken manifest.
    """

    name: str
    folder: Path
    versions: Mapping[str, VersionEntry]
    default_version: str
    manifest: Manifest = EMPTY_MANIFEST
    problem: str | None = None


def scan(root: Path) -> dict[str, ModelEntry]:
    """All models of a folder, by name in alphabetical order.

    A bare model file is a model; so is a folder with a manifest, model files, or numbered version folders.
    Bare files that differ only in their kind are versions of one model. Hidden entries are passed over.

    Raises:
        OSError: the folder cannot be read.
    """
    models: dict[str, ModelEntry] = {}
    bare: dict[str, list[Path]] = {}
    with os.scandir(root) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith(".") or not is_valid_name(entry.name):
            continue
        path = root / entry.name
        if entry.is_dir():
            model = _scan_folder(path, root)
            if model is not None:
                models[model.name] = model
        elif is_model_file(entry.name) and not entry.name.endswith(".py"):
            bare.setdefault(_stem(entry.name), []).append(path)
    for name, paths in bare.items():
        if name not in models:  # a folder of the same name says more
            models[name] = _model(name, root, _versions_of_files(paths, root, variant_from=name))
    return dict(sorted(models.items()))


def scan_one(root: Path, name: str) -> ModelEntry | None:
    """One model, read anew; None if it is not there."""
    return scan(root).get(name)


def _scan_folder(folder: Path, root: Path) -> ModelEntry | None:
    manifest_path = folder / FILE_NAME
    if manifest_path.is_file():
        return _from_manifest(folder, root, manifest_path)
    versions = _versions_of_files(_model_files(folder), root, variant_from=folder.name)
    for child in sorted(folder.iterdir()):
        if child.is_dir() and child.name.isdigit():
            versions |= _numbered_version(child, root)
    return _model(folder.name, folder, versions) if versions else None


def _from_manifest(folder: Path, root: Path, manifest_path: Path) -> ModelEntry:
    try:
        manifest = read_manifest(manifest_path)
    except ManifestError as error:
        return ModelEntry(folder.name, folder, {}, "", problem=f"{folder.name}/{error}")
    if manifest.versions:
        versions = {name: _declared_version(name, options, folder, root) for name, options in manifest.versions.items()}
    else:
        versions = _versions_of_files(_model_files(folder), root, variant_from=folder.name)
    if not versions:
        problem = f"{folder.name}/{FILE_NAME}: the folder holds no model file; add one or a [versions] table"
        return ModelEntry(folder.name, folder, {}, "", manifest, problem)
    return _model(folder.name, folder, versions, manifest)


def _declared_version(name: str, options: VersionOptions, folder: Path, root: Path) -> VersionEntry:
    path = folder / options.file
    kind = kind_of(path.name)
    problem = None
    if kind is None:
        suffixes = ", ".join(suffix for known in KINDS for suffix in known.suffixes)
        problem = f"{folder.name}/{FILE_NAME}: versions.{name}.file is no model file ({suffixes})"
    elif not path.is_file():
        problem = f"{folder.name}/{FILE_NAME}: versions.{name}.file names {options.file}, which does not exist"
    return VersionEntry(
        name,
        kind or KINDS[0],
        path,
        options.options,
        options.evaluation,
        problem or _problem_of(path, kind, root),
    )


def _versions_of_files(paths: list[Path], root: Path, *, variant_from: str) -> dict[str, VersionEntry]:
    """Versions named after the kind, and after what stands between the model's name and the ending."""
    versions: dict[str, VersionEntry] = {}
    for path in paths:
        kind = kind_of(path.name)
        assert kind is not None
        middle = _stem(path.name).removeprefix(variant_from).strip("._-")
        variant = middle if _stem(path.name).startswith(variant_from) else _stem(path.name)
        name = kind.name if path.name == "model.py" or variant in ("", "model") else f"{kind.name}-{variant}"
        versions[name] = VersionEntry(name, kind, path, problem=_problem_of(path, kind, root))
    return versions


def _numbered_version(folder: Path, root: Path) -> dict[str, VersionEntry]:
    """Triton's layout: ``NAME/1/model.tflite``."""
    files = _model_files(folder)
    if not files:
        return {}
    kind = kind_of(files[0].name)
    assert kind is not None
    problem = _problem_of(files[0], kind, root)
    if len(files) > 1:
        problem = f"the folder {folder.name} holds {len(files)} model files; a numbered version has one"
    return {folder.name: VersionEntry(folder.name, kind, files[0], problem=problem)}


def _model_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if is_model_file(path.name) and path.is_file()]


def _problem_of(path: Path, kind: Kind | None, root: Path) -> str | None:
    if kind is not None and kind.module is None:
        return f"this release of pocketserve has no runtime for {kind.name} files"
    if not path.resolve().is_relative_to(root.resolve()):
        return f"{path.name} is a link that leaves the models folder; copy the file into it"
    return None


def _model(
    name: str, folder: Path, versions: dict[str, VersionEntry], manifest: Manifest = EMPTY_MANIFEST
) -> ModelEntry:
    return ModelEntry(name, folder, versions, manifest.default_version or _default_of(versions), manifest)


def _default_of(versions: Mapping[str, VersionEntry]) -> str:
    """The highest number; else the first kind of the registry that can be served, plain before variants."""
    numbered = [name for name in versions if name.isdigit()]
    if numbered:
        return max(numbered, key=int)
    order = {kind.name: rank for rank, kind in enumerate(KINDS)}
    return min(versions, key=lambda v: (versions[v].problem is not None, order[versions[v].kind.name], len(v), v))


def _stem(file_name: str) -> str:
    kind = kind_of(file_name)
    assert kind is not None
    suffix = next(suffix for suffix in kind.suffixes if file_name.lower().endswith(suffix))
    return file_name[: -len(suffix)] or file_name
