"""``pocketserve rename``: renames a model of the models folder."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
        description="Renames the folder or the files of a model. "
        "Requests in progress are still answered.",
    )
    parser.add_argument("old", metavar="OLD", help="the model's name")
    parser.add_argument("new", metavar="NEW", help="its new name")
    add_folder_option(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Rename a model, and print other consequences."""
    folder = choose_folder(options.models_dir)
    entry = find_model(folder, options.old)
    new = check_new_name(folder, options.new)
    moves = _moves(entry, folder, new)
    if not moves:
        raise CommandError(
            f"{entry.name} is not a model ({entry.problem}); rename the file itself"
        )
    _rename_all(moves)
    print(printable(f"{options.old} is called {new} now."))
    _print_consequences(folder, entry, find_model(folder, new))
    return EXIT_DONE


def _print_consequences(folder: Path, old: ModelEntry, new: ModelEntry) -> None:
    if set(new.versions) != set(old.versions):
        names = ", ".join(new.versions)
        print_text(
            printable(f"Its versions are called {names} now, after their files.")
        )
    if _has_untrusted_code(new):
        command = f"pocketserve trust {shlex.quote(str(folder / new.name))}"
        print(printable(f"It contains code, which needs your consent: {command}"))


class _Move(NamedTuple):
    """A file or folder with its new path."""

    old: Path
    new: Path


def _rename_all(moves: list[_Move]) -> None:
    """Rename all paths, or none if one fails."""
    completed: list[_Move] = []
    try:
        for move in moves:
            os.rename(move.old, move.new)
            completed.append(move)
    except OSError:
        for move in completed:
            os.rename(move.new, move.old)
        raise


def _has_untrusted_code(entry: ModelEntry) -> bool:
    from pocketserve.trust.store import TrustStore

    trust = TrustStore(load_config({}).state_dir)
    return any(trust.known_reason(entry, each) for each in entry.versions.values())


def _moves(entry: ModelEntry, folder: Path, new: str) -> list[_Move]:
    """Return the renames of a model's folder or files."""
    if has_own_folder(entry, folder):
        return [_Move(entry.folder, folder / new)]
    moves = []
    for path in dict.fromkeys(version.path for version in entry.versions.values()):
        name = f"{new}{path.name.removeprefix(entry.name)}"
        moves.append(_Move(path, folder / name))
    return moves
