"""``pocketserve service``: has a supervisor run the server."""

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
        help="have this device start and restart the server",
        description="Has this device start the server: by a service of runit "
        "(termux-services), a script of Termux:Boot, or a unit of the user's systemd.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    install = actions.add_parser("install", help="write its files; nothing starts yet")
    install.add_argument(
        "models_dir",
        nargs="?",
        type=Path,
        metavar="MODELS_DIR",
        help="the models folder, if not as configured",
    )
    install.add_argument(
        "--dry-run", action="store_true", help="print the files, and write nothing"
    )
    remove = actions.add_parser("remove", help="stop it, and remove its files")
    status = actions.add_parser(
        "status", help="show its state; the exit code is 0 while it runs, else 1"
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    for action in (install, remove, status):
        default = "all"
        if action is install:
            default = "the machine's"
        action.add_argument("--kind", choices=KINDS, help=f"which one [{default}]")
    return parser


def run(options: argparse.Namespace) -> int:
    """Install, remove or show the service."""
    from pocketserve.cli.running.supervisors import SUPERVISORS  # late: --help

    kinds = [each for each in SUPERVISORS if options.kind in (None, each.kind)]
    if options.action == "install":
        if options.kind is None:
            kinds = _first_here(kinds)
        return _install_first(kinds, options)
    installed = [each for each in kinds if _own_files(each)]
    if options.action == "status":
        return _show(installed, options.json)
    return _remove(installed)


def _first_here(kinds: list[Supervisor]) -> list[Supervisor]:
    """Return the first supervisor of this machine; asking each takes a process."""
    for kind in kinds:
        if kind.is_here():
            return [kind]
    return []


def _install_first(kinds: list[Supervisor], options: argparse.Namespace) -> int:
    if not kinds:
        raise CommandError(
            "nothing on this machine starts services for you: "
            "neither runit nor a user manager of systemd answers; "
            f"--kind {'|'.join(KINDS)} writes the files anyway"
        )
    folder = options.models_dir and options.models_dir.expanduser().absolute()
    if folder and not folder.exists():
        raise CommandError(f"{folder} does not exist; name the models folder")
    if options.dry_run:
        for path, text in kinds[0].files(folder).items():
            print(f"==> {path} <==\n{text}")
    else:
        _install(kinds[0], folder)
    return 0


def _install(supervisor: Supervisor, folder: Path | None) -> None:
    from pocketserve.cli.running.supervisors import brief
    from pocketserve.state.json_store import replace_file

    files = supervisor.files(folder)
    for path in files:
        if os.path.lexists(path) and not _is_own(path):
            raise CommandError(
                f"{path} was not written by this command and stays; "
                "move it away to install"
            )
    supervisor.before_install()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o600
        if text.startswith("#!"):
            mode = 0o700
        replace_file(path, text.encode(), mode)
        print(f"wrote {printable(brief(path))}")
    supervisor.after_change()
    _print_next_steps(supervisor)


def _print_next_steps(supervisor: Supervisor) -> None:
    print()
    commands = dict(supervisor.commands())
    commands["settings"] = "~/.config/pocketserve/environment"
    for purpose, command in commands.items():
        # Not wrapped, so that the command can be copied.
        print(f"{purpose:14}{printable(command)}")
    print()
    for note in supervisor.notes:
        print_text(note)


def _remove(installed: list[Supervisor]) -> int:
    from pocketserve.cli.running.supervisors import brief

    if not installed:
        raise CommandError("there is no service written by this command")
    for supervisor in installed:
        with Progress().waiting("waiting for requests in progress"):
            supervisor.end()
        for path in _own_files(supervisor):
            path.unlink()
            print(f"removed {printable(brief(path))}")
        supervisor.clear()
        supervisor.after_change()
    return 0


def _show(installed: list[Supervisor], as_json: bool) -> int:
    states = [_state(supervisor) for supervisor in installed]
    if as_json:
        print_json(states)
    elif not states:
        raise CommandError(
            "no service is installed; `pocketserve service install` installs one"
        )
    else:
        header = [key.upper() for key in states[0]]
        print_table(header, [list(map(_word, state.values())) for state in states])
        print()
        for supervisor in installed:
            command = dict(supervisor.commands())["read the log"]
            print(printable(f"its log ({supervisor.kind}): {command}"))
    if any(state["running"] for state in states):
        return 0
    return 1


def _state(supervisor: Supervisor) -> dict[str, str | bool]:
    return {
        "kind": supervisor.kind,
        "installed": True,
        "enabled": supervisor.is_enabled(),
        "running": supervisor.is_running(),
    }


def _word(value: bool | str) -> str:
    if isinstance(value, str):
        return value
    if value:
        return "yes"
    return "no"


def _own_files(supervisor: Supervisor) -> list[Path]:
    return [path for path in supervisor.files(None) if _is_own(path)]


def _is_own(path: Path) -> bool:
    """Return whether this command wrote a file."""
    from pocketserve.cli.running.supervisors import MARKER

    if path.is_symlink() or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return MARKER in file.read(1000).splitlines()
