"""Find the models in a folder without using a framework."""

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
    claiming_format,
    content_of,
    format_at,
    format_named,
    format_of_content,
    format_of_name,
    is_part,
    stem_of,
)
from pocketserve_wire.files.plain_file import lies_in

if TYPE_CHECKING:
    from pocketserve.repository.triton_config import TritonConfig

TRITON_CONFIG = "config.pbtxt"

MAX_VERSIONS = 64
"""Limit without a manifest: a folder of thousands of checkpoints is not a model."""

MAX_DIGITS = 19  # of a numbered version, as in TensorFlow Serving


class VersionEntry(NamedTuple):
    """A variant of a model.

    Attributes:
        problem: why it cannot be served, as far as known without opening it.
    """

    name: str
    format: ModelFormat
    path: Path
    options: Mapping[str, Any] = {}
    evaluation: Mapping[str, Any] = {}
    problem: str | None = None
    sha256: str | None = None


class ModelEntry(NamedTuple):
    """A model with its versions.

    Attributes:
        folder: the base of relative paths in the manifest; a bare file's folder.
        default_version: answers requests without a version; empty if there is none.
        problem: a fault of the whole model; if it was loaded, it keeps its versions.
        candidates: versions that may become the default, the preferred one first.
        withheld: versions that its owner does not offer, with the reason.
        notes: sentences about settings that are not applied.
        policy: the offered versions, in the JSON form of Triton's ``version_policy``.
    """

    name: str
    folder: Path
    versions: Mapping[str, VersionEntry] = {}
    default_version: str = ""
    manifest: Manifest = Manifest()
    problem: str | None = None
    candidates: tuple[str, ...] = ()
    withheld: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    policy: Mapping[str, Any] = {}


class TooManyVersions(Exception):
    """A folder contains more models than allowed versions."""


