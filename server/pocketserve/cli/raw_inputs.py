"""Inputs of ``predict``: files, folders, patterns and addresses of pictures, or one of numbers, JSON or text."""

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

FETCH_S, MAX_FETCHED = 60.0, 64 << 20  # seconds and bytes for all of one picture
MAX_NAME = 60  # characters of a text that stands for its input
DECIMAL_COMMA = re.compile(
    r"[+-]?\d+,\d+"
)  # several such words are fractions, not twice as many numbers


class InputError(CommandError):
    """An input that cannot be had; others may be."""


class NamedInput(NamedTuple):
    """An input with a name, one of perhaps several."""

    name: str  # as the answer to it is headed
    read: Callable[
        [], bytes
    ]  # returns the bytes to send; InputError or OSError where there are none
    is_file: bool = (
        True  # or an address; not words of the command line, nor standard input
    )


def read_inputs(words: Sequence[str]) -> list[NamedInput]:
    """Return the inputs that a command line names; a folder stands for the files in it, in alphabetical order.

    Raises:
        CommandError: words that are no input, or no files where files are named.
    """
    if list(words) == ["-"]:
        return [NamedInput("-", _standard_input, is_file=False)]
    sources = [_sources(word) for word in words]
    if not any(source is not None for source in sources):
        return [
            NamedInput(
                " ".join(words)[:MAX_NAME],
                partial(bytes, _values(words)),
                is_file=False,
            )
        ]
    inputs = []
    for word, source in zip(words, sources, strict=True):
        if source is None:
            raise CommandError(
                f"{word!r} is no file, folder or address of a picture, as other words of this line are"
            )
        inputs += source
    return inputs


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise InputError("standard input is closed; name a file")
    return sys.stdin.buffer.read()


def _sources(word: str) -> list[NamedInput] | None:
    """Return what a word names; None for numbers, JSON and texts."""
    if re.match(r"https?://\S+$", word, re.IGNORECASE):
        return [NamedInput(word, partial(_fetch, word))]
    if os.path.isdir(word):
        paths = sorted(
            entry.path
            for entry in os.scandir(word)
            if entry.is_file() and not entry.name.startswith(".")
        )
        if not paths:
            raise CommandError(f"the folder {word!r} holds no files")
    elif os.path.lexists(word):
        if not os.path.isfile(word):
            raise CommandError(
                f"{word!r} is no regular file; name a file, or - for standard input"
            )
        paths = [word]
    else:  # a shell does that itself, where the pattern is not in quotes
        is_pattern = any(sign in word for sign in "*?") and not word.startswith(
            ("[", "{")
        )
        paths = (
            sorted(filter(os.path.isfile, glob.glob(word, recursive=True)))
            if is_pattern
            else []
        )
        if is_pattern and not paths and not re.search(r"\s", word):
            raise CommandError(f"no file matches {word!r}")
    return [NamedInput(path, Path(path).read_bytes) for path in paths] or None


def _fetch(address: str) -> bytes:
    from pocketserve.cli.fetch import fetch  # late: most inputs are files
    from pocketserve_client.errors import ServerUnreachableError

    try:
        return fetch(address, FETCH_S, MAX_FETCHED)
    except ServerUnreachableError as error:
        raise InputError(str(error)) from None


def _values(words: Sequence[str]) -> bytes:
    """Return numbers as a JSON array, and JSON or a text in quotes as it is."""
    if not any(words):
        raise CommandError(
            "the input is empty; name a file, numbers, or a sentence in quotes"
        )
    text = ",".join(words).strip()
    if text.startswith(("[", "{")) or (len(words) == 1 and _is_json_text(text)):
        return text.encode()
    if len(words) == 1 and _is_sentence(text):
        return words[0].encode()
    parts = " ".join(words).split()
    if len(parts) > 1 and all(DECIMAL_COMMA.fullmatch(part) for part in parts):
        raise CommandError(
            f"{parts[0]!r} is a decimal comma or two numbers: write {parts[0].replace(',', '.')} for the one, and "
            f"{parts[0].replace(',', ' ')} for the other"
        )
    numbers = [_number(word) for word in text.replace(",", " ").split()]
    return json.dumps(numbers).encode()


def _is_json_text(text: str) -> bool:
    """Return whether an argument is a text in JSON's quotes, such as ``"good"``."""
    try:
        return isinstance(json.loads(text), str)
    except (ValueError, RecursionError):
        return False


def _is_sentence(text: str) -> bool:
    """Return whether an argument is a text of several words: no number, and no list of numbers."""
    try:
        list(map(_number, text.replace(",", " ").split()))
    except CommandError:
        return len(text.split()) > 1
    return False


def _number(word: str) -> int | float:
    for kind in (int, float):
        if "_" not in word:  # Python's own spelling of numbers, nobody else's
            with contextlib.suppress(ValueError):
                number = kind(word)
                if math.isinf(number) and "inf" not in word.lower():
                    raise CommandError(f"{word!r} is too large for a number")
                return number
    raise CommandError(f"{word!r} is neither a file nor a number")
