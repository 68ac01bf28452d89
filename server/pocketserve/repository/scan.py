"""From a folder to the models in it. Reads names, manifests and the first bytes of files; no framework is used."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from pocketserve.repository.manifest import (
    FILE_NAME,
    Manifest,
    VersionOptions,
    is_valid_name,
    read_manifest,
)
from pocketserve.repository.toml_table import ManifestError
from pocketserve.repository.unsupported_files import advice, advice_for_content, advice_for_folder
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.registry import (
    FORMATS,
    MARKERS,
    SUFFIXES,
    content_of,
    format_at,
    format_named,
    format_of_name,
)
from pocketserve_wire.records import dataclass

EMPTY_MANIFEST = Manifest()
TRITON_CONFIG = "config.pbtxt"

MAX_DIGITS = 19
"""Of a version that is a number: as many as TensorFlow Serving's have."""


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One servable variant of a model.

    Attributes:
        problem: why it cannot be served, known without opening it; None if nothing speaks against it.
    """

    name: str
    format: ModelFormat
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model with its versions.

    Attributes:
        folder: where relative paths of the manifest start; for a bare file, the folder it lies in.
        default_version: answers requests that name no version; empty when there is none at all.
        problem: a fault of the whole model, such as a broken manifest. One that was loaded before keeps its versions.
    """

    name: str
    folder: Path
    versions: Mapping[str, VersionEntry]
    default_version: str
    manifest: Manifest = EMPTY_MANIFEST
    problem: str | None = None


