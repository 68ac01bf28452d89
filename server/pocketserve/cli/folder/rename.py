"""``pocketserve rename``: gives a model of the models folder another name."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.cli.folder.models_folder import (
    check_new_name,
    choose_folder,
    find_model,
    has_own_folder,
)
from pocketserve.config import load_config
from pocketserve.terminal.errors import EXIT_DONE, CommandError
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import print_text, printable

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rename",
        help="give a model another name",
        description="Renames the folder or the files of a model. Requests under way are still answered.",
    )
    parser.add_argument("old", metavar="OLD", help="the model's name")
    parser.add_argument("new", metavar="NEW", help="what it is called from now on")
    add_folder_option(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Rename, and print what else changes by that."""
    from pocketserve.trust.store import TrustStore

    folder = choose_folder(options.models_dir)
    entry = find_model(folder, options.old)
    new = check_new_name(folder, options.new)
    pairs = (
        [(entry.folder, folder / new)]
        if has_own_folder(entry, folder)
        else _files(entry, folder, new)
    )
    if not pairs:
        raise CommandError(
            f"{entry.name} is no model ({entry.problem}); rename the file itself"
        )
    moved: list[tuple[Path, Path]] = []
    try:
        for old_path, new_path in pairs:
            os.rename(old_path, new_path)
            moved.append((old_path, new_path))
    except OSError:
        for old_path, new_path in moved:
            os.rename(new_path, old_path)
        raise
    print(printable(f"{options.old} is called {new} now."))
    result = find_model(folder, new)
    if set(result.versions) != set(entry.versions):
        print_text(
            printable(
                f"Its versions are called {', '.join(result.versions)} now, after their files."
            )
        )
    trust = TrustStore(load_config({}).state_dir)
    if any(trust.known_reason(result, version) for version in result.versions.values()):
        print(
            printable(
                f"It holds code, which runs after: pocketserve trust {shlex.quote(str(folder / new))}"
            )
        )
    return EXIT_DONE


def _files(entry: ModelEntry, folder: Path, new: str) -> list[tuple[Path, Path]]:
    """Return the old and new paths of a model whose files lie in the models folder itself."""
    paths = dict.fromkeys(version.path for version in entry.versions.values())
    return [
        (path, folder / f"{new}{path.name.removeprefix(entry.name)}") for path in paths
    ]
