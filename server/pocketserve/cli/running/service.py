"""``pocketserve service``: a supervisor of this machine starts the server, and starts it again."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import print_json, print_table, print_text, printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve.cli.running.supervisors import Supervisor

KINDS = ("runit", "boot", "systemd")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "service",
        help="have this device start the server, and start it again",
        description="Has this device start the server: by a service of runit (termux-services), a script of "
        "Termux:Boot, or a unit of the user's systemd.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    install = actions.add_parser("install", help="write its files; nothing starts yet")
    install.add_argument(
        "models_dir",
        nargs="?",
        type=Path,
        metavar="MODELS_DIR",
        help="what to serve, if not as set",
    )
    install.add_argument(
        "--dry-run", action="store_true", help="print the files, and write nothing"
    )
    remove = actions.add_parser("remove", help="end it, and remove its files")
    status = actions.add_parser(
        "status", help="show what it does; the exit code is 0 while it runs, else 1"
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    for action in (install, remove, status):
        whole = "what this machine has" if action is install else "all"
        action.add_argument("--kind", choices=KINDS, help=f"which one [{whole}]")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what the action says."""
    from pocketserve.cli.running.supervisors import (
        SUPERVISORS,
    )  # late: --help needs none

    kinds = [each for each in SUPERVISORS if options.kind in (None, each.kind)]
    if options.action != "install":
        installed = [each for each in kinds if _own_files(each)]
        return (
            _show(installed, options.json)
            if options.action == "status"
            else _remove(installed)
        )
    supervisor = next((each for each in kinds if options.kind or each.is_here()), None)
    if supervisor is None:
        raise CommandError(
            "nothing on this machine starts services for you: neither runit nor a user manager of systemd answers; "
            f"--kind {'|'.join(KINDS)} writes the files all the same"
        )
    folder = options.models_dir and options.models_dir.expanduser().absolute()
    if folder and not folder.exists():
        raise CommandError(f"{folder} is not there; name the models folder")
    if options.dry_run:
        for path, text in supervisor.files(folder).items():
            print(f"==> {path} <==\n{text}")
    else:
        _install(supervisor, folder)
    return 0


def _install(supervisor: Supervisor, folder: Path | None) -> None:
    from pocketserve.cli.running.supervisors import brief
    from pocketserve.state.json_store import replace_file

    files = supervisor.files(folder)
    for path in files:
        if os.path.lexists(path) and not _is_own(path):
            raise CommandError(
                f"{path} was not written by this command and stays; move it away to install"
            )
    supervisor.before_install()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), 0o700 if text.startswith("#!") else 0o600)
        print(f"wrote {printable(brief(path))}")
    supervisor.after_change()
    print()
    for purpose, command in (
        *supervisor.commands(),
        ("settings", "~/.config/pocketserve/environment"),
    ):
        print(
            f"{purpose:14}{printable(command)}"
        )  # not broken: commands are to be copied
    print()
    for note in supervisor.notes:
        print_text(note)


def _remove(installed: list[Supervisor]) -> int:
    from pocketserve.cli.running.supervisors import brief

    if not installed:
        raise CommandError("no service that this command wrote is here")
    for supervisor in installed:
        with Progress().waiting("requests under way may finish"):
            supervisor.end()
        for path in _own_files(supervisor):
            path.unlink()
            print(f"removed {printable(brief(path))}")
        supervisor.clear()
        supervisor.after_change()
    return 0


def _show(installed: list[Supervisor], as_json: bool) -> int:
    states: list[dict[str, str | bool]] = [
        {
            "kind": each.kind,
            "installed": True,
            "enabled": each.is_enabled(),
            "running": each.is_running(),
        }
        for each in installed
    ]
    if as_json:
        print_json(states)
    elif not states:
        raise CommandError(
            "no service is installed; `pocketserve service install` installs one"
        )
    else:
        print_table(
            [key.upper() for key in states[0]],
            [list(map(_word, state.values())) for state in states],
        )
        print()
        for supervisor in installed:
            print(
                printable(
                    f"its log ({supervisor.kind}): {dict(supervisor.commands())['read the log']}"
                )
            )
    return 0 if any(state["running"] for state in states) else 1


def _word(value: bool | str) -> str:
    return value if isinstance(value, str) else "yes" if value else "no"


def _own_files(supervisor: Supervisor) -> list[Path]:
    return [path for path in supervisor.files(None) if _is_own(path)]


def _is_own(path: Path) -> bool:
    """Return whether this command wrote the file: it says so in one of its first lines."""
    from pocketserve.cli.running.supervisors import MARKER

    if path.is_symlink() or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return MARKER in file.read(1000).splitlines()
