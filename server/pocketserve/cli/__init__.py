"""The command line; ``commands`` has a file for each command."""

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
    "listen",
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
# Commands whose modules are outside pocketserve.cli.commands.
ELSEWHERE = {
    "completion": "pocketserve.cli.completion",
    **RUNNING,
    **FOLDER,
}
OTHER_NAMES = {
    "list": "models",
    "ps": "status",
    "ls": "models",
    "run": "predict",
    "show": "inspect",
    "info": "inspect",
    "pull": "add",
    "download": "add",
    "rm": "remove",
    "delete": "remove",
    "mv": "rename",
    "start": "serve",
}
"""Aliases from other tools, mostly Ollama and Docker, with our command for each."""

_LOG_HINT = (
    "`pocketserve serve` prints the log; "
    "for a service, `pocketserve service status` shows where it is"
)
_COPY_HINT = "`pocketserve add FOLDER/MODEL --name NEW` adds a copy of a model"
WAYS = {
    "log": _LOG_HINT,
    "logs": _LOG_HINT,
    "cp": _COPY_HINT,
    "copy": _COPY_HINT,
    "restart": (
        "`pocketserve reload` reads the models folder again; "
        "`pocketserve stop` stops the server so that you can start it again"
    ),
    "search": (
        "look for models on https://huggingface.co/models; "
        "`pocketserve add hf:ORG/REPO` downloads one"
    ),
}
"""Commands of other tools that have no single equivalent here, with a hint for each."""

_INSPECT_HINT = "`pocketserve inspect MODEL` shows one model"
WITHOUT_WORDS = {
    "stop": (
        "it stops the whole server; idle models are unloaded automatically; "
        "`pocketserve status` lists the loaded ones"
    ),
    "models": _INSPECT_HINT,
    "status": _INSPECT_HINT,
}
"""Commands without arguments that take one in other tools, with a hint for each."""

BREAK = "\n    "

# Options that are also accepted before the command.
WITH_VALUE = ("--url", "--token-file")
FLAGS = ("--json", "--debug")

_NO_SPACE_HINT = "; make room on the device and try again"
WAYS_OUT = {
    errno.ENOSPC: _NO_SPACE_HINT,
    errno.EFBIG: _NO_SPACE_HINT,
    errno.EACCES: "; choose a path that you have permission to use",
    errno.EROFS: "; choose a path on a writable file system",
    errno.EMFILE: "; allow more open files (ulimit -n)",
}


def _epilog() -> str:
    """Return the help's last paragraph, with the aliases."""
    aliases: dict[str, list[str]] = {command: [] for command in COMMANDS}
    for alias, command in OTHER_NAMES.items():
        aliases[command].append(alias)
    texts = []
    for command, words in aliases.items():
        if words:
            texts.append(f"{', '.join(words)} for {command}")
    options = ", ".join((*WITH_VALUE, *FLAGS))
    return (
        f"{options} may come before or after a command that has them. "
        f"Other names: {'; '.join(texts)}; help COMMAND; version."
    )


class _Parser(argparse.ArgumentParser):
    """Parse without abbreviations: ``--port`` is not ``--port-wait``."""

    def __init__(self, **options: Any) -> None:
        width = _width()
        has_options = " " in options["prog"]
        # The column where texts begin; longer options get a line of their own.
        # Options need a narrow first column on a phone, short command names don't.
        column = 24
        if has_options and width < NARROW:
            column = 8
        formatter = partial(HelpFormatter, width=width, max_help_position=column)
        super().__init__(
            allow_abbrev=False, **{"formatter_class": formatter, **options}
        )

    def error(self, message: str) -> NoReturn:
        """Exit with the error, suggesting a command or choice."""
        invalid = re.match(
            r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message
        )
        if invalid is not None:
            argument, word, listed = invalid.groups()
            choices = listed.replace("'", "").split(", ")
            if argument == "COMMAND":
                message = _unknown_command(word, choices)
            else:
                message = f"{message}{did_you_mean(word, choices)}"
        self.print_usage(sys.stderr)
        print_text(f"{self.prog}: error: {message}", stream=sys.stderr)
        self.exit(EXIT_USAGE)


def _unknown_command(word: str, commands: Sequence[str]) -> str:
    """Return the error message for an unknown command."""
    if word in LAB_COMMANDS:
        return _not_installed(word)
    if word in WAYS:
        return f"there is no command {word!r}; {WAYS[word]}"
    hint = did_you_mean(word, (*commands, *OTHER_NAMES, "version", "help"))
    hint = hint or "; `pocketserve --help` lists the commands"
    return f"there is no command {word!r}{hint}"


def _not_installed(command: str) -> str:
    """Tell how to install a command of the lab."""
    return (
        f"{command!r} is a command of pocketserve-lab, which is not installed; "
        "run: pip install pocketserve-lab (in a clone: pip install ./lab)"
    )


