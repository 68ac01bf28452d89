"""Inputs of ``predict``."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pocketserve.terminal.errors import CommandError

FETCH_S = 60.0  # for one picture
MAX_FETCHED = 64 << 20  # bytes of one picture
MAX_NAME = 60  # characters of a text that is used as its input's name

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
"""Several such words are fractions, not pairs of numbers."""


class InputError(CommandError):
    """An input that can't be read; other inputs may be fine."""


class NamedInput(NamedTuple):
    """An input and the name under which its answer is printed.

    Attributes:
        read: returns the bytes to send, or raises InputError or OSError.
        is_file: whether it is a file or an address.
    """

    name: str
    read: Callable[[], bytes]
    is_file: bool = True


def read_inputs(words: Sequence[str]) -> list[NamedInput]:
    """Return the inputs that a command line names.

    Raises:
        CommandError: a word is not an input, or only some of the words are files.
    """
    if list(words) == ["-"]:
        return [NamedInput("-", _standard_input, is_file=False)]
    files = [_files_of(word) for word in words]
    if not any(files):
        content = partial(bytes, _values(words))
        return [NamedInput(" ".join(words)[:MAX_NAME], content, is_file=False)]
    inputs = []
    for word, file_inputs in zip(words, files, strict=True):
        if not file_inputs:
            raise CommandError(
                f"{word!r} is not a file, folder or address of a picture, "
                "as other words of this line are"
            )
        inputs += file_inputs
    return inputs


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise InputError("standard input is closed; name a file")
    return sys.stdin.buffer.read()


def _files_of(word: str) -> list[NamedInput]:
    """Return the files or address that a word names."""
    if re.match(r"https?://\S+$", word, re.IGNORECASE):
        return [NamedInput(word, partial(_fetch, word))]
    if os.path.isdir(word):
        paths = _files_in(word)
    elif os.path.lexists(word):
        if not os.path.isfile(word):
            raise CommandError(
                f"{word!r} is not a regular file; name a file, or - for standard input"
            )
        paths = [word]
    else:
        paths = _matching_files(word)
    return [NamedInput(path, Path(path).read_bytes) for path in paths]


def _files_in(folder: str) -> list[str]:
    paths = []
    for entry in os.scandir(folder):
        if entry.is_file() and not entry.name.startswith("."):
            paths.append(entry.path)
    if not paths:
        raise CommandError(f"the folder {folder!r} has no files")
    return sorted(paths)


def _matching_files(pattern: str) -> list[str]:
    """Expand a quoted pattern."""
    is_pattern = "*" in pattern or "?" in pattern
    is_json = pattern.startswith(("[", "{"))
    if is_json or not is_pattern:
        return []
    paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    is_sentence = re.search(r"\s", pattern) is not None
    if not paths and not is_sentence:
        raise CommandError(f"no file matches {pattern!r}")
    return paths


def _fetch(address: str) -> bytes:
    from pocketserve.cli.fetch import fetch  # late: most inputs are files
    from pocketserve_client.errors import ServerUnreachableError

    try:
        return fetch(address, FETCH_S, MAX_FETCHED)
    except ServerUnreachableError as error:
        raise InputError(str(error)) from None


def _values(words: Sequence[str]) -> bytes:
    """Encode numbers as JSON; keep JSON and quoted text."""
    if not any(words):
        raise CommandError(
            "the input is empty; name a file, numbers, or a sentence in quotes"
        )
    text = ",".join(words).strip()
    if text.startswith(("[", "{")):
        return text.encode()
    if len(words) == 1:
        if _is_json_text(text):
            return text.encode()
        if _is_sentence(text):
            return words[0].encode()
    parts = " ".join(words).split()
    if len(parts) > 1 and all(DECIMAL_COMMA.fullmatch(part) for part in parts):
        first = parts[0]
        raise CommandError(
            f"{first!r} is a decimal comma or two numbers: write "
            f"{first.replace(',', '.')} for the one, and "
            f"{first.replace(',', ' ')} for the other"
        )
    numbers = [_number(word) for word in text.replace(",", " ").split()]
    return json.dumps(numbers).encode()


def _is_json_text(text: str) -> bool:
    """Return whether an argument is a JSON string, such as ``"good"``."""
    try:
        return isinstance(json.loads(text), str)
    except (ValueError, RecursionError):
        return False


def _is_sentence(text: str) -> bool:
    """Return whether an argument has several words that aren't all numbers."""
    try:
        list(map(_number, text.replace(",", " ").split()))
    except CommandError:
        return len(text.split()) > 1
    return False


def _number(word: str) -> int | float:
    for kind in (int, float):
        if "_" in word:  # Python accepts it in numbers, other programs don't
            continue
        with contextlib.suppress(ValueError):
            number = kind(word)
            if math.isinf(number) and "inf" not in word.lower():
                raise CommandError(f"{word!r} is too large for a number")
            return number
    raise CommandError(f"{word!r} is neither a file nor a number")
