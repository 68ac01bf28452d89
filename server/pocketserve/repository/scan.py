"""From a folder to the models in it. Reads names, manifests and the first bytes of files; no framework is used."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.repository.manifest import (
    FILE_NAME,
    Manifest,
    VersionOptions,
    is_valid_name,
    read_manifest,
)
from pocketserve.repository.toml_table import ManifestError
from pocketserve.repository.unsupported_files import (
    PICKLES,
    advice,
    advice_for_content,
    advice_for_folder,
)
from pocketserve.runtimes.model_files import failed_download
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.registry import (
    FORMATS,
    MARKERS,
    SUFFIXES,
    content_of,
    format_at,
    format_named,
    format_of_content,
    format_of_name,
    stem_of,
)
from pocketserve_wire.files.plain_file import lies_in

if TYPE_CHECKING:
    from pocketserve.repository.triton_config import TritonConfig

TRITON_CONFIG = "config.pbtxt"

MAX_VERSIONS = 64
"""Versions of a model whose manifest names none: a folder of thousands of checkpoints is no model."""

MAX_DIGITS = 19  # of a version that is a number: as many as TensorFlow Serving's have


class VersionEntry(NamedTuple):
    """A servable variant of a model."""

    name: str
    format: ModelFormat
    path: Path
    options: Mapping[str, Any] = {}
    evaluation: Mapping[str, Any] = {}
    problem: str | None = (
        None  # why it cannot be served, known without opening it; None if nothing speaks against it
    )
    sha256: str | None = None


class ModelEntry(NamedTuple):
    """A model with its versions."""

    name: str
    folder: Path  # where relative paths of the manifest start; for a bare file, the folder it lies in
    versions: Mapping[str, VersionEntry] = {}
    default_version: str = (
        ""  # answers requests that name no version; empty when there is none at all
    )
    manifest: Manifest = Manifest()
    problem: str | None = (
        None  # a fault of the whole model; one that was loaded before keeps its versions
    )
    candidates: tuple[
        str, ...
    ] = ()  # versions that may become the default one, the preferred one first
    withheld: Mapping[
        str, str
    ] = {}  # versions that its owner does not offer, with the reason
    notes: tuple[str, ...] = ()  # about settings that are not used here
    policy: Mapping[
        str, Any
    ] = {}  # which versions are offered, in the JSON form of Triton's ``version_policy``


class TooManyVersions(Exception):
    """A folder holds more models than one model has versions."""


class Models(Mapping[str, ModelEntry]):
    """The models of a folder by name, in alphabetical order; each is read on first use, and then cached.

    A bare model file is a model; so is a folder with a manifest, model files, or numbered version folders, and one
    that is a model by itself (SavedModel). Bare files that differ only in their kind are versions of one model.
    What looks like a model and cannot be served as it is, such as an archive, is listed with what to do.

    Args:
        only: the one file or model's folder in it that counts, see :func:`locate`; None for all.
    """

    def __init__(self, root: Path, only: Path | None = None) -> None:
        self._root = root
        self._only = only
        self._folders: set[str] = set()
        self._bare: dict[str, list[Path]] = {}
        self._unusable: dict[str, str] = {}
        self._entries: dict[str, ModelEntry | None] = {}
        # The folder around one model is not listed: it may hold anything, and Android's shared storage forbids it.
        names = (
            sorted(os.listdir(root))
            if only is None
            else [only.relative_to(root).parts[0]] * only.exists()
        )
        misnamed = []
        beside = frozenset(names)
        for name in names:
            if name.startswith("."):
                continue
            path = root / name
            if _leads_upwards(path):
                continue
            if path.is_dir():  # unlike a directory entry's own is_dir, false for a link that leads to itself
                if is_valid_name(name):
                    self._folders.add(name)
                elif _holds_model(path):
                    misnamed.append(name)
            elif (
                format_of_name(name) is not None
                and not name.endswith(".py")
                and name not in MARKERS
            ):
                if is_valid_name(name) and is_valid_name(stem_of(name)):
                    self._bare.setdefault(stem_of(name), []).append(path)
                else:
                    misnamed.append(name)
            elif (reason := advice(name, beside)) is not None:
                if is_valid_name(reason[0]):
                    self._unusable.setdefault(*reason)
            elif format_of_name(name) is None and format_of_content(path) is not None:
                if is_valid_name(path.stem):
                    self._bare.setdefault(path.stem, []).append(path)
                else:
                    misnamed.append(name)
        # What may be a model: only reading tells of folders.
        self.names = tuple(
            sorted(self._folders | set(self._bare) | set(self._unusable))
        )
        self.misnamed = tuple(
            misnamed
        )  # what would be a model if it had a name for one

    def __getitem__(self, name: str) -> ModelEntry:
        entry = self._read(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.names if self._read(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def present(self) -> list[str]:
        """Return the names of all models; no manifest is read, so that it is fit for a start."""
        isfile = (
            os.path.isfile
        )  # unlike Path's, false, not an error, where the folder may not be entered
        files = {
            name
            for name in self.names
            if name in self._bare or isfile(self._root / name / FILE_NAME)
        }
        return [
            name for name in self.names if name in files or self._read(name) is not None
        ]

    def copy(self) -> Models:
        """Return another index of the same models, which can be changed by itself."""
        models = copy.copy(self)
        models._entries = dict(self._entries)
        return models

    def replace(self, entry: ModelEntry) -> None:
        """Replace what the folder says under the model's name."""
        self._entries[entry.name] = entry

    def _read(self, name: str) -> ModelEntry | None:
        if name in self._entries:
            return self._entries[name]
        if (
            name not in self._folders
            and name not in self._bare
            and name not in self._unusable
        ):
            return None  # not cached: anybody may ask for anything
        return self._entries.setdefault(
            name, self._scan(name)
        )  # of two that read at the same time, the first counts

    def _scan(self, name: str) -> ModelEntry | None:
        try:
            return self._scan_model(name)
        except TooManyVersions as error:
            folder = self._root / name if name in self._folders else self._root
            return ModelEntry(name, folder, problem=str(error))

    def _scan_model(self, name: str) -> ModelEntry | None:
        model = None
        if name in self._folders:
            path = self._root / name
            try:
                model = _scan_folder(path, self._root)
            except OSError as error:  # one unreadable folder hides no other
                problem = (
                    f"the folder {name} cannot be read: {error.strerror}; chmod u+rx it"
                )
                model = ModelEntry(name, path, problem=problem)
        files = [
            path for path in self._bare.get(name, ()) if not path.is_dir()
        ]  # as one may have become since
        if model is None and files:  # a folder of the same name says more
            model = _model(
                name,
                self._root,
                self._root,
                _versions_of_files(files, variant_from=name),
                Manifest(),
            )
        if model is None and name in self._unusable:
            model = ModelEntry(name, self._root, problem=self._unusable[name])
        return (
            model
            if model is None or self._only is None
            else _with_version_at(self._only, model)
        )