@cache
def _width() -> int:
    """Return the width of help texts.

    Argparse would import shutil and its compression modules to find it.
    """
    for descriptor in (1, 2, 0):  # standard output may go to a pager
        columns = terminal_columns(descriptor)
        if columns != NO_TERMINAL:
            return columns - 2
    return 78


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; without any, print the help."""
    if arguments is None:
        arguments = sys.argv[1:]
    words = _command_first(arguments) or ["--help"]
    try:
        with plain_output(), tidy_end():
            options, unknown = command_parser(words).parse_known_args(words)
            if unknown:
                advice = _advice(unknown, options.parser)
                options.parser.error(
                    f"unrecognized arguments: {' '.join(unknown)}{advice}"
                )
            return _run(options)
    except KeyboardInterrupt:
        return EXIT_FAILED


def _run(options: argparse.Namespace) -> int:
    try:
        code = int(options.run(options))
        if sys.stdout is not None:
            # A broken pipe must be raised here, where it is handled.
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone, which is fine
        give_up(sys.stdout)
        return EXIT_DONE
    except Exception as error:
        if options.debug:
            raise
        sentence = printable(_sentence(error, getattr(options, "token_file", None)))
        print_text(f"pocketserve: {sentence}", mark="pocketserve:", stream=sys.stderr)
        if type(error).__name__ == "ConfigError":
            return EXIT_USAGE
        return EXIT_FAILED


def _command_first(words: Sequence[str]) -> list[str]:
    """Move common options behind the command, and resolve aliases.

    ``pocketserve --url URL ls`` becomes ``models --url URL``, ``help COMMAND`` becomes
    ``COMMAND --help``, and ``version`` becomes ``--version``.
    """
    at = 0
    while at < len(words) and words[at].partition("=")[0] in (*WITH_VALUE, *FLAGS):
        at += 2 if words[at] in WITH_VALUE else 1
    rest = list(words[at:])
    if rest[:1] == ["help"]:
        return [*_command_first(rest[1:2]), "--help"]
    if rest in (["version"], ["-v"]):
        return ["--version"]
    if not rest:
        return list(words)
    command = OTHER_NAMES.get(rest[0], rest[0])
    if not is_command(command):
        return list(words)
    return [command, *words[:at], *rest[1:]]


def is_command(word: str) -> bool:
    """Return whether a word names a command, installed or not."""
    if word in COMMANDS or word in LAB_COMMANDS:
        return True
    is_option = not word or word.startswith("-")
    return not is_option and word in installed_commands()


def command_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the named command, or of all commands."""
    parser = _Parser(
        prog="pocketserve",
        description="Serves machine-learning models on a phone.",
        epilog=_epilog(),
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"pocketserve {__version__}"
    )
    # Subparsers are instances of the same class. Without prog, argparse would format
    # a usage here.
    commands = parser.add_subparsers(metavar="COMMAND", required=True, prog=parser.prog)
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
    """Return the modules of all commands, or of the named one.

    So `serve` does not load the client, nor `token` the server.
    """
    built_in = {}
    for name in COMMANDS:
        built_in[name] = ELSEWHERE.get(name, f"pocketserve.cli.commands.{name}")
    if first in built_in:
        return {first: built_in[first]}
    installed = installed_commands()
    if first in installed:
        return {first: installed[first]}
    # Built-in commands come first, and can't be replaced.
    return {**built_in, **installed, **built_in}


def _short_usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage without options, which would fill a phone's screen."""
    formatter = HelpFormatter(parser.prog, width=NO_TERMINAL)
    formatter.add_usage(None, parser._get_positional_actions(), [], prefix="")
    usage = formatter.format_help().strip()
    words = usage.replace(parser.prog, "", 1).replace("%", "%%")
    is_short = len(f"usage: {parser.prog} [options]{words}") <= _width() + 2
    separator = BREAK
    if is_short:
        separator = " "
    return f"{parser.prog}{separator}[options]{words}"


def _advice(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return a hint about unknown arguments."""
    command = parser.prog.rpartition(" ")[2]
    if not unknown[0].startswith("-") and command in WITHOUT_WORDS:
        return f"; {WITHOUT_WORDS[command]}"
    option = ""
    for word in unknown:
        if word.startswith("--"):
            option = word.partition("=")[0]
            break
    similar = _similar_options(option, parser)
    guess = ""
    if similar:
        guess = f" (did you mean {' or '.join(similar)}?)"
    return f"{guess}; `{parser.prog} --help` lists its options"


def _similar_options(option: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that were probably meant.

    These are options with the same ending, else with a similar name, else options
    that contain a similar word.
    """
    names = []
    for name in sorted(parser._option_string_actions):
        if name.startswith("--"):
            names.append(name)
    stem = option[2:]
    if not stem:
        return near(option, names)
    same_ending = [name for name in names if name.endswith(option[1:])]
    if same_ending:
        return same_ending
    similar = near(option, names)
    if similar:
        return similar
    return [name for name in names if near(stem, name[2:].split("-"))]


def _sentence(error: Exception, token_file: Path | None) -> str:
    """Return an error's message, with a hint if possible."""
    text = str(error).strip()
    if getattr(error, "code", None) == "UNAUTHORIZED":
        return _unauthorized(getattr(error, "message", text), token_file)
    if type(error).__module__.startswith("pocketserve"):
        return text
    if isinstance(error, OSError) and error.strerror:
        file = ""
        if error.filename is not None:
            file = f"{error.filename!r}: "
        hint = WAYS_OUT.get(error.errno or 0, "")
        return f"{file}{error.strerror}{hint} (--debug shows where)"
    return f"{type(error).__name__}: {text} (--debug shows where)"


def _unauthorized(message: str, token_file: Path | None) -> str:
    # Late: most commands need neither.
    from pocketserve.terminal.token_file import token_variable_fault
    from pocketserve_client.credentials import find_credentials

    fault = None
    if token_file is None:
        fault = token_variable_fault()
    if fault is not None:
        return fault
    source = find_credentials(None, token_file).source
    return (
        f"{message}; {source}; --token-file names the file of the server's token, "
        "POCKETSERVE_TOKEN holds the token itself"
    )
