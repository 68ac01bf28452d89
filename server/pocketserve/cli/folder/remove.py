"""``pocketserve remove``: takes a model, or one version of it, out of the models folder."""

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
        help="take a model or a version out of the models folder, and delete its files",
        description="Deletes the files of a model, or of one version. Requests under way are still answered.",
    )
    parser.add_argument("model", help="the model's name")
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="only this version"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_folder_option(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask and remove."""
    folder = choose_folder(options.models_dir)
    entry = find_model(folder, options.model)
    version = (
        None
        if options.model_version is None
        else _version_of(entry, options.model_version)
    )
    title = entry.name if version is None else f"version {version.name} of {entry.name}"
    paths = (
        files_of_model(entry, folder)
        if version is None
        else files_of_version(entry, version)
    )
    sizes = [
        file.stat().st_size
        for path in paths
        for file in (path, *path.rglob("*"))
        if file.is_file()
    ]
    print_text(
        printable(
            f"{title} in {folder}: {plural(len(sizes), 'file')}, {human_bytes(sum(sizes))}"
        )
    )
    consent = True if options.yes else confirm("Delete them? [y/N] ")
    if consent is None:
        raise CommandError("nobody can be asked here; add --yes to delete these files")
    if not consent:
        print("Nothing was removed.")
        return EXIT_FAILED
    if version is not None and entry.manifest.versions:
        _forget_version(entry, version)
    discard(folder, paths)
    print(printable(f"Removed {title}."))
    if version is not None:
        _print_rest(folder, entry, version)
    return EXIT_DONE


def _version_of(entry: ModelEntry, name: str) -> VersionEntry:
    version = entry.versions.get(name)
    if version is None:
        hint = (
            did_you_mean(name, entry.versions)
            or f"; it has {', '.join(entry.versions) or 'none'}"
        )
        raise CommandError(f"{entry.name} has no version {name!r}{hint}")
    if len(entry.versions) == 1:
        command = f"pocketserve remove {shlex.quote(entry.name)}"
        raise CommandError(
            f"{name} is the only version of {entry.name}; `{command}` removes the model"
        )
    return version


def files_of_model(entry: ModelEntry, folder: Path) -> list[Path]:
    """Return what a model is: its folder, or its files where these lie in the models folder itself.

    Raises:
        CommandError: it is none, but a file that looks like one.
    """
    from pocketserve.repository.scan import Models

    if has_own_folder(entry, folder):
        return [entry.folder]
    if not entry.versions:
        raise CommandError(
            f"{entry.name} is no model ({entry.problem}); delete the file itself"
        )
    used = {
        file
        for other in Models(folder).values()
        if other.name != entry.name
        for file in _files(other)
    }
    return sorted({*_files(entry)} - used)


def files_of_version(entry: ModelEntry, version: VersionEntry) -> list[Path]:
    """Return the files that only this version has; what all versions read, such as labels, is not among them.

    Raises:
        CommandError: they cannot be told from those of the other versions.
    """
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.repository.sidecar_files import sidecar_files

    if entry.folder in (
        version.path,
        version.path.parent if version.format.whole_folder else version.path,
    ):
        raise CommandError(
            f"the files of {version.name} are the whole folder {entry.folder}; delete them by hand"
        )
    staying = [other for other in entry.versions.values() if other.name != version.name]
    shared = {
        file
        for other in staying
        for file in (*_files_of(other), *sidecar_files(entry, other))
    }
    return sorted({*_files_of(version)} - shared - {entry.folder / FILE_NAME})


def _files(entry: ModelEntry) -> list[Path]:
    return [file for version in entry.versions.values() for file in _files_of(version)]


def _files_of(version: VersionEntry) -> Sequence[Path]:
    """Return the files of a version that are there; of a damaged one, the file itself."""
    from pocketserve.repository.files import version_files
    from pocketserve.runtimes.base import ModelLoadError

    files = [version.path]
    with suppress(ModelLoadError, OSError):
        files = version_files(version)
    return [file for file in files if os.path.isfile(file)]


def _forget_version(entry: ModelEntry, version: VersionEntry) -> None:
    """Take a version out of the manifest before its files go: no request finds it without them."""
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
    """Print what changed for those who ask the model."""
    rest = find_model(folder, entry.name)
    if set(rest.versions) != set(entry.versions) - {version.name}:
        print_text(
            printable(
                f"Its versions are called {', '.join(rest.versions)} now, after their files."
            )
        )
    if rest.default_version != entry.default_version:
        print(
            printable(
                f"Requests that name no version are answered by {rest.default_version} now."
            )
        )