def locate(path: Path) -> tuple[Path, Path | None]:
    """Return the models folder that a path names, and the one model in it that counts; None for all.

    A file is a model by itself, or a version of the model whose manifest beside it lists it. A folder with a manifest,
    and one that is a model by its own layout, is one model.
    """
    if path.is_file() and format_at(path) is not None:
        root = path.parent.parent
        has_manifest = (path.parent / FILE_NAME).is_file()
        return (root if has_manifest and len(Models(root, path)) else path.parent), path
    if any((path / name).is_file() for name in (FILE_NAME, *MARKERS)):
        return path.parent, path
    return path, None


def scan(root: Path, only: Path | None = None) -> Models:
    """Return all models of a folder, read now; or the one that counts, see :func:`locate`."""
    models = Models(root, only)
    len(models)
    return models


def _with_version_at(path: Path, model: ModelEntry) -> ModelEntry | None:
    """Return a model with the version alone that is a file; None if it has none there, whole for its folder."""
    if path.is_dir() or not model.versions:
        return model
    versions = {
        name: version
        for name, version in model.versions.items()
        if version.path == path
    }
    if not versions:
        return None
    default = next(iter(versions))
    return model._replace(
        versions=versions, default_version=default, candidates=(default,), withheld={}
    )


def _scan_folder(folder: Path, root: Path) -> ModelEntry | None:
    manifest = Manifest()
    config: TritonConfig | None = None
    if has_manifest := (folder / FILE_NAME).is_file():
        try:
            manifest = read_manifest(folder / FILE_NAME)
        except ManifestError as error:
            return ModelEntry(folder.name, folder, problem=f"{folder.name}/{error}")
    elif (config_path := folder / TRITON_CONFIG).exists():
        from pocketserve.repository.triton_config import (
            read_config,
        )  # late: few folders have one

        config = read_config(config_path)
        if config.problem is not None:
            return ModelEntry(
                folder.name, folder, problem=config.problem, notes=config.notes
            )
        manifest = config.manifest()
    if manifest.versions:
        versions = _declared_versions(manifest, folder)
    else:
        versions = _undeclared_versions(
            folder, config.file_name if config is not None else None
        )
    if versions:
        entry = _model(folder.name, folder, root, versions, manifest)
        return entry if config is None else _with_config(entry, config)
    if has_manifest:
        problem = f"{folder.name}/{FILE_NAME}: the folder holds no model file; add one or a [versions] table"
        return ModelEntry(folder.name, folder, manifest=manifest, problem=problem)
    reason = advice_for_folder(folder.name, frozenset(os.listdir(folder)))
    return None if reason is None else ModelEntry(folder.name, folder, problem=reason)