class Models(Mapping[str, ModelEntry]):
    """The models of a folder by name, read on demand.

    A model is a bare model file, or a folder with a manifest, model files, or numbered
    version folders, or a folder that is a model by itself (SavedModel). Bare files that
    differ only in their format are versions of one model. Files that look like a model
    but cannot be served, such as archives, are listed with advice.

    Args:
        only: the only model to list, see :func:`locate`; None for all.

    Attributes:
        names: names of all potential models; folders are checked when they are read.
        misnamed: names that are invalid for a model.
    """

    def __init__(self, root: Path, only: Path | None = None) -> None:
        self._root = root
        self._only = only
        self._folders: set[str] = set()
        self._bare: dict[str, list[Path]] = {}
        self._unusable: dict[str, str] = {}
        self._entries: dict[str, ModelEntry | None] = {}
        misnamed = []
        names = self._list_names()
        beside = frozenset(names)
        for name in names:
            if name.startswith(".") or _leads_upwards(root / name):
                continue
            if not self._add(name, beside):
                misnamed.append(name)
        self.names = tuple(
            sorted(self._folders | set(self._bare) | set(self._unusable))
        )
        self.misnamed = tuple(misnamed)

    def _list_names(self) -> list[str]:
        only = self._only
        if only is None:
            return sorted(os.listdir(self._root))
        # The folder is not listed: it may be large, and Android's shared storage
        # forbids it.
        if not only.exists():
            return []
        return [only.relative_to(self._root).parts[0]]

    def _add(self, name: str, beside: frozenset[str]) -> bool:
        """Add a potential model; False if its name is invalid."""
        path = self._root / name
        # Unlike DirEntry.is_dir, this is False for a link cycle.
        if path.is_dir():
            return self._add_folder(name)
        kind = format_of_name(name)
        if kind is not None and kind.main_file is not None and is_part(path):
            return True
        if kind is not None and not name.endswith(".py") and name not in MARKERS:
            return self._add_file(path, stem_of(path))
        reason = advice(name, beside)
        if reason is not None:
            if is_valid_name(reason[0]):
                self._unusable.setdefault(*reason)
        elif kind is None and format_of_content(path) is not None:
            return self._add_file(path, path.stem)
        return True

    def _add_folder(self, name: str) -> bool:
        if not is_valid_name(name):
            return not _holds_model(self._root / name)
        self._folders.add(name)
        return True

    def _add_file(self, path: Path, model: str) -> bool:
        if format_of_name(path.name) is not None and not is_valid_name(path.name):
            return False
        if not is_valid_name(model):
            return False
        self._bare.setdefault(model, []).append(path)
        return True

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
        """Return the names of all models, reading few."""
        names = []
        for name in self.names:
            # Unlike Path.is_file, this returns False for inaccessible folders.
            has_manifest = os.path.isfile(self._root / name / FILE_NAME)
            if name in self._bare or has_manifest or self._read(name) is not None:
                names.append(name)
        return names

    def copy(self) -> Models:
        """Return an independent index of the same models."""
        models = copy.copy(self)
        models._entries = dict(self._entries)
        return models

    def replace(self, entry: ModelEntry) -> None:
        """Replace the entry of a model."""
        self._entries[entry.name] = entry

    def _read(self, name: str) -> ModelEntry | None:
        if name in self._entries:
            return self._entries[name]
        sources = (self._folders, self._bare, self._unusable)
        if not any(name in source for source in sources):
            return None  # not cached, because clients may ask for any name
        # If two threads read at the same time, the first result is kept.
        return self._entries.setdefault(name, self._scan(name))

    def _scan(self, name: str) -> ModelEntry | None:
        try:
            return self._scan_model(name)
        except TooManyVersions as error:
            folder = self._root
            if name in self._folders:
                folder = self._root / name
            return ModelEntry(name, folder, problem=str(error))

    def _scan_model(self, name: str) -> ModelEntry | None:
        model = self._scan_folder(name)
        # Bare files may have become folders since they were listed.
        files = [path for path in self._bare.get(name, ()) if not path.is_dir()]
        if model is None and files:  # a folder of the same name has precedence
            versions = _versions_of_files(files, variant_from=name)
            model = _model(name, self._root, self._root, versions, Manifest())
        if model is None and name in self._unusable:
            model = ModelEntry(name, self._root, problem=self._unusable[name])
        if model is None or self._only is None:
            return model
        return _with_version_at(self._only, model)

    def _scan_folder(self, name: str) -> ModelEntry | None:
        if name not in self._folders:
            return None
        path = self._root / name
        try:
            return _scan_folder(path, self._root)
        except OSError as error:  # an unreadable folder must not hide other models
            reason = f"the folder {name} cannot be read: {error.strerror}"
            return ModelEntry(name, path, problem=f"{reason}; chmod u+rx it")


def locate(path: Path) -> tuple[Path, Path | None]:
    """Return a path's models folder, and its only model.

    A file is a model, or a version of the model whose manifest beside it lists it. A
    folder is one model if it has a manifest or a model's layout.
    """
    if path.is_file() and format_at(path) is not None:
        root = path.parent.parent
        has_manifest = (path.parent / FILE_NAME).is_file()
        if has_manifest and len(Models(root, path)):
            return root, path
        return path.parent, path
    for name in (FILE_NAME, *MARKERS):
        if (path / name).is_file():
            return path.parent, path
    return path, None


def scan(root: Path, only: Path | None = None) -> Models:
    """Read all models of a folder, or only one."""
    models = Models(root, only)
    len(models)  # Counting them reads each one.
    return models


def _with_version_at(path: Path, model: ModelEntry) -> ModelEntry | None:
    """Return a model with only the version at a path.

    For the path of a folder it is the whole model.
    """
    if path.is_dir() or not model.versions:
        return model
    versions = {}
    for name, version in model.versions.items():
        if version.path == path:
            versions[name] = version
    if not versions:
        return None
    default = next(iter(versions))
    return model._replace(
        versions=versions,
        default_version=default,
        candidates=(default,),
        withheld={},
    )


