"""``pocketserve simulate``: run any command as if on a phone."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.cli import CommandError
from pocketserve.messages import did_you_mean

if TYPE_CHECKING:
    from pocketserve_simulate.phone.device import PhoneModel
    from pocketserve_simulate.phone.events import Event
    from pocketserve_simulate.phone.phone import Phone

EXAMPLES = """\
examples:
  pocketserve simulate -- doctor
  pocketserve simulate --device budget -- serve models          (then type: freeze 5)
  pocketserve simulate --events freeze@3+2,kill@8 -- serve models
  pocketserve simulate --scenario commute --report build/commute
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's options; what follows ``--`` is the command to run."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="run any command as if on a phone",
        description="Runs a command as a real process on fewer and slower cores, with a phone's memory, Termux's "
        "surroundings, and what Android does to it. While `serve` runs, events can be typed in.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="mid", metavar="NAME", help="budget, mid or flagship [mid]")
    parser.add_argument("--fast-cores", type=int, metavar="N", help="big and middle cores")
    parser.add_argument("--slow-cores", type=int, metavar="N", help="little cores")
    parser.add_argument("--speed", type=float, metavar="SHARE", help="share of a desktop core's time, 0.02 to 1")
    parser.add_argument("--memory", metavar="SIZE", help="memory for the processes, such as 700M")
    parser.add_argument("--events", metavar="LIST", default="", help="such as freeze@3+2,kill@8: KIND@START+SECONDS")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="keep the phone's files here, for the next run")
    parser.add_argument(
        "--scenario", metavar="NAME", help="instead of a command: commute, camera-live, worst-day, a file"
    )
    parser.add_argument("--report", metavar="FOLDER", help="where a scenario's report and picture go")
    parser.add_argument("--json", action="store_true", help="print a scenario's report as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="any pocketserve command")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if bool(command) is bool(options.scenario):
        raise CommandError("name either a command, as in simulate -- serve models, or a scenario: --scenario commute")
    if not sys.platform.startswith("linux"):
        raise CommandError("a phone can be simulated on Linux only")
    if options.scenario:
        from pocketserve_simulate.command import run_scenario

        return run_scenario(options)
    model, events = _model(options), _events(options.events)
    with _folder(options.folder) as folder:
        return _run(model, folder, command, events)


def _run(model: PhoneModel, folder: Path, command: Sequence[str], events: Sequence[Event]) -> int:
    from pocketserve_simulate.control import Control, say_to_stderr
    from pocketserve_simulate.phone.device_image import desktop_settings
    from pocketserve_simulate.phone.phone import Phone, PhoneError, describe

    serves = command[0] == "serve"
    typed = _descriptor()
    with Phone(model, folder, stdin=subprocess.DEVNULL if serves or typed is None else typed) as phone:
        say_to_stderr(describe(phone))
        if left := desktop_settings(os.environ):
            say_to_stderr(
                f"the phone has its own settings: {', '.join(left)} stay on the desktop; give options instead"
            )
        if serves:
            _tell(phone)
        try:
            return Control(phone, events, typed if serves else None, say_to_stderr).run(command)
        except PhoneError as error:
            raise CommandError(str(error)) from None


def _descriptor() -> int | None:
    """Standard input; None where there is none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _tell(phone: Phone) -> None:
    from pocketserve_simulate.control import say_to_stderr

    token = phone.look.home / ".local/state/pocketserve/token"
    say_to_stderr(f"in another terminal: export POCKETSERVE_TOKEN_FILE={token}")
    say_to_stderr("type an event, such as: freeze 5   (help lists them)")


def _model(options: argparse.Namespace) -> PhoneModel:
    from pocketserve.config import parse_bytes
    from pocketserve_simulate.phone.device import DEVICES

    if options.device not in DEVICES:
        known = f"{', '.join(DEVICES)}{did_you_mean(options.device, DEVICES)}"
        raise CommandError(f"there is no device {options.device!r}; there are {known}")
    memory = None
    if options.memory is not None:
        try:
            memory = parse_bytes(options.memory) // 10**6
        except ValueError:
            raise CommandError(f"--memory must be a size such as 700M, not {options.memory!r}") from None
    try:
        return DEVICES[options.device].with_knobs(
            fast_cores=options.fast_cores, slow_cores=options.slow_cores, speed=options.speed, memory_mb=memory
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _events(text: str) -> list[Event]:
    from pocketserve_simulate.phone.event_text import parse_events

    return parse_events(text)


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="pocketserve-phone-", ignore_cleanup_errors=True) as made:
        yield Path(made)