def _declared_versions(manifest: Manifest, folder: Path) -> dict[str, VersionEntry]:
    list_names = functools.cache(
        _names_in
    )  # a manifest may name thousands of files of one folder
    versions = {}
    for name, options in manifest.versions.items():
        versions[name] = _declared_version(name, options, folder, list_names)
    return versions


def _names_in(folder: Path) -> frozenset[str]:
    return frozenset(os.listdir(folder))


def _declared_version(
    name: str,
    options: VersionOptions,
    folder: Path,
    list_names: Callable[[Path], frozenset[str]],
) -> VersionEntry:
    path = folder / options.file
    kind, problem = format_at(path), None
    key = f"{folder.name}/{FILE_NAME}: versions.{name}.file"
    if not path.exists():
        problem = f"{key} names {options.file}, which does not exist; put it there"
    elif (
        kind is None
        and (reason := advice(path.name, list_names(path.parent))) is not None
    ):
        problem = f"{key}: {reason[1]}"
    elif kind is None:
        problem = f"{key} is no model ({', '.join((*SUFFIXES, *MARKERS))})"
    return VersionEntry(
        name,
        kind or FORMATS[0],
        path,
        options.options,
        options.evaluation,
        problem,
        options.sha256,
    )


def _undeclared_versions(
    folder: Path, file_name: str | None = None
) -> dict[str, VersionEntry]:
    """Return the versions of a folder whose manifest, if any, names none.

    Args:
        file_name: the model in each numbered folder; None takes the only one.
    """
    kind = format_at(folder)
    if kind is not None:
        return {kind.name: VersionEntry(kind.name, kind, folder)}
    versions = _versions_of_files(_models_in(folder), variant_from=folder.name)
    children = [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and not _leads_upwards(child)
    ]
    for child in _newest_numbered(children):
        version = _numbered_version(child, file_name)
        if version is not None:
            versions.setdefault(version.name, version)
    if versions:
        return versions
    # Hugging Face's layout: NAME/config.json, NAME/onnx/model.onnx.
    inner = [
        path
        for child in children
        if format_named(child.name)
        for path in _models_in(child)
    ]
    return _versions_of_files(inner, variant_from="model")