class Models(Mapping[str, ModelEntry]):
    """The models of a folder by name, in alphabetical order; each is read when it is first asked for, and then kept.

    A bare model file is a model; so is a folder with a manifest, model files, or numbered version folders, and one
    that is a model by itself (SavedModel, TensorFlow.js).
    Bare files that differ only in their kind are versions of one model. Hidden entries are passed over. What looks like
    a model and cannot be served as it is, such as an archive, is listed with what to do.

    Args:
        root: the models folder.

    Attributes:
        names: what may be a model; only reading tells of folders.
        misnamed: files and folders that would be models if they had a name for one.
        is_one: whether the folder is itself what a models folder holds.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: set[str] = set()
        self._bare: dict[str, list[Path]] = {}
        self._unusable: dict[str, str] = {}
        self._read: dict[str, ModelEntry | None] = {}
        with os.scandir(root) as entries:
            found = sorted(entry.name for entry in entries)
        misnamed, beside = [], frozenset(found)
        for name in found:
            if name.startswith("."):
                continue
            path = root / name
            if path.is_dir():  # unlike a directory entry's own is_dir, false for a link that leads to itself
                if is_valid_name(name):
                    self._folders.add(name)
                elif _holds_model(path):
                    misnamed.append(name)
            elif _is_bare_model(name):
                if is_valid_name(name) and is_valid_name(_stem(name)):
                    self._bare.setdefault(_stem(name), []).append(path)
                else:
                    misnamed.append(name)
            elif (told := advice(name, beside)) is not None and is_valid_name(told[0]):
                self._unusable.setdefault(*told)
        self.names = tuple(sorted(self._folders | set(self._bare) | set(self._unusable)))
        self.misnamed = tuple(misnamed)
        self.is_one = FILE_NAME in found or any(name in MARKERS for name in found)

    def __getitem__(self, name: str) -> ModelEntry:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.names if self._find(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def present(self) -> list[str]:
        """The names of all models; no manifest is read, so that it is fit for a start."""
        return [
            name
            for name in self.names
            # unlike Path's, this is_file is false, not an error, where the folder may not be entered
            if name in self._bare or os.path.isfile(self._root / name / FILE_NAME) or self._find(name) is not None
        ]

    def put(self, entry: ModelEntry) -> None:
        """Have a model stand for what the folder says under its name."""
        self._read[entry.name] = entry

    def _find(self, name: str) -> ModelEntry | None:
        if name in self._read:
            return self._read[name]
        if name not in self._folders and name not in self._bare and name not in self._unusable:
            return None  # not kept: anybody may ask for anything
        return self._read.setdefault(name, self._look(name))  # of two that read at the same time, the first counts

    def _look(self, name: str) -> ModelEntry | None:
        model = None
        if name in self._folders:
            path = self._root / name
            try:
                model = _scan_folder(path, self._root)
            except OSError as error:  # one unreadable folder hides no other
                problem = f"the folder {name} cannot be read: {error.strerror}; chmod u+rx it"
                model = ModelEntry(name, path, {}, "", problem=problem)
        files = [path for path in self._bare.get(name, ()) if not path.is_dir()]  # as one may have become since
        if model is None and files:  # a folder of the same name says more
            model = _model(name, self._root, _versions_of_files(files, self._root, variant_from=name))
        if model is None and name in self._unusable:
            model = ModelEntry(name, self._root, {}, "", problem=self._unusable[name])
        return model


def scan(root: Path) -> Models:
    """All models of a folder, read now.

    Raises:
        OSError: the folder cannot be read.
    """
    models = Models(root)
    len(models)
    return models


def _scan_folder(folder: Path, root: Path) -> ModelEntry | None:
    manifest_path = folder / FILE_NAME
    if manifest_path.is_file():
        return _from_manifest(folder, root, manifest_path)
    labels = None
    if (config_path := folder / TRITON_CONFIG).exists():
        from pocketserve.repository.triton_config import read_config  # late: few folders have one

        config = read_config(config_path)
        if config.problem is not None:
            return ModelEntry(folder.name, folder, {}, "", problem=config.problem)
        labels = config.labels
    versions = _undeclared_versions(folder, root)
    if versions:
        return _model(folder.name, folder, versions, dataclasses.replace(EMPTY_MANIFEST, labels=labels))
    problem = advice_for_folder(folder.name, frozenset(os.listdir(folder)))
    return None if problem is None else ModelEntry(folder.name, folder, {}, "", problem=problem)


def _from_manifest(folder: Path, root: Path, manifest_path: Path) -> ModelEntry:
    try:
        manifest = read_manifest(manifest_path)
    except ManifestError as error:
        return ModelEntry(folder.name, folder, {}, "", problem=f"{folder.name}/{error}")
    if manifest.versions:
        versions = {name: _declared_version(name, options, folder, root) for name, options in manifest.versions.items()}
    else:
        versions = _undeclared_versions(folder, root)
    if not versions:
        problem = f"{folder.name}/{FILE_NAME}: the folder holds no model file; add one or a [versions] table"
        return ModelEntry(folder.name, folder, {}, "", manifest, problem)
    return _model(folder.name, folder, versions, manifest)


def _declared_version(name: str, options: VersionOptions, folder: Path, root: Path) -> VersionEntry:
    path = folder / options.file
    kind = format_at(path)
    problem = None
    if not path.exists():
        problem = (
            f"{folder.name}/{FILE_NAME}: versions.{name}.file names {options.file}, which does not exist; put it there"
        )
    elif kind is None:
        known = ", ".join((*SUFFIXES, *MARKERS))
        problem = f"{folder.name}/{FILE_NAME}: versions.{name}.file is no model ({known})"
    return VersionEntry(
        name,
        kind or FORMATS[0],
        path,
        options.options,
        options.evaluation,
        problem or _problem_of(path, root),
        options.sha256,
    )


def _undeclared_versions(folder: Path, root: Path) -> dict[str, VersionEntry]:
    """The versions of a folder whose manifest, if any, names none."""
    itself = format_at(folder)
    if itself is not None:
        return {itself.name: VersionEntry(itself.name, itself, folder, problem=_problem_of(folder, root))}
    versions = _versions_of_files(_models_in(folder), root, variant_from=folder.name)
    children = [child for child in sorted(folder.iterdir()) if child.is_dir()]
    for child in children:
        if child.name.isdecimal():
            for name, version in _numbered_version(child, root).items():
                versions.setdefault(name, version)
    if versions:
        return versions
    # Hugging Face's layout: NAME/config.json, NAME/onnx/model.onnx.
    inner = (path for child in children if format_named(child.name) for path in _models_in(child))
    return _versions_of_files(list(inner), root, variant_from="model")


def _versions_of_files(paths: list[Path], root: Path, *, variant_from: str) -> dict[str, VersionEntry]:
    """Versions named after the kind; where a kind has several files, with what tells them apart."""
    of_kind: dict[str, list[Path]] = {}
    kinds = {path: kind for path in paths if (kind := format_at(path)) is not None}
    for path, kind in kinds.items():
        of_kind.setdefault(kind.name, []).append(path)
    versions: dict[str, VersionEntry] = {}
    for path, kind in kinds.items():
        variant = _variant_of(path, of_kind[kind.name], variant_from)
        name = f"{kind.name}-{variant}" if variant and variant not in ("model", kind.name) else kind.name
        if name in versions:  # such as m.h5 beside m.keras
            name = f"{kind.name}-{path.suffix[1:]}"
        if name in versions or not is_valid_name(name):
            name = f"{kind.name}-{len(versions) + 1}"
        versions[name] = VersionEntry(name, kind, path, problem=_problem_of(path, root))
    return versions


def _variant_of(path: Path, paths: list[Path], model: str) -> str:
    """Return what tells a file from the others of its kind: what its name adds to the model's, or to the shortest of
    them.
    """
    if len(paths) == 1 or path.name == "model.py":
        return ""
    stems = [_stem_of(other) for other in paths]
    base = model if any(_added(stem, model) is not None for stem in stems) else min(stems, key=len)
    added = _added(_stem_of(path), base)
    return _stem_of(path) if added is None else added


def _added(stem: str, base: str) -> str | None:
    """Return what a stem adds to another behind a separator; None where it does not begin with it."""
    rest = stem.removeprefix(base)
    begins = stem.startswith(base) and (not rest or rest[0] in "._-")
    return rest.strip("._-") if begins else None


def _stem_of(path: Path) -> str:
    return path.name if path.is_dir() else _stem(path.name)


def _numbered_version(folder: Path, root: Path) -> dict[str, VersionEntry]:
    """Triton's and TensorFlow Serving's layout: ``NAME/1/model.tflite``, ``NAME/1/saved_model.pb``."""
    itself = format_at(folder)
    found = [folder] if itself is not None else _models_in(folder)
    if not found:
        return {}
    kind = format_at(found[0])
    assert kind is not None
    problem = _problem_of(found[0], root)
    if len(found) > 1:
        problem = f"the folder {folder.name} holds {len(found)} models; a numbered version has one"
    name = plain_number(folder.name)
    return {name: VersionEntry(name, kind, found[0], problem=problem)}


def plain_number(version: str) -> str:
    """A numbered version as TensorFlow Serving calls it: the folder ``00000123`` holds version 123."""
    return str(int(version)) if version.isdecimal() and len(version) <= MAX_DIGITS else version


def _models_in(folder: Path) -> list[Path]:
    """Model files and folders that are models, in a model's folder."""
    shown = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    has_code = (folder / "model.py").is_file()
    return [path for path in shown if _is_model(path, has_code)]