def _scan_folder(folder: Path, root: Path) -> ModelEntry | None:
    """Read a folder's model; None if it has none."""
    if (folder / FILE_NAME).is_file():
        return _scan_with_manifest(folder, root)
    config_path = folder / TRITON_CONFIG
    if not config_path.exists():
        versions = _undeclared_versions(folder)
        if not versions:
            return _without_versions(folder, None)
        return _model(folder.name, folder, root, versions, Manifest())
    # Imported late, because few folders have one.
    from pocketserve.repository.triton_config import read_config

    config = read_config(config_path)
    if config.problem is not None:
        return ModelEntry(
            folder.name,
            folder,
            problem=config.problem,
            notes=config.notes,
        )
    manifest = config.manifest()
    versions = _versions_in(folder, manifest, config.file_name)
    if not versions:
        return _without_versions(folder, None)
    entry = _model(folder.name, folder, root, versions, manifest)
    return _with_config(entry, config)


def _scan_with_manifest(folder: Path, root: Path) -> ModelEntry | None:
    """Read the model of a folder that has a manifest."""
    try:
        manifest = read_manifest(folder / FILE_NAME)
    except ManifestError as error:
        problem = f"{folder.name}/{error}"
        return ModelEntry(folder.name, folder, problem=problem)
    versions = _versions_in(folder, manifest)
    if not versions:
        return _without_versions(folder, manifest)
    return _model(folder.name, folder, root, versions, manifest)


def _versions_in(
    folder: Path, manifest: Manifest, file_name: str | None = None
) -> dict[str, VersionEntry]:
    """Return a folder's versions: those of the manifest, or else those it contains."""
    if manifest.versions:
        return _declared_versions(manifest, folder)
    return _undeclared_versions(folder, file_name)


def _without_versions(folder: Path, manifest: Manifest | None) -> ModelEntry | None:
    """Return a model without versions, with advice."""
    if manifest is not None:
        problem = (
            f"{folder.name}/{FILE_NAME}: the folder holds no model file; "
            "add one or a [versions] table"
        )
        return ModelEntry(folder.name, folder, manifest=manifest, problem=problem)
    reason = advice_for_folder(folder.name, frozenset(os.listdir(folder)))
    if reason is None:
        return None
    return ModelEntry(folder.name, folder, problem=reason)


def _declared_versions(manifest: Manifest, folder: Path) -> dict[str, VersionEntry]:
    # Cached, because a manifest may name thousands of files in one folder.
    list_names = functools.cache(_names_in)
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
    """Return a version that the manifest lists."""
    path = folder / options.file
    kind = format_at(path)
    problem = None
    key = f"{folder.name}/{FILE_NAME}: versions.{name}.file"
    if not path.exists():
        problem = f"{key} names {options.file}, which does not exist; put it there"
    elif kind is None:
        problem = f"{key} is not a model ({', '.join((*SUFFIXES, *MARKERS))})"
        reason = advice(path.name, list_names(path.parent))
        if reason is not None:
            problem = f"{key}: {reason[1]}"
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
    """Return the versions of a folder whose manifest lists none.

    Args:
        file_name: the model's name in each numbered folder; None if it is the only one.
    """
    kind = format_at(folder)
    if kind is not None:
        return {kind.name: VersionEntry(kind.name, kind, folder)}
    versions = _versions_of_files(_models_in(folder), variant_from=folder.name)
    children = _child_folders(folder)
    for child in _newest_numbered(children):
        version = _numbered_version(child, file_name)
        if version is not None:
            versions.setdefault(version.name, version)
    if not all(version.format.last_choice for version in versions.values()):
        return versions
    # Hugging Face's layout: NAME/config.json, NAME/onnx/model.onnx. The unconverted
    # weights may be beside it.
    inner = []
    for child in children:
        if format_named(child.name):
            inner += _models_in(child)
    return {**_versions_of_files(inner, variant_from="model"), **versions}


