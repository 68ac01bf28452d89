"""The command line: one file per command in ``commands``, each with ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
import errno
import importlib
import re
import sys
from argparse import HelpFormatter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from pocketserve import __version__
from pocketserve.cli.installed import LAB_COMMANDS, installed_commands
from pocketserve.engine.device.signals import tidy_end
from pocketserve.messages import did_you_mean, near
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from pocketserve.terminal.output import (
    NARROW,
    NO_TERMINAL,
    give_up,
    plain_output,
    print_text,
    printable,
    terminal_columns,
)

COMMANDS = (
    "serve",
    "open",
    "predict",
    "chat",
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
    "demo",
    "completion",
)
RUNNING = {
    name: f"pocketserve.cli.running.{name}"
    for name in ("open", "status", "stop", "service")
}
FOLDER = {
    name: f"pocketserve.cli.folder.{name}"
    for name in ("add", "remove", "rename", "init")
}
# Modules that are not in pocketserve.cli.commands.
ELSEWHERE = {
    "completion": "pocketserve.cli.completion",
    **RUNNING,
    **FOLDER,
}
OTHER_NAMES = {
    **{
        "list": "models",
        "ps": "status",
        "ls": "models",
        "run": "predict",
        "show": "inspect",
        "info": "inspect",
    },
    **{
        "pull": "add",
        "download": "add",
        "rm": "remove",
        "delete": "remove",
        "mv": "rename",
        "start": "serve",
    },
}
"""What other tools call a command of ours: Ollama and Docker, mostly."""

WAYS = {
    **dict.fromkeys(
        ("log", "logs"),
        "the log is what `pocketserve serve` prints; of a service, `pocketserve service status` says where it is",
    ),
    **dict.fromkeys(
        ("cp", "copy"),
        "`pocketserve add FOLDER/MODEL --name NEW` adds a copy of a model",
    ),
    "restart": "`pocketserve reload` reads the models folder again; `pocketserve stop` ends the server for a new start",
    "search": "look for models on https://huggingface.co/models; `pocketserve add hf:ORG/REPO` brings one here",
}
"""Commands of other tools that several of ours do, or none."""

WITHOUT_WORDS = {
    "stop": "it ends the whole server, and an idle model is unloaded by itself; `pocketserve status` shows all loaded",
    **dict.fromkeys(
        ("models", "status"), "`pocketserve inspect MODEL` shows one model"
    ),
}
"""Commands that take no words behind them, as those of other tools do, and what to do instead."""

BREAK = "\n    "
WITH_VALUE, FLAGS = (
    ("--url", "--token-file"),
    ("--json", "--debug"),
)  # options that may also stand before the command
_FOR = {
    command: ", ".join(word for word in OTHER_NAMES if OTHER_NAMES[word] == command)
    for command in COMMANDS
}
EPILOG = (
    f"{', '.join((*WITH_VALUE, *FLAGS))} may stand before or after a command that has them. Other names: "
    f"{'; '.join(f'{words} for {command}' for command, words in _FOR.items() if words)}; help COMMAND; version."
)
WAYS_OUT = {
    errno.ENOSPC: "; make room on the device and try again",
    errno.EFBIG: "; make room on the device and try again",
    errno.EACCES: "; choose a place that you may use",
    errno.EROFS: "; choose a place that can be written",
    errno.EMFILE: "; allow more open files (ulimit -n)",
}


class _Parser(argparse.ArgumentParser):
    """Takes options by their whole names only: ``--port`` is not ``--port-wait``."""

    def __init__(self, **options: Any) -> None:
        width, has_options = (
            _width(),
            " " in options["prog"],
        )  # the list of commands has short words
        column = (
            8 if has_options and width < NARROW else 24
        )  # where texts begin, at most; longer words get a line
        formatter = partial(HelpFormatter, width=width, max_help_position=column)
        super().__init__(
            allow_abbrev=False, **{"formatter_class": formatter, **options}
        )

    def error(self, message: str) -> NoReturn:
        """Exit with the fault, and with what may have been meant instead of an unknown command or choice."""
        if wrong := re.match(
            r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message
        ):
            is_command, word, choices = (
                wrong[1] == "COMMAND",
                wrong[2],
                wrong[3].replace("'", "").split(", "),
            )
            hint = did_you_mean(
                word,
                (*choices, *OTHER_NAMES, "version", "help") if is_command else choices,
            )
            message = f"{message}{hint}"
            if is_command:
                way = (
                    f"; {WAYS[word]}"
                    if word in WAYS
                    else hint or "; `pocketserve --help` lists the commands"
                )
                message = f"there is no command {word!r}{way}"
            if is_command and word in LAB_COMMANDS:
                message = _not_installed(word)
        self.print_usage(sys.stderr)
        print_text(f"{self.prog}: error: {message}", stream=sys.stderr)
        self.exit(EXIT_USAGE)


def _not_installed(command: str) -> str:
    """Return how to install a command of the lab."""
    return (
        f"{command!r} is a command of pocketserve-lab, which is not installed; "
        "run: pip install pocketserve-lab (in a clone: pip install ./lab)"
    )


@cache
def _width() -> int:
    """Return the width of help: to find the terminal's, argparse would load shutil with compressors."""
    for descriptor in (1, 2, 0):  # standard output may go to a pager
        columns = terminal_columns(descriptor)
        if columns != NO_TERMINAL:
            return columns - 2
    return 78


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; without any, print which there are."""
    words = _command_first(sys.argv[1:] if arguments is None else arguments) or [
        "--help"
    ]
    try:
        with plain_output(), tidy_end():
            options, unknown = command_parser(words).parse_known_args(words)
            if unknown:
                options.parser.error(
                    f"unrecognized arguments: {' '.join(unknown)}{_advice(unknown, options.parser)}"
                )
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
        give_up(sys.stdout)
        return EXIT_DONE
    except Exception as error:
        if options.debug:
            raise
        sentence = printable(_sentence(error, getattr(options, "token_file", None)))
        print_text(f"pocketserve: {sentence}", mark="pocketserve:", stream=sys.stderr)
        return EXIT_USAGE if type(error).__name__ == "ConfigError" else EXIT_FAILED


def _command_first(words: Sequence[str]) -> list[str]:
    """Move common options that stand before the command behind it, ``pocketserve --url URL models``; name it as we do.

    ``help COMMAND`` becomes ``COMMAND --help``, and ``version`` ``--version``.
    """
    at = 0
    while at < len(words) and words[at].partition("=")[0] in (*WITH_VALUE, *FLAGS):
        at += 2 if words[at] in WITH_VALUE else 1
    if words[at : at + 1] == ["help"]:
        return [*_command_first(words[at + 1 : at + 2]), "--help"]
    if list(words[at:]) in (["version"], ["-v"]):
        return ["--version"]
    command = OTHER_NAMES.get(words[at], words[at]) if at < len(words) else ""
    if not is_command(command):
        return list(words)
    return [command, *words[:at], *words[at + 1 :]]


def is_command(word: str) -> bool:
    """Return whether a word names a command, also one of the lab that is not installed."""
    if word in COMMANDS or word in LAB_COMMANDS:
        return True
    is_option = not word or word.startswith("-")
    return not is_option and word in installed_commands()


def command_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that these words begin with; of all commands if they name none."""
    parser = _Parser(
        prog="pocketserve",
        description="Serves machine-learning models on the phone itself.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"pocketserve {__version__}"
    )
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True
    )  # parsers of the same class
    first = next((word for word in words if not word.startswith("-")), None)
    for name in _modules(first).values():
        module = importlib.import_module(name)
        command = module.add_parser(commands)
        command.add_argument(
            "--debug", action="store_true", help="show where an error came from"
        )
        command.set_defaults(run=module.run, parser=command)
        command.usage = _short_usage(command)
    return parser


