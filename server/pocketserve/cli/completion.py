"""``pocketserve completion``: a shell's script, and the completions it asks for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.cli import COMMANDS, FLAGS, OTHER_NAMES, WITH_VALUE, command_parser
from pocketserve.cli.installed import installed_commands

SCRIPTS = {
    "bash": """\
_pocketserve() {
    local IFS=$'\\n'
    COMPREPLY=($(pocketserve completion bash words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _pocketserve pocketserve
""",
    "zsh": """\
#compdef pocketserve
_pocketserve() {
    local -a words_found
    words_found=("${(@f)$(pocketserve completion zsh words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n $words_found ]]; then compadd -a words_found; else _files; fi
}
if [[ $funcstack[1] = _pocketserve ]]; then _pocketserve; else compdef _pocketserve pocketserve; fi
""",
    "fish": """\
function __pocketserve_words
    set -l current (commandline -ct)
    set -l before (commandline -opc)
    set -l found (pocketserve completion fish words $before[2..] "$current" 2>/dev/null)
    if test -n "$found"
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c pocketserve -f -a '(__pocketserve_words)'
""",
}
"""The script of each shell. Without completions of ours it offers file names."""

MODEL_ARGUMENTS = ("model", "load", "old")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print the script with which a shell completes commands, options and models",
        description="Prints the script with which a shell completes commands, options, choices, models and files. "
        "docs/quickstart.md says where each shell looks for it.",
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS))
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the script, or completions of the last word."""
    if not options.words:
        print(SCRIPTS[options.shell], end="")
        return 0
    *before, start = _whole_words(options.words[1:])
    for candidate in sorted(set(candidates(before))):
        is_same_kind = candidate.startswith("-") == start.startswith("-")
        if is_same_kind and candidate.startswith(start):
            print(candidate)
    return 0


def candidates(before: Sequence[str]) -> Iterable[str]:
    """Return possible next words, but no files or free text."""
    at = 0
    while at < len(before) and before[at].startswith("-"):
        at += 2 if before[at] in WITH_VALUE else 1
    if at > len(before):
        return ()  # the value of an option before the command
    rest = list(before[at:])
    if rest in ([], ["help"]):
        words = ("help", "--help", "--version", *WITH_VALUE, *FLAGS)
        return (*COMMANDS, *installed_commands(), *words)
    command = OTHER_NAMES.get(rest[0], rest[0])
    if command not in COMMANDS and command not in installed_commands():
        return ()
    line = _CommandLine(command)
    for word in rest[1:]:
        line.add(word)
    return line.candidates()


class _CommandLine:
    """An incomplete command line."""

    def __init__(self, command: str) -> None:
        self._positionals: list[argparse.Action] = []
        self._options: Mapping[str, argparse.Action] = {}
        self._pending: argparse.Action | None = None  # an option without its value yet
        self._enter(command_parser([command]))
        self.add(command)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        self._positionals = parser._get_positional_actions()
        self._options = parser._option_string_actions

    def add(self, word: str) -> None:
        """Add a complete word."""
        if word.startswith("-"):
            self._begin_option(word)
        elif self._pending is not None:
            if self._pending.nargs not in ("*", "+"):
                self._pending = None
        elif self._positionals:
            self._add_positional(self._positionals[0], word)

    def _begin_option(self, word: str) -> None:
        name, _, value = word.partition("=")
        option = self._options.get(name)
        takes_value = option is not None and option.nargs != 0
        self._pending = option if takes_value and not value else None

    def _add_positional(self, positional: argparse.Action, word: str) -> None:
        if isinstance(positional.choices, Mapping):  # commands, or their actions
            parser = positional.choices.get(word)
            if parser is not None:
                self._enter(parser)
        elif positional.nargs in (None, "?"):
            self._positionals = self._positionals[1:]

    def candidates(self) -> Iterable[str]:
        """Return possible next words."""
        if self._pending is not None:
            return _values(self._pending)
        words = []
        for name, action in self._options.items():
            if name.startswith("--") and action.help != argparse.SUPPRESS:
                words.append(name)
        if self._positionals:
            words += _values(self._positionals[0])
        return words


def _values(action: argparse.Action) -> Iterable[str]:
    """Return an argument's choices, if it has any."""
    if action.choices is not None:
        return map(str, action.choices)
    metavar = action.metavar
    if isinstance(metavar, str) and "|" in metavar and metavar.islower():
        return metavar.split("|")  # choices that the settings check
    if action.dest in MODEL_ARGUMENTS:
        return _model_names()
    return ()


def _model_names() -> Iterator[str]:
    """Yield names of models that are or would be served.

    Only names of files are read, and the header where a name is that of a part:
    reading the models takes a second on a phone.
    """
    from pocketserve.config import load_config
    from pocketserve.runtimes.registry import stem_of
    from pocketserve.state.run_lock import running_servers

    config = load_config({})
    folders = {Path(run.models_dir) for run in running_servers(config.state_dir)}
    for folder in folders or {config.models_dir}:
        paths = folder.iterdir() if folder.is_dir() else [folder]
        for path in paths:
            if path.name.startswith("."):
                continue
            if path.is_file() and _may_be_model(path.name):
                yield stem_of(path)
            elif path.is_dir() and any(map(_may_be_model, os.listdir(path))):
                yield path.name


def _may_be_model(name: str) -> bool:
    """Return whether a file name suggests a model."""
    from pocketserve.runtimes.registry import format_of_name

    if name == "model.toml" or name.isdecimal():
        return True
    is_code = name.endswith(".py") and name != "model.py"
    return not is_code and format_of_name(name) is not None


def _whole_words(words: Sequence[str]) -> list[str]:
    """Join words that bash has split at ``:`` and ``=``."""
    whole = [""]
    for before, word in zip(["", *words], words, strict=False):
        if word[:1] in (":", "=") or before[:1] in (":", "="):
            whole[-1] += word
        else:
            whole.append(word)
    return whole[1:]