def _child_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, without links to its parents."""
    children = []
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not _leads_upwards(child):
            children.append(child)
    return children


def _newest_numbered(folders: list[Path]) -> list[Path]:
    """Return the newest folders of numbered versions."""
    numbered = [folder for folder in folders if folder.name.isdecimal()]
    numbered.sort(key=lambda folder: int(folder.name))
    return numbered[-MAX_VERSIONS:]


def _versions_of_files(
    paths: list[Path], *, variant_from: str
) -> dict[str, VersionEntry]:
    """Return the versions that model files stand for."""
    if paths:
        _check_number_of_versions(paths[0].parent, len(paths))
    kinds: dict[Path, ModelFormat] = {}
    of_kind: dict[str, list[Path]] = {}
    for path in paths:
        kind = format_at(path)
        if kind is not None:
            kinds[path] = kind
            same_kind = of_kind.setdefault(kind.name, [])
            same_kind.append(path)
    variants: dict[Path, str] = {}
    for same_kind in of_kind.values():
        variants |= _variants_of(same_kind, variant_from)
    versions: dict[str, VersionEntry] = {}
    for path, kind in kinds.items():
        name = _version_name(path, kind, variants[path], versions)
        versions[name] = VersionEntry(name, kind, path)
    _add_pickles(versions, list(kinds))
    return versions


def _version_name(
    path: Path, kind: ModelFormat, variant: str, versions: Mapping[str, VersionEntry]
) -> str:
    name = kind.name
    if variant and variant not in ("model", kind.name):
        name = f"{kind.name}-{variant}"
    if name in versions:  # such as m.h5 beside m.keras
        name = f"{kind.name}-{path.suffix[1:]}"
    if name in versions or not is_valid_name(name):
        name = f"{kind.name}-{len(versions) + 1}"
    return name


def _add_pickles(versions: dict[str, VersionEntry], paths: list[Path]) -> None:
    """Add pickles beside models, with advice."""
    for path in paths:
        for suffix in PICKLES:
            pickle = path.with_suffix(suffix)
            if not pickle.is_file():
                continue
            reason = advice(pickle.name)
            if reason is None:
                continue
            name = suffix[1:]
            entry = VersionEntry(name, FORMATS[-1], pickle, problem=reason[1])
            versions.setdefault(name, entry)


def _check_number_of_versions(folder: Path, number: int) -> None:
    """Raise TooManyVersions if a folder contains too many models."""
    if number > MAX_VERSIONS:
        raise TooManyVersions(
            f"the folder {folder.name} holds {number} models; a model has "
            f"{MAX_VERSIONS} versions at most: list the ones to serve under [versions] "
            f"in {FILE_NAME}, or move the others to another folder"
        )


def _leads_upwards(path: Path) -> bool:
    """Return whether a path links to a parent folder."""
    if not path.is_symlink():
        return False
    return lies_in(path.parent, path)


def _variants_of(paths: list[Path], model: str) -> dict[Path, str]:
    """Return the part of each file's name after the model's name.

    If no file is named after the model, it is the part after the shortest name. All
    files have one format.
    """
    if len(paths) == 1:
        return {paths[0]: ""}
    stems = {}
    for path in paths:
        if path.is_dir():
            stems[path] = path.name
        else:
            stems[path] = stem_of(path)
    base = _common_base(list(stems.values()), model)
    variants = {}
    for path, stem in stems.items():
        suffix = _suffix(stem, base)
        if path.name == "model.py":
            suffix = ""
        elif suffix is None:
            suffix = stem
        variants[path] = suffix
    return variants


def _common_base(stems: list[str], model: str) -> str:
    if any(_suffix(stem, model) is not None for stem in stems):
        return model
    return min(stems, key=len)


def _suffix(stem: str, base: str) -> str | None:
    """Return a stem's part after a base, or None."""
    if not stem.startswith(base):
        return None
    rest = stem.removeprefix(base)
    if rest and rest[0] not in "._-":
        return None
    return rest.strip("._-")


def _numbered_version(folder: Path, file_name: str | None) -> VersionEntry | None:
    """Return the version in a numbered folder, such as ``NAME/1/m.tflite``."""
    paths = [folder]
    if format_at(folder) is None:
        paths = _models_in(folder)
    if not paths:
        return None
    problem = None
    if file_name is not None:
        paths, problem = _select(paths, file_name, folder)
    path = paths[0]
    kind = format_at(path)
    if kind is None:
        return None
    if len(paths) > 1:
        problem = (
            f"the folder {folder.name} holds {len(paths)} models; "
            "a numbered version has one"
        )
    return VersionEntry(plain_number(folder.name), kind, path, problem=problem)


def _select(
    paths: list[Path], file_name: str, folder: Path
) -> tuple[list[Path], str | None]:
    """Return the named model, or else the first one with a problem."""
    selected = [path for path in paths if path.name == file_name]
    if selected:
        return selected, None
    problem = (
        f"the folder {folder.name} has no {file_name}, "
        "which default_model_filename names"
    )
    return paths[:1], problem