def _is_model(path: Path, has_code: bool) -> bool:
    if path.is_dir():
        return not path.name.isdecimal() and format_at(path) is not None
    if path.name.endswith(".py"):
        return path.name == "model.py"
    # Weights beside a model.py are the model's, whatever their ending.
    return format_of_name(path.name) is not None and not (has_code and content_of(path) == "state_dict")


def _is_bare_model(file_name: str) -> bool:
    """Return whether a file that lies directly in the models folder is a model: not code, and not a part of a
    folder.
    """
    return format_of_name(file_name) is not None and not file_name.endswith(".py") and file_name not in MARKERS


def _holds_model(folder: Path) -> bool:
    """Return whether a folder that is no model for its name has what makes one, directly in it."""
    try:
        return any(name == FILE_NAME or format_of_name(name) is not None for name in os.listdir(folder))
    except OSError:
        return False


def _problem_of(path: Path, root: Path) -> str | None:
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        return f"{path.name} is a link that leaves the models folder; copy the file into it"
    from pocketserve.runtimes.placeholders import placeholder  # late: most files are what they seem

    return placeholder(path) or advice_for_content(path)


def _model(
    name: str, folder: Path, versions: dict[str, VersionEntry], manifest: Manifest = EMPTY_MANIFEST
) -> ModelEntry:
    default = manifest.default_version or _default_of(versions)
    default = default if default in versions else plain_number(default)
    if default not in versions:
        problem = f"{name}/{FILE_NAME}: default_version is {default!r}, but the folder has {', '.join(versions)}"
        return ModelEntry(name, folder, {}, "", manifest, problem)
    return ModelEntry(name, folder, versions, default, manifest)


def _default_of(versions: Mapping[str, VersionEntry]) -> str:
    """The highest number; else the first kind of the registry that can be served, plain before variants."""
    numbered = [name for name in versions if name.isdecimal()]
    if numbered:
        return max(numbered, key=int)
    order = {kind.name: rank for rank, kind in enumerate(FORMATS)}
    return min(versions, key=lambda v: (versions[v].problem is not None, order[versions[v].format.name], len(v), v))


def _stem(file_name: str) -> str:
    kind = format_of_name(file_name)
    assert kind is not None
    suffix = next(suffix for suffix in kind.suffixes if file_name.lower().endswith(suffix))
    return file_name[: -len(suffix)] or file_name