def _newest_numbered(folders: list[Path]) -> list[Path]:
    """Return the folders of numbered versions; of too many the newest ones."""
    numbered = [folder for folder in folders if folder.name.isdecimal()]
    numbered.sort(key=lambda folder: int(folder.name))
    return numbered[-MAX_VERSIONS:]


def _versions_of_files(
    paths: list[Path], *, variant_from: str
) -> dict[str, VersionEntry]:
    """Return versions named after the kind; where a kind has several files, with what tells them apart."""
    if paths:
        _check_number_of_versions(paths[0].parent, len(paths))
    kinds: dict[Path, ModelFormat] = {}
    of_kind: dict[str, list[Path]] = {}
    for path in paths:
        kind = format_at(path)
        if kind is not None:
            kinds[path] = kind
            of_kind.setdefault(kind.name, []).append(path)
    variants: dict[Path, str] = {}
    for same_kind in of_kind.values():
        variants |= _variants_of(same_kind, variant_from)
    versions: dict[str, VersionEntry] = {}
    for path, kind in kinds.items():
        variant = variants[path]
        name = (
            f"{kind.name}-{variant}"
            if variant and variant not in ("model", kind.name)
            else kind.name
        )
        if name in versions:  # such as m.h5 beside m.keras
            name = f"{kind.name}-{path.suffix[1:]}"
        if name in versions or not is_valid_name(name):
            name = f"{kind.name}-{len(versions) + 1}"
        versions[name] = VersionEntry(name, kind, path)
    for path in (path.with_suffix(suffix) for path in kinds for suffix in PICKLES):
        if (
            path.is_file() and (reason := advice(path.name)) is not None
        ):  # its owner may wait for it
            versions.setdefault(
                path.suffix[1:],
                VersionEntry(path.suffix[1:], FORMATS[-1], path, problem=reason[1]),
            )
    return versions


def _check_number_of_versions(folder: Path, number: int) -> None:
    """Raise TooManyVersions for a folder with more models than one model has versions."""
    if number > MAX_VERSIONS:
        raise TooManyVersions(
            f"the folder {folder.name} holds {number} models; a model has {MAX_VERSIONS} versions at most: "
            f"list the ones to serve under [versions] in {FILE_NAME}, or move the others to another folder"
        )


def _leads_upwards(path: Path) -> bool:
    """Return whether a path is a link to a folder that it lies in, which would list its models again."""
    if not path.is_symlink():
        return False
    return lies_in(path.parent, path)


def _variants_of(paths: list[Path], model: str) -> dict[Path, str]:
    """Return the part of each file's name that follows the model's name.

    If no file is named after the model, it is the part that follows the shortest name. The files have one format.
    """
    if len(paths) == 1:
        return {paths[0]: ""}
    stems = {}
    for path in paths:
        stems[path] = path.name if path.is_dir() else stem_of(path.name)
    is_named = any(_suffix(stem, model) is not None for stem in stems.values())
    base = model if is_named else min(stems.values(), key=len)
    variants = {}
    for path, stem in stems.items():
        suffix = _suffix(stem, base)
        variants[path] = stem if suffix is None else suffix
        if path.name == "model.py":
            variants[path] = ""
    return variants


def _suffix(stem: str, base: str) -> str | None:
    """Return what a stem adds to another behind a separator; None where it does not begin with it."""
    rest = stem.removeprefix(base)
    return (
        rest.strip("._-")
        if stem.startswith(base) and (not rest or rest[0] in "._-")
        else None
    )