def plain_number(version: str) -> str:
    """Normalize a number: TensorFlow Serving's 00000123 is 123."""
    if version.isdecimal() and len(version) <= MAX_DIGITS:
        return str(int(version))
    return version


def _models_in(folder: Path) -> list[Path]:
    """Return the model files in a folder, and the folders that are models."""
    has_code = (folder / "model.py").is_file()
    models = []
    for path in sorted(folder.iterdir()):
        if path.name[0] != "." and _is_model(path, has_code):
            models.append(path)
    return models


def _is_model(path: Path, has_code: bool) -> bool:
    if path.is_dir():
        return not path.name.isdecimal() and format_at(path) is not None
    if path.name.endswith(".py"):
        return path.name == "model.py"
    if claiming_format(path) is not None:
        return True
    if is_part(path):
        return False
    if format_of_name(path.name) is None:
        return advice(path.name) is None and format_of_content(path) is not None
    # Weights beside a model.py belong to it, whatever their suffix.
    return not (has_code and content_of(path) == "state_dict")


def _holds_model(folder: Path) -> bool:
    """Return whether a folder contains a manifest or a model file."""
    try:
        for name in os.listdir(folder):
            if name == FILE_NAME or format_of_name(name) is not None:
                return True
    except OSError:
        return False
    return False


def _problem_of(path: Path, root: Path) -> str | None:
    if not lies_in(path, root):
        return (
            f"{path.name} is a link that leaves the models folder; "
            "copy the file into it"
        )
    return failed_download(path) or advice_for_content(path)


def _model(
    name: str,
    folder: Path,
    root: Path,
    versions: Mapping[str, VersionEntry],
    manifest: Manifest,
) -> ModelEntry:
    versions = _with_problems(versions, root)
    candidates = _candidates_of(versions, manifest.default_version)
    if candidates[0] not in versions:
        problem = (
            f"{name}/{FILE_NAME}: default_version is {candidates[0]!r}, "
            f"but the folder has {', '.join(versions)}"
        )
        return ModelEntry(name, folder, manifest=manifest, problem=problem)
    return ModelEntry(
        name, folder, versions, candidates[0], manifest, candidates=candidates
    )


def _with_problems(
    versions: Mapping[str, VersionEntry], root: Path
) -> dict[str, VersionEntry]:
    """Add the problems that show without opening a version."""
    checked = {}
    for key, version in versions.items():
        problem = version.problem or _problem_of(version.path, root)
        checked[key] = version._replace(problem=problem)
    return checked


def _candidates_of(
    versions: Mapping[str, VersionEntry], selected: str | None
) -> tuple[str, ...]:
    """Return candidates for the default, the preferred one first.

    These are the manifest's default; else all numbers, the highest first; else the
    first servable format of the registry, plain before variants.
    """
    if selected is not None:
        if selected in versions:
            return (selected,)
        return (plain_number(selected),)
    numbers = [name for name in versions if name.isdecimal()]
    if numbers:
        return tuple(sorted(numbers, key=int, reverse=True))
    return (_preferred(versions),)


def _preferred(versions: Mapping[str, VersionEntry]) -> str:
    """Return the version that is served by default."""
    ranks = {kind.name: rank for rank, kind in enumerate(FORMATS)}

    def preference(name: str) -> tuple[bool, int, int, str]:
        version = versions[name]
        has_problem = version.problem is not None
        rank = ranks[version.format.name]
        return has_problem, rank, len(name), name

    return min(versions, key=preference)


def _with_config(entry: ModelEntry, config: TritonConfig) -> ModelEntry:
    """Apply the version settings of a model's ``config.pbtxt``."""
    policy = config.policy
    withheld, candidates = policy.choose(entry.candidates)
    if not candidates:
        problem = next(iter(withheld.values()))
        return ModelEntry(
            entry.name,
            entry.folder,
            problem=problem,
            notes=config.notes,
        )
    return entry._replace(
        default_version=candidates[0],
        candidates=candidates,
        withheld=withheld,
        notes=config.notes,
        policy=policy.to_json(),
    )
