"""Triton's ``config.pbtxt`` beside a model: what can be taken over is, and what cannot be is said.

The file is a protocol buffer in text form, a ``ModelConfig`` of Triton's ``model_config.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketserve.repository.toml_table import is_contained_name
from pocketserve_wire.records import dataclass

MAX_BYTES = 1 << 20
MAX_DEPTH = 16

_TOKEN = re.compile(
    r"\s+|#[^\n]*"
    r"|\"(?P<double>(?:[^\"\\\n]|\\.)*)\"|'(?P<single>(?:[^'\\\n]|\\.)*)'"
    r"|(?P<word>[A-Za-z_][\w.]*|[-+]?[\d.][\w.+-]*)|(?P<mark>[{}\[\]:,;])"
)
Message = dict[str, list[Any]]
"""The fields of a message by name, each with its values in order."""


class ConfigError(ValueError):
    """A file that is no text of a protocol buffer; the text says where."""


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """What a configuration says of a model.

    Attributes:
        labels: the file with the first output's labels, relative to the model's folder.
        problem: why the model cannot be served here; None if nothing speaks against it.
    """

    labels: str | None = None
    problem: str | None = None


def read_config(path: Path) -> TritonConfig:
    """Read a configuration; one that cannot be read is a problem of the model."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"is no file of at most {MAX_BYTES} bytes")
        config = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return TritonConfig(problem=f"{path.parent.name}/{path.name} cannot be read: {error}")
    problem = _problem(config)
    if problem is not None:
        return TritonConfig(problem=f"{path.parent.name}/{path.name}: {problem}")
    outputs = (output for output in config.get("output", []) if isinstance(output, dict))
    named = (_last(output, "label_filename") for output in outputs)
    return TritonConfig(labels=next((name for name in named if is_contained_name(name)), None))


def parse(text: str) -> Message:
    """Parse a message in text form.

    Raises:
        ConfigError: it is none.
    """
    tokens = list(_tokens(text))
    message, at = _message(tokens, 0, 0)
    if at != len(tokens):
        raise ConfigError("a bracket is closed that was never opened")
    return message


def _problem(config: Message) -> str | None:
    """Return what of a configuration has no counterpart here."""
    if "ensemble_scheduling" in config:
        return "ensembles of models are not served; ask its models one by one"
    if any("control_input" in entry for entry in config.get("sequence_batching", []) if isinstance(entry, dict)):
        return "controls of sequences as inputs are not served; feed outputs back by [state] in a model.toml"
    if _last(config, "backend") == "python":
        return "code for Triton's Python backend is not served; write a model.py or a task.py, with a model.toml"
    return None


def _last(message: Message, name: str) -> Any:
    """A field's value; of several the last counts."""
    return next(reversed(message.get(name, [])), None)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token; kinds are ``text``, ``word`` and ``mark``."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigError(f"line {text.count(chr(10), 0, at) + 1} is no text of a protocol buffer")
        at = match.end()
        if match.lastgroup in ("double", "single"):
            yield "text", match[match.lastgroup]
        elif match.lastgroup is not None:
            yield match.lastgroup, match[match.lastgroup]


def _message(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Message, int]:
    """Fields from a place on, up to the closing bracket, which is left."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"messages nest more than {MAX_DEPTH} deep")
    fields: Message = {}
    while at < len(tokens) and tokens[at] != ("mark", "}"):
        kind, name = tokens[at]
        if kind != "word":
            raise ConfigError(f"{name!r:.40} stands where a field's name is expected")
        at += 1
        if _is(tokens, at, ":"):
            at += 1
        values, at = _values(tokens, at, depth)
        fields.setdefault(name, []).extend(values)
        if _is(tokens, at, ",") or _is(tokens, at, ";"):
            at += 1
    return fields, at


def _values(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[list[Any], int]:
    if not _is(tokens, at, "["):
        value, at = _value(tokens, at, depth)
        return [value], at
    values: list[Any] = []
    at += 1
    while not _is(tokens, at, "]"):
        value, at = _value(tokens, at, depth)
        values.append(value)
        if _is(tokens, at, ","):
            at += 1
    return values, at + 1


def _value(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Any, int]:
    if at >= len(tokens):
        raise ConfigError("it ends before a value")
    kind, text = tokens[at]
    if (kind, text) == ("mark", "{"):
        message, at = _message(tokens, at + 1, depth + 1)
        if not _is(tokens, at, "}"):
            raise ConfigError("a bracket is never closed")
        return message, at + 1
    if kind == "mark":
        raise ConfigError(f"{text!r} stands where a value is expected")
    return text, at + 1


def _is(tokens: list[tuple[str, str]], at: int, mark: str) -> bool:
    return at < len(tokens) and tokens[at] == ("mark", mark)
