"""``pocketserve simulate``: run any command as if on a phone."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.messages import did_you_mean
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.log_output import LogHandler
from pocketserve.terminal.output import print_json, print_table, terminal_columns

if TYPE_CHECKING:
    from pocketserve_simulate.phone.device import PhoneModel
    from pocketserve_simulate.phone.phone import Phone
    from pocketserve_simulate.scenarios.record import Record

DESCRIPTION = """Runs a command as a real process on fewer and slower cores, with a
phone's memory, Termux's environment, and Android's events. While `serve` runs, events
can be typed in."""
EXAMPLES = """\
examples:
  pocketserve simulate -- doctor
  pocketserve simulate --device budget -- serve models          (then type: freeze 5)
  pocketserve simulate --events freeze@3+2,kill@8 -- serve models
  pocketserve simulate --scenario commute --report build/commute
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options; the command to run follows ``--``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="run any command as if on a phone",
        description=textwrap.fill(DESCRIPTION, min(80, terminal_columns()) - 2),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", default="mid", metavar="NAME", help="budget, mid or flagship [mid]"
    )
    parser.add_argument(
        "--fast-cores", type=int, metavar="N", help="big and middle cores"
    )
    parser.add_argument("--slow-cores", type=int, metavar="N", help="little cores")
    parser.add_argument(
        "--speed",
        type=float,
        metavar="SHARE",
        help="share of a desktop core's time, 0.02 to 1",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory for the processes, such as 700M"
    )
    parser.add_argument(
        "--events",
        metavar="LIST",
        default="",
        help="such as freeze@3+2,kill@8: KIND@START+SECONDS",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="PATH",
        help="keep the phone's files here, for the next run",
    )
    parser.add_argument(
        "--scenario",
        metavar="NAME",
        help="instead of a command: commute, camera-live, worst-day, a file",
    )
    parser.add_argument(
        "--report", metavar="FOLDER", help="where a scenario's report and picture go"
    )
    parser.add_argument(
        "--json", action="store_true", help="print a scenario's report as JSON"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="any pocketserve command",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    command: list[str] = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if bool(command) is bool(options.scenario):
        raise CommandError(
            "name either a command, as in simulate -- serve models, or a scenario: "
            "--scenario commute"
        )
    _require_linux()
    if options.scenario:
        return run_scenario(options)
    return _run_command(options, command)


def _require_linux() -> None:
    if not sys.platform.startswith("linux"):
        raise CommandError(
            "a phone can be simulated on Linux only: macOS has no 127.1.0.1 and no "
            "cores to choose"
        )


def run_scenario(options: argparse.Namespace) -> int:
    """Run a scenario, print its tables and write its report.

    Returns 0 if every promise was kept, else 1.
    """
    from pocketserve.config import embedded_models_dir
    from pocketserve_simulate.report import to_json, write_report
    from pocketserve_simulate.scenarios.run import Simulation
    from pocketserve_simulate.scenarios.scenario import read_scenario

    scenario = read_scenario(options.scenario)
    paths: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="pocketserve-") as folder:
        say = functools.partial(print, file=sys.stderr, flush=True)
        simulation = Simulation(scenario, embedded_models_dir(), Path(folder), say)
        record = simulation.run()
        if options.report:
            paths = write_report(record, Path(options.report), simulation.log)
    document = to_json(record)
    if options.json:
        print_json(document)
    else:
        _print_tables(record)
        for path in paths:
            print(f"wrote {path}")
    if document["kept"]:
        return 0
    return 1


def _print_tables(record: Record) -> None:
    from pocketserve_simulate.report import tables
    from pocketserve_simulate.scenarios.verdict import headline

    print(headline(record))
    for header, rows in tables(record):
        print()
        if rows:
            print_table(header, rows)


def _run_command(options: argparse.Namespace, command: list[str]) -> int:
    from pocketserve_simulate.control import Control
    from pocketserve_simulate.phone.events import parse_events
    from pocketserve_simulate.phone.phone import Phone

    model = _model(options)
    events = parse_events(options.events)
    say = _speaker()
    typed = _standard_input()
    serves = command[0] == "serve"
    stdin = subprocess.DEVNULL if serves or typed is None else typed
    with (
        _phone_folder(options) as folder,
        Phone(model, Path(folder), stdin=stdin) as phone,
    ):
        _introduce(phone, say, serves=serves)
        control = Control(phone, events, typed if serves else None, say)
        return control.run(command)


def _phone_folder(
    options: argparse.Namespace,
) -> contextlib.AbstractContextManager[str]:
    """Return the phone's folder, by default a temporary one."""
    if options.folder is not None:
        return contextlib.nullcontext(options.folder)
    return tempfile.TemporaryDirectory(
        prefix="pocketserve-phone-", ignore_cleanup_errors=True
    )


def _introduce(phone: Phone, say: Callable[[str], None], *, serves: bool) -> None:
    from pocketserve_simulate.phone.device_image import desktop_settings

    say(phone.summary())
    settings = desktop_settings(os.environ)
    if settings:
        say(
            f"the phone has its own settings: {', '.join(settings)} stay on the "
            "desktop; give options instead"
        )
    if serves:
        token = phone.image.home / ".local/state/pocketserve/token"
        say(f"in another terminal: export POCKETSERVE_TOKEN_FILE={token}")
        say("type an event, such as: freeze 5   (help lists them)")


def _speaker() -> Callable[[str], None]:
    """Return a function that prints text to standard error without blocking."""
    if sys.stderr is None:
        return lambda text: None
    handler = LogHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))

    def say(text: str) -> None:
        message = text if "\n" in text else f"phone: {text}"
        handler.handle(logging.makeLogRecord({"msg": message}))

    return say


def _standard_input() -> int | None:
    """Return the descriptor of standard input; None without one."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _model(options: argparse.Namespace) -> PhoneModel:
    from pocketserve_simulate.phone.device import DEVICES

    if options.device not in DEVICES:
        hint = did_you_mean(options.device, DEVICES)
        raise CommandError(
            f"there is no device {options.device!r}; there are "
            f"{', '.join(DEVICES)}{hint}"
        )
    memory = None
    if options.memory is not None:
        memory = _parse_memory(options.memory)
    try:
        return DEVICES[options.device].with_knobs(
            fast_cores=options.fast_cores,
            slow_cores=options.slow_cores,
            speed=options.speed,
            memory_mb=memory,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _parse_memory(text: str) -> int:
    """Return a size in MB."""
    from pocketserve.config import parse_bytes

    try:
        return parse_bytes(text) // 10**6
    except ValueError:
        raise CommandError(
            f"--memory must be a size such as 700M, not {text!r}"
        ) from None