def _numbered_version(folder: Path, file_name: str | None) -> VersionEntry | None:
    """Return the version in the layout of Triton and TensorFlow Serving: ``NAME/1/m.tflite``."""
    paths = _models_in(folder) if format_at(folder) is None else [folder]
    problem = None
    if file_name is not None and paths:
        selected = [path for path in paths if path.name == file_name]
        if not selected:
            problem = f"the folder {folder.name} has no {file_name}, which default_model_filename names"
        paths = selected or paths[:1]
    kind = format_at(paths[0]) if paths else None
    if kind is None:
        return None
    if len(paths) > 1:
        problem = f"the folder {folder.name} holds {len(paths)} models; a numbered version has one"
    return VersionEntry(plain_number(folder.name), kind, paths[0], problem=problem)


def plain_number(version: str) -> str:
    """Return a numbered version as TensorFlow Serving calls it: the folder ``00000123`` holds version 123."""
    return (
        str(int(version))
        if version.isdecimal() and len(version) <= MAX_DIGITS
        else version
    )


def _models_in(folder: Path) -> list[Path]:
    """Return model files and folders that are models, in a model's folder."""
    has_code = (folder / "model.py").is_file()
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name[0] != "." and _is_model(path, has_code)
    ]


def _is_model(path: Path, has_code: bool) -> bool:
    if path.is_dir():
        return not path.name.isdecimal() and format_at(path) is not None
    if path.name.endswith(".py"):
        return path.name == "model.py"
    if format_of_name(path.name) is None:
        return advice(path.name) is None and format_of_content(path) is not None
    # Weights beside a model.py are the model's, whatever their ending.
    return not (has_code and content_of(path) == "state_dict")


def _holds_model(folder: Path) -> bool:
    """Return whether a folder that is no model for its name has what makes one, directly in it."""
    try:
        return any(
            name == FILE_NAME or format_of_name(name) is not None
            for name in os.listdir(folder)
        )
    except OSError:
        return False


def _problem_of(path: Path, root: Path) -> str | None:
    if not lies_in(path, root):
        return f"{path.name} is a link that leaves the models folder; copy the file into it"
    return failed_download(path) or advice_for_content(path)


def _model(
    name: str,
    folder: Path,
    root: Path,
    versions: Mapping[str, VersionEntry],
    manifest: Manifest,
) -> ModelEntry:
    versions = {
        key: v._replace(problem=v.problem or _problem_of(v.path, root))
        for key, v in versions.items()
    }
    candidates = _candidates_of(versions, manifest.default_version)
    if candidates[0] not in versions:
        problem = f"{name}/{FILE_NAME}: default_version is {candidates[0]!r}, but the folder has {', '.join(versions)}"
        return ModelEntry(name, folder, manifest=manifest, problem=problem)
    return ModelEntry(
        name, folder, versions, candidates[0], manifest, candidates=candidates
    )


def _candidates_of(
    versions: Mapping[str, VersionEntry], selected: str | None
) -> tuple[str, ...]:
    """Return the versions that may become the default one, the preferred one first.

    These are the one that the manifest names; else all numbers, the highest first; else the first kind of the
    registry that can be served, plain before variants.
    """
    if selected is not None:
        return (selected if selected in versions else plain_number(selected),)
    numbers = [name for name in versions if name.isdecimal()]
    if numbers:
        return tuple(sorted(numbers, key=int, reverse=True))
    order = {kind.name: rank for rank, kind in enumerate(FORMATS)}
    return (
        min(
            versions,
            key=lambda v: (
                versions[v].problem is not None,
                order[versions[v].format.name],
                len(v),
                v,
            ),
        ),
    )


def _with_config(entry: ModelEntry, config: TritonConfig) -> ModelEntry:
    """Return a model with the version settings of its ``config.pbtxt``."""
    entry = entry._replace(notes=config.notes, policy=config.policy.to_json())
    withheld, candidates = config.policy.choose(entry.candidates)
    if not candidates:
        return ModelEntry(
            entry.name,
            entry.folder,
            problem=next(iter(withheld.values())),
            notes=entry.notes,
        )
    return entry._replace(
        default_version=candidates[0], candidates=candidates, withheld=withheld
    )
