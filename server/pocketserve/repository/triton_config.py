"""Triton's ``config.pbtxt`` beside a model: what can be taken over is, and what cannot be is said.

The file is a protocol buffer in text form, a ``ModelConfig`` of Triton's ``model_config.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketserve.repository.toml_table import is_contained_name
from pocketserve_wire.files.plain_file import read_plain

MAX_BYTES = 1 << 20
MAX_DEPTH = 16

_TOKEN = re.compile(
    r"\s+|#[^\n]*"
    r"|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<word>[A-Za-z_][\w.]*|[-+]?[\d.][\w.+-]*)|(?P<mark>[{}\[\]:,;])"
)
Message = dict[str, list[Any]]  # the fields of a message by name, each with its values in order


class TextFormatError(ValueError):
    """A file that is no text of a protocol buffer; the text says where."""


def read_config(path: Path) -> tuple[str | None, str | None]:
    """Return the file with the first output's labels, and why the model cannot be served here, or None for each."""
    name = f"{path.parent.name}/{path.name}"
    try:
        text = read_plain(path, MAX_BYTES).decode("utf-8")
        config = parse(text.replace("\r\n", "\n").replace("\r", "\n"))
    except OSError as error:
        return None, f"{name} cannot be read: {error.strerror}"
    except ValueError as error:
        return None, f"{name} cannot be read: {error}"
    if problem := _unserved(config):
        return None, f"{name}: {problem}"
    labels = (_last(output, "label_filename") for output in config.get("output", []) if isinstance(output, dict))
    return next(filter(is_contained_name, labels), None), None


def _unserved(config: Message) -> str | None:
    if "ensemble_scheduling" in config:
        return "ensembles of models are not served; ask its models one by one"
    if any("control_input" in entry for entry in config.get("sequence_batching", []) if isinstance(entry, dict)):
        return "controls of sequences as inputs are not served; feed outputs back by [state] in a model.toml"
    if _last(config, "backend") == "python":
        return "code for Triton's Python backend is not served; write a model.py or a task.py, with a model.toml"
    return None


def _last(message: Message, name: str) -> Any:
    """Return a field's value; of several the last counts."""
    return next(reversed(message.get(name, [])), None)


def parse(text: str) -> Message:
    """Parse a message in text form."""
    tokens = [*_tokens(text)][::-1]
    message = _message(tokens, 0)
    if tokens:
        raise TextFormatError("a bracket is closed that was never opened")
    return message


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise TextFormatError(f"line {text.count(chr(10), 0, at) + 1} is no text of a protocol buffer")
        at = match.end()
        if match.lastgroup is not None:
            yield match.lastgroup, match[0][1:-1] if match.lastgroup == "text" else match[0]


def _message(tokens: list[tuple[str, str]], depth: int) -> Message:
    """Remove fields from the end of ``tokens``, up to the closing bracket, which is left."""
    if depth > MAX_DEPTH:
        raise TextFormatError(f"messages nest more than {MAX_DEPTH} deep")
    fields: Message = {}
    while tokens and tokens[-1] != ("mark", "}"):
        kind, name = tokens.pop()
        if kind != "word":
            raise TextFormatError(f"{name!r:.40} stands where a field's name is expected")
        _skip(tokens, ":")
        values = fields.setdefault(name, [])
        if _skip(tokens, "["):
            while not _skip(tokens, "]"):
                values.append(_value(tokens, depth))
                _skip(tokens, ",")
        else:
            values.append(_value(tokens, depth))
        _skip(tokens, ",;")
    return fields


def _value(tokens: list[tuple[str, str]], depth: int) -> Any:
    if not tokens:
        raise TextFormatError("it ends before a value")
    kind, text = tokens.pop()
    if kind != "mark":
        return text
    if text != "{":
        raise TextFormatError(f"{text!r} stands where a value is expected")
    message = _message(tokens, depth + 1)
    if not _skip(tokens, "}"):
        raise TextFormatError("a bracket is never closed")
    return message


def _skip(tokens: list[tuple[str, str]], marks: str) -> bool:
    """Remove the next token if it is one of the marks; return whether it was."""
    if tokens and tokens[-1][0] == "mark" and tokens[-1][1] in marks:
        tokens.pop()
        return True
    return False
