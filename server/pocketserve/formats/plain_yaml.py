"""Reads the YAML that PyYAML writes for plain data: mappings, lists and scalars.

Anchors, tags, block scalars and nested flow collections are rejected. A plain word such
as ``no`` stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pocketserve.formats import DamagedFileError

MAX_LINES: Final = 100_000
MAX_DEPTH: Final = 20

_INTEGER: Final = re.compile(r"[-+]?\d{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]\d+)?")
_KEY: Final = re.compile(
    r"""('(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[^\s'"][^:]*?):(\s+|$)"""
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None, "~": None, "": None}
_DOUBLE_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))"
)
_ESCAPED: Final = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
_UNSUPPORTED: Final = ("&", "*", "!", "|", ">", "%", "@", "`")


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def read_plain_yaml(text: str) -> Any:
    """Return the document as dicts, lists, texts, numbers, bools and None.

    Raises:
        DamagedFileError: names the line that can't be read.
    """
    lines = _filled_lines(text)
    if not lines:
        return None
    reader = _YamlReader(lines)
    value = reader.block(lines[0].indent, depth=0)
    if reader.line is not None:
        raise _fault(reader.line)
    return value


def _filled_lines(text: str) -> list[_Line]:
    """Return the lines that are neither blank nor comments."""
    lines: list[_Line] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if number > MAX_LINES:
            raise DamagedFileError(f"has more than {MAX_LINES} lines")
        content = line.strip()
        if content and not content.startswith("#") and content != "---":
            indent = len(line) - len(line.lstrip(" "))
            lines.append(_Line(number, indent, content))
    return lines


class _YamlReader:
    """A position in the lines of a document."""

    def __init__(self, lines: Sequence[_Line]) -> None:
        self._lines = lines
        self._at = 0

    @property
    def line(self) -> _Line | None:
        """The next line; None at the end."""
        if self._at < len(self._lines):
            return self._lines[self._at]
        return None

    def block(self, indent: int, depth: int) -> Any:
        """Read the mapping, list or scalar that begins at this indentation."""
        line = self.line
        assert line is not None
        if depth > MAX_DEPTH:
            raise DamagedFileError(f"line {line.number} is nested too deeply")
        if _is_item(line):
            return self._list(indent, depth)
        if _KEY.match(line.text):
            return self._mapping(indent, depth)
        return self._scalar(line, line.text, indent - 1)

    def _list(self, indent: int, depth: int) -> list[Any]:
        """Read the items that have an indentation."""
        values = []
        line = self.line
        while line is not None and line.indent == indent and _is_item(line):
            rest = line.text[1:].strip()
            if not rest:
                values.append(self._nested(line, indent + 1, depth))
            elif _is_item(line._replace(text=rest)) or _KEY.match(rest):
                raise _fault(line)
            else:
                values.append(self._scalar(line, rest, indent))
            line = self.line
        return values

    def _mapping(self, indent: int, depth: int) -> dict[Any, Any]:
        values = {}
        line = self.line
        while line is not None and line.indent == indent:
            match = _KEY.match(line.text)
            if match is None:
                raise _fault(line)
            rest = line.text[match.end() :]
            key = _value(line, match[1])
            if rest and not rest.startswith("#"):
                values[key] = self._scalar(line, rest, indent)
            else:
                values[key] = self._nested(line, indent, depth)
            line = self.line
        return values

    def _nested(self, parent: _Line, least: int, depth: int) -> Any:
        """Read the block below a key or a dash; a list may have the key's indentation."""
        self._at += 1
        line = self.line
        if line is None or line.indent < least:
            return None
        if line.indent == parent.indent and not _is_item(line):
            return None
        return self.block(line.indent, depth + 1)

    def _scalar(self, line: _Line, text: str, indent: int) -> Any:
        """Read a scalar with its continuation lines, which are indented further."""
        is_quoted = text.startswith(("'", '"'))
        parts = [text]
        self._at += 1
        following = self.line
        while following is not None and following.indent > indent:
            if not is_quoted and _KEY.match(following.text):
                raise _fault(following)
            last = parts[-1]
            if last.endswith("\\"):
                parts[-1] = last[:-1]
                parts.append(following.text.removeprefix("\\"))
            else:
                parts.append(f" {following.text}")
            self._at += 1
            following = self.line
        return _value(line, "".join(parts))


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _value(line: _Line, text: str) -> Any:
    """Return the value of a scalar or of a flat flow collection."""
    if text.startswith("["):
        parts = _flow_parts(line, text, "]")
        return [_scalar_value(line, part) for part in parts]
    if not text.startswith("{"):
        return _scalar_value(line, text)
    values = {}
    for part in _flow_parts(line, text, "}"):
        match = _KEY.match(part)
        if match is None:
            raise _fault(line)
        key = _scalar_value(line, match[1])
        values[key] = _scalar_value(line, part[match.end() :])
    return values


def _flow_parts(line: _Line, text: str, closing: str) -> list[str]:
    """Return the parts between the brackets of a flow collection."""
    inner = text.split(" #")[0].strip()[1:]
    if not inner.endswith(closing):
        raise _fault(line)
    content = inner[:-1].strip()
    for sign in "[]{}'\"":
        if sign in content:
            raise _fault(line)
    if not content:
        return []
    return [part.strip() for part in content.split(",")]


def _scalar_value(line: _Line, text: str) -> Any:
    if text.startswith("'"):
        if len(text) < 2 or not text.endswith("'"):
            raise _fault(line)
        return text[1:-1].replace("''", "'")
    if text.startswith('"'):
        return _double_quoted(line, text)
    if text.startswith(_UNSUPPORTED):
        raise _fault(line)
    text = text.split(" #")[0].rstrip()
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _double_quoted(line: _Line, text: str) -> str:
    """Return the text between double quotes."""
    if not _DOUBLE_QUOTED.fullmatch(text):
        raise _fault(line)
    return _ESCAPE.sub(_unescape, text[1:-1])


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits:
        number = int(digits, 16)
        if number < 0x110000:
            return chr(number)
        return "\N{REPLACEMENT CHARACTER}"
    return _ESCAPED.get(match[4], match[4])


def _fault(line: _Line) -> DamagedFileError:
    return DamagedFileError(f"line {line.number} is not plain YAML: {line.text:.60}")
