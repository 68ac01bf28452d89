"""The command line: one file per command in ``commands``, each with ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
from argparse import HelpFormatter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from pocketserve import __version__
from pocketserve.cli.output import NO_TERMINAL, plain_output, print_text, printable, terminal_columns
from pocketserve.engine.device.signals import tidy_end
from pocketserve.messages import did_you_mean, near

COMMANDS = (
    "serve",
    "predict",
    "models",
    "inspect",
    "add",
    "remove",
    "rename",
    "init",
    "reload",
    "status",
    "stop",
    "service",
    "trust",
    "token",
    "pair",
    "doctor",
    "bench",
    "convert",
    "compress",
    "compare",
    "simulate",
    "demo",
    "completion",
)
RUNNING = {name: f"pocketserve.cli.running.{name}" for name in ("status", "stop", "service")}
FOLDER = {name: f"pocketserve.cli.folder.{name}" for name in ("add", "remove", "rename", "init")}
# Modules that are not in pocketserve.cli.commands.
ELSEWHERE = {
    **{"simulate": "pocketserve_simulate.cli", "completion": "pocketserve.cli.completion"},
    **RUNNING,
    **FOLDER,
}
OTHER_NAMES = {
    **{"list": "models", "ps": "status", "ls": "models", "run": "predict", "show": "inspect"},
    **{"pull": "add", "download": "add", "rm": "remove", "mv": "rename"},
}
"""What other tools call a command of ours: Ollama and Docker, mostly."""

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2  # the last one by argparse, too
BREAK = "\n    "
WITH_VALUE, FLAGS = ("--url", "--token-file"), ("--json", "--debug")  # options that may also stand before the command
EPILOG = f"{', '.join((*WITH_VALUE, *FLAGS))} may stand before or after a command that has them."
WAYS_OUT = {
    errno.ENOSPC: "; make room on the device and try again",
    errno.EFBIG: "; make room on the device and try again",
    errno.EACCES: "; choose a place that you may use",
    errno.EROFS: "; choose a place that can be written",
    errno.EMFILE: "; allow more open files (ulimit -n)",
}


class CommandError(Exception):
    """A command that cannot do its work; the text is one sentence with the way out."""


class _Parser(argparse.ArgumentParser):
    """Takes options by their whole names only: ``--port`` is not ``--port-wait``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **{"formatter_class": partial(HelpFormatter, width=_width()), **options})

    def error(self, message: str) -> NoReturn:
        """Exit with the fault, and with what may have been meant instead of an unknown command."""
        wrong = re.match(r"argument \S+: invalid choice: '(.*?)' ", message)
        message += did_you_mean(wrong[1], COMMANDS) if wrong else ""
        self.print_usage(sys.stderr)
        print_text(f"{self.prog}: error: {message}", stream=sys.stderr)
        self.exit(EXIT_USAGE)


@cache
def _width() -> int:
    """Return the width of help: to find the terminal's, argparse would load shutil with compressors."""
    columns = terminal_columns()
    return (80 if columns == NO_TERMINAL else columns) - 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; without any, print which there are."""
    words = _command_first(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        with plain_output(), tidy_end():
            options, unknown = command_parser(words).parse_known_args(words)
            if unknown:
                options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{_near(unknown, options.parser)}")
            return _run(options)
    except KeyboardInterrupt:
        return EXIT_FAILED


def _run(options: argparse.Namespace) -> int:
    try:
        code = int(options.run(options))
        if sys.stdout is not None:  # it may be closed: then nobody wants to read
            sys.stdout.flush()  # here, where a reader that has gone is still handled
        return code
    except BrokenPipeError:  # the reader of our output has gone; that is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return EXIT_DONE
    except Exception as error:
        if options.debug:
            raise
        sentence = printable(_sentence(error, getattr(options, "token_file", None)))
        print_text(f"pocketserve: {sentence}", mark="pocketserve:", stream=sys.stderr)
        return EXIT_USAGE if type(error).__name__ == "ConfigError" else EXIT_FAILED


def _command_first(words: Sequence[str]) -> list[str]:
    """Move common options that stand before the command behind it, ``pocketserve --url URL models``; name it as we do.

    ``help COMMAND`` becomes ``COMMAND --help``.
    """
    at = 0
    while at < len(words) and words[at].partition("=")[0] in (*WITH_VALUE, *FLAGS):
        at += 2 if words[at] in WITH_VALUE else 1
    if words[at : at + 1] == ["help"]:
        return [*_command_first(words[at + 1 : at + 2]), "--help"]
    command = OTHER_NAMES.get(words[at], words[at]) if at < len(words) else ""
    return [command, *words[:at], *words[at + 1 :]] if command in COMMANDS else list(words)


def command_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that these words begin with; of all commands if they name none."""
    parser = _Parser(
        prog="pocketserve", description="Serves machine-learning models on the phone itself.", epilog=EPILOG
    )
    parser.add_argument("-V", "--version", action="version", version=f"pocketserve {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)  # parsers of the same class
    first = next((word for word in words if not word.startswith("-")), None)
    # Only one command is imported: `serve` must not hold the client, nor `token` the server.
    for name in (first,) if first in COMMANDS else COMMANDS:
        module = importlib.import_module(ELSEWHERE.get(name, f"pocketserve.cli.commands.{name}"))
        command = module.add_parser(commands)
        command.add_argument("--debug", action="store_true", help="show where an error came from")
        command.set_defaults(run=module.run, parser=command)
        command.usage = _short_usage(command)
    return parser


def _short_usage(parser: argparse.ArgumentParser) -> str:
    """Return how a command is used without its options, which fill a phone's screen; help lists them below."""
    formatter = HelpFormatter(parser.prog, width=NO_TERMINAL)
    formatter.add_usage(None, parser._get_positional_actions(), [], prefix="")
    words = formatter.format_help().strip().replace(parser.prog, "", 1).replace("%", "%%")
    is_short = len(f"usage: {parser.prog} [options]{words}") <= _width() + 2
    return f"{parser.prog}{' ' if is_short else BREAK}[options]{words}"


def _near(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return the options whose names end as the first unknown one's does, or else are nearly its name."""
    option = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
    names = sorted(name for name in parser._option_string_actions if name.startswith("--"))
    alike = [name for name in names if option[2:] and name.endswith(option[1:])] or near(option, names)
    return f" (did you mean {' or '.join(alike)}?)" if alike else ""


def _sentence(error: Exception, token_file: Path | None) -> str:
    text = str(error).strip()
    if getattr(error, "code", None) == "UNAUTHORIZED":
        from pocketserve.cli.token_file import token_variable_fault  # late: most commands end well

        fault = token_variable_fault() if token_file is None else None
        if fault is not None:
            return fault
        from pocketserve_client.credentials import find_credentials

        text = f"{getattr(error, 'message', text)}; {find_credentials(None, token_file).source}"
        return f"{text}; --token-file names the file of the server's token, POCKETSERVE_TOKEN holds the token itself"
    if type(error).__module__.startswith("pocketserve"):
        return text
    if isinstance(error, OSError) and error.strerror:
        file = f"{error.filename!r}: " if error.filename is not None else ""
        return f"{file}{error.strerror}{WAYS_OUT.get(error.errno or 0, '')} (--debug shows where)"
    return f"{type(error).__name__}: {text} (--debug shows where)"