def _modules(first: str | None) -> dict[str, str]:
    """Return the modules of all commands; of one alone if the first word names it.

    So `serve` does not load the client, nor `token` the server.
    """
    built_in = {
        name: ELSEWHERE.get(name, f"pocketserve.cli.commands.{name}")
        for name in COMMANDS
    }
    if first in built_in:
        return {first: built_in[first]}
    installed = installed_commands()
    if first in installed:
        return {first: installed[first]}
    # Built-in commands come first, and none of them is replaced.
    return {**built_in, **installed, **built_in}


def _short_usage(parser: argparse.ArgumentParser) -> str:
    """Return how a command is used without its options, which fill a phone's screen; help lists them below."""
    formatter = HelpFormatter(parser.prog, width=NO_TERMINAL)
    formatter.add_usage(None, parser._get_positional_actions(), [], prefix="")
    words = (
        formatter.format_help().strip().replace(parser.prog, "", 1).replace("%", "%%")
    )
    is_short = len(f"usage: {parser.prog} [options]{words}") <= _width() + 2
    return f"{parser.prog}{' ' if is_short else BREAK}[options]{words}"


def _advice(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return what to do about unknown words.

    Options that may be meant end as the first unknown one does, or else are nearly it, or have a word that nearly is.
    """
    command = parser.prog.rpartition(" ")[2]
    if not unknown[0].startswith("-") and command in WITHOUT_WORDS:
        return f"; {WITHOUT_WORDS[command]}"
    option = next(
        (word.partition("=")[0] for word in unknown if word.startswith("--")), ""
    )
    names = sorted(
        name for name in parser._option_string_actions if name.startswith("--")
    )
    alike = [
        name for name in names if option[2:] and name.endswith(option[1:])
    ] or near(option, names)
    alike = alike or [
        name for name in names if option[2:] and near(option[2:], name[2:].split("-"))
    ]
    guess = f" (did you mean {' or '.join(alike)}?)" if alike else ""
    return f"{guess}; `{parser.prog} --help` lists what it takes"


def _sentence(error: Exception, token_file: Path | None) -> str:
    text = str(error).strip()
    if getattr(error, "code", None) == "UNAUTHORIZED":
        from pocketserve.terminal.token_file import (
            token_variable_fault,
        )  # late: most commands end well

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
