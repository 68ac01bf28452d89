"""``pocketserve remove``: deletes a model, or one of its versions."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.cli.folder.models_folder import (
    choose_folder,
    discard,
    find_model,
    has_own_folder,
)
from pocketserve.messages import did_you_mean, plural
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import confirm, human_bytes, print_text, printable

if TYPE_CHECKING:
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.repository.scan import ModelEntry, VersionEntry


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "remove",
        help="delete a model or a version from the models folder",
        description="Deletes the files of a model, or of one version. "
        "Requests in progress are still answered.",
    )
    parser.add_argument("model", help="the model's name")
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="only this version"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_folder_option(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask for consent and delete."""
    folder = choose_folder(options.models_dir)
    entry = find_model(folder, options.model)
    if options.model_version is None:
        version = None
        title = entry.name
        paths = files_of_model(entry, folder)
    else:
        version = _version_of(entry, options.model_version)
        title = f"version {version.name} of {entry.name}"
        paths = files_of_version(entry, version)
    sizes = _file_sizes(paths)
    size = f"{plural(len(sizes), 'file')}, {human_bytes(sum(sizes))}"
    print_text(printable(f"{title} in {folder}: {size}"))
    if not options.yes and not _may_delete():
        print("Nothing was removed.")
        return EXIT_FAILED
    if version is not None and entry.manifest.versions:
        _forget_version(entry, version)
    discard(folder, paths)
    print(printable(f"Removed {title}."))
    if version is not None:
        _print_rest(folder, entry, version)
    return EXIT_DONE


def _may_delete() -> bool:
    consent = confirm("Delete them? [y/N] ")
    if consent is None:
        raise CommandError(
            "there is no terminal to ask on; add --yes to delete these files"
        )
    return consent


def _file_sizes(paths: Sequence[Path]) -> list[int]:
    sizes = []
    for path in paths:
        for file in (path, *path.rglob("*")):
            if file.is_file():
                sizes.append(file.stat().st_size)
    return sizes


def _version_of(entry: ModelEntry, name: str) -> VersionEntry:
    version = entry.versions.get(name)
    if version is None:
        hint = did_you_mean(name, entry.versions)
        hint = hint or f"; it has {', '.join(entry.versions) or 'none'}"
        raise CommandError(f"{entry.name} has no version {name!r}{hint}")
    if len(entry.versions) == 1:
        command = f"pocketserve remove {shlex.quote(entry.name)}"
        raise CommandError(
            f"{name} is the only version of {entry.name}; `{command}` removes the model"
        )
    return version


def files_of_model(entry: ModelEntry, folder: Path) -> list[Path]:
    """Return a model's folder, or its files.

    Raises:
        CommandError: it is not a model, only a file that looks like one.
    """
    from pocketserve.repository.scan import Models

    if has_own_folder(entry, folder):
        return [entry.folder]
    if not entry.versions:
        raise CommandError(
            f"{entry.name} is not a model ({entry.problem}); delete the file itself"
        )
    files = set(_files(entry))
    for other in Models(folder).values():
        if other.name != entry.name:
            files.difference_update(_files(other))
    return sorted(files)


def files_of_version(entry: ModelEntry, version: VersionEntry) -> list[Path]:
    """Return the files that only this version uses.

    Raises:
        CommandError: they can't be told from those of the other versions.
    """
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.repository.sidecar_files import sidecar_files

    path = version.path
    is_whole_folder = path == entry.folder or (
        version.format.whole_folder and path.parent == entry.folder
    )
    if is_whole_folder:
        raise CommandError(
            f"the files of {version.name} are the whole folder {entry.folder}; "
            "delete them by hand"
        )
    files = set(_files_of(version))
    for other in entry.versions.values():
        if other.name != version.name:
            files.difference_update(_files_of(other), sidecar_files(entry, other))
    return sorted(files - {entry.folder / FILE_NAME})


def _files(entry: ModelEntry) -> list[Path]:
    files: list[Path] = []
    for version in entry.versions.values():
        files += _files_of(version)
    return files


def _files_of(version: VersionEntry) -> Sequence[Path]:
    """Return the existing files of a version."""
    from pocketserve.repository.files import version_files
    from pocketserve.runtimes.base import ModelLoadError

    files = [version.path]
    with suppress(ModelLoadError, OSError):
        files = version_files(version)
    return [file for file in files if os.path.isfile(file)]


def _forget_version(entry: ModelEntry, version: VersionEntry) -> None:
    """Remove a version from the manifest before its files."""
    from pocketserve.repository.manifest_edit import edit_manifest, use_table_headers
    from pocketserve.repository.toml_table import ManifestError

    def change(document: Document) -> None:
        use_table_headers(document, "versions")
        del document["versions"][version.name]
        if document.get("default_version") == version.name:
            del document["default_version"]
        document.get("audio", {}).get("versions", {}).pop(version.name, None)

    try:
        edit_manifest(entry.folder, change)
    except ManifestError as error:
        raise CommandError(str(error)) from None


def _print_rest(folder: Path, entry: ModelEntry, version: VersionEntry) -> None:
    """Print changes that matter to clients of the model."""
    rest = find_model(folder, entry.name)
    if set(rest.versions) != set(entry.versions) - {version.name}:
        names = ", ".join(rest.versions)
        print_text(
            printable(f"Its versions are called {names} now, after their files.")
        )
    default = rest.default_version
    if default != entry.default_version:
        print(printable(f"The default version is now {default}."))
