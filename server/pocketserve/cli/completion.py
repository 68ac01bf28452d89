"""``pocketserve completion``: a shell's script, and the words that the script asks for at each press of Tab."""

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
"""A script for each shell. Where there are no words to offer, each offers the names of files."""

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
    """Print the script, or what may stand for the last word of a line that is being typed."""
    if not options.words:
        print(SCRIPTS[options.shell], end="")
        return 0
    *before, start = _whole_words(options.words[1:])
    for candidate in sorted(set(candidates(before))):
        if candidate.startswith(start) and candidate.startswith(
            "-"
        ) == start.startswith("-"):
            print(candidate)
    return 0


def candidates(before: Sequence[str]) -> Iterable[str]:
    """Return what may follow these words, options included; nothing where a file or free text is expected."""
    at = 0
    while at < len(before) and before[at].startswith("-"):
        at += 2 if before[at] in WITH_VALUE else 1
    if at > len(before):
        return ()  # the value of an option that stands before the command
    if before[at:] in ([], ["help"]):
        words = ("help", "--help", "--version", *WITH_VALUE, *FLAGS)
        return (*COMMANDS, *installed_commands(), *words)
    command = OTHER_NAMES.get(before[at], before[at])
    if command not in COMMANDS and command not in installed_commands():
        return ()
    return _after(command, before[at + 1 :])


def _after(command: str, before: Sequence[str]) -> Iterable[str]:
    """Return what may follow a command and these words."""
    positionals: list[argparse.Action] = []
    options: Mapping[str, argparse.Action] = {}
    pending: argparse.Action | None = None  # the option whose value comes next
    parser: argparse.ArgumentParser | None = command_parser([command])
    for word in (command, *before):
        if parser is not None:
            positionals = parser._get_positional_actions()
            options, parser = parser._option_string_actions, None
        if word.startswith("-"):
            name, _, value = word.partition("=")
            pending = options.get(name) if not value else None
            pending = pending if pending is not None and pending.nargs != 0 else None
        elif pending is not None:
            pending = pending if pending.nargs in ("*", "+") else None
        elif positionals and isinstance(
            positionals[0].choices, Mapping
        ):  # commands, or their actions
            parser = positionals[0].choices.get(word)
        elif positionals and positionals[0].nargs in (None, "?"):
            positionals = positionals[1:]
    if parser is not None:
        positionals, options = (
            parser._get_positional_actions(),
            parser._option_string_actions,
        )
    if pending is not None:
        return _values(pending)
    names = (
        name
        for name, action in options.items()
        if name.startswith("--") and action.help != argparse.SUPPRESS
    )
    return (*names, *(_values(positionals[0]) if positionals else ()))


def _values(action: argparse.Action) -> Iterable[str]:
    """Return the values that an argument may have; nothing for files, numbers and text."""
    if action.choices is not None:
        return map(str, action.choices)
    if (
        isinstance(action.metavar, str)
        and "|" in action.metavar
        and action.metavar.islower()
    ):  # checked elsewhere
        return action.metavar.split("|")
    return _model_names() if action.dest in MODEL_ARGUMENTS else ()


def _model_names() -> Iterator[str]:
    """Yield the names of the folder that the running server serves, or that one would serve.

    Folders and the names of files tell enough here: what reads models takes a second on a phone.
    """
    from pocketserve.config import load_config
    from pocketserve.runtimes.registry import stem_of
    from pocketserve.state.run_lock import running_servers

    config = load_config({})
    folders = {Path(run.models_dir) for run in running_servers(config.state_dir)} or {
        config.models_dir
    }
    for path in (
        path
        for folder in folders
        for path in (folder.iterdir() if folder.is_dir() else [folder])
    ):
        if path.name.startswith("."):
            continue
        if path.is_file() and _may_be_model(path.name):
            yield stem_of(path.name)
        elif path.is_dir() and any(map(_may_be_model, os.listdir(path))):
            yield path.name


def _may_be_model(name: str) -> bool:
    """Return whether a name is that of a model file, of a manifest, or of a numbered version."""
    from pocketserve.runtimes.registry import format_of_name

    is_code = name.endswith(".py") and name != "model.py"
    return (
        name == "model.toml"
        or name.isdecimal()
        or (format_of_name(name) is not None and not is_code)
    )


def _whole_words(words: Sequence[str]) -> list[str]:
    """Return the words of a line that bash has parted at ``:`` and ``=``, as it does by default."""
    whole = [""]
    for before, word in zip(["", *words], words, strict=False):
        if word[:1] in (":", "=") or before[:1] in (":", "="):
            whole[-1] += word
        else:
            whole.append(word)
    return whole[1:]
