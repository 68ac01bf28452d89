"""Reads the source files in a TorchScript archive, for code that runs already while PyTorch compiles them.

PyTorch evaluates defaults of arguments and constants of classes when it compiles a program, so these must be plain
values: ``y: Tensor=torch.from_file(...)`` reads the file before anybody can look at the compiled graph. The graph
decides about everything else. The reader refuses what ``torch.jit.save`` does not write: two readers that disagree
about where a comment or a text ends would be a way through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile


class SourceError(ValueError):
    """A source that runs something while it is compiled, or that is not written as PyTorch writes it."""


_TOKEN = re.compile(
    rb"(?P<space>[ ]+)"
    rb'|(?P<text>"(?:[^"\\\n]|\\[^\n])*"(?!"))'
    rb"|(?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?j?(?![0-9A-Za-z_.]))"
    rb"|(?P<name>[A-Za-z_][0-9A-Za-z_]*)"
    rb"|(?P<line>\n)"
    rb"|(?P<sign>->|[-+*/%@&|^~<>=!()\[\]{},:.])"
)
_PLAIN_NAMES = frozenset(
    b"CONSTANTS None True False inf nan annotate List Dict Tuple Optional Tensor Device NoneType"
    b" int float bool str complex".split()
)
_PLAIN_SIGNS = frozenset((b"-", b"(", b")", b"[", b"]", b"{", b"}", b",", b":"))
_OPENING, _CLOSING = frozenset((b"(", b"[", b"{")), frozenset((b")", b"]", b"}"))

SourceToken = tuple[str, bytes]


def check_source(source: bytes) -> None:
    """Raise ``SourceError`` if compiling a source may run its code."""
    blocks: list[tuple[int, bytes]] = []
    for indent, line in _lines(source):
        while blocks and indent <= blocks[-1][0]:
            blocks.pop()
        block = blocks[-1][1] if blocks else b""
        word = line[0][1]
        if any(
            kind == "name" and value in (b"def", b"class", b"lambda")
            for kind, value in line[1:]
        ):
            raise SourceError("a definition begins in the middle of a line")
        if word in (b"def", b"class"):
            if line[-1][1] != b":" or (word == b"class" and block):
                raise SourceError("a definition is not on lines of its own")
            if word == b"def":
                _check_defaults(line)
            blocks.append((indent, word))
        elif block != b"def":
            _check_statement(line, block)


def _lines(source: bytes) -> Iterator[tuple[int, list[SourceToken]]]:
    """Yield the logical lines with their indentation; those within brackets go on behind line ends."""
    at = depth = indent = 0
    line: list[SourceToken] = []
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise SourceError(
                f"its source is not written as PyTorch writes it (byte {at})"
            )
        kind, value = str(match.lastgroup), match[0]
        if kind == "line":
            if depth == 0:
                if line:
                    yield indent, line
                line, indent = [], 0
        elif kind == "space":
            indent = indent if line else len(value)
        else:
            depth += (value in _OPENING) - (value in _CLOSING)
            line.append((kind, value))
        at = match.end()
    if depth:
        raise SourceError("its source ends within brackets")
    if line:
        yield indent, line


def _check_defaults(line: Sequence[SourceToken]) -> None:
    depth = 0
    default: list[SourceToken] | None = None
    for token in line:
        value = token[1]
        depth -= value in _CLOSING
        if value == b"=":
            if depth != 1 or default is not None:
                raise SourceError("the head of a function is not understood")
            default = []
        elif depth == 0 or (depth == 1 and value == b","):
            _check_plain(default or ())
            default = None
        elif default is not None:
            default.append(token)
        depth += value in _OPENING


def _check_statement(line: Sequence[SourceToken], block: bytes) -> None:
    """Check a line in the body of a class, or outside of everything: attributes and constants."""
    kind, word = line[0]
    if not block and word != b"op_version_set":
        raise SourceError("something stands outside of functions and classes")
    if word == b"pass" and len(line) == 1:
        return
    if kind != "name" or word in (
        b"if",
        b"for",
        b"while",
        b"with",
        b"import",
        b"return",
    ):
        raise SourceError("the body of a class is not understood")
    if word == b"__annotations__" and len(line) > 1 and line[1][1] == b"[":
        return  # __annotations__["0"] = TYPE, where a name is none in Python
    before = len(list(takewhile(lambda token: token[1] != b"=", line)))
    _check_plain(line[before + 1 :])


def _check_plain(tokens: Sequence[SourceToken]) -> None:
    """Check for values that are written out, and weights: ``CONSTANTS.c0``."""
    before = b""
    for kind, value in tokens:
        if (before, kind) == (b"CONSTANTS.", "name") or (
            before == b"CONSTANTS" and value == b"."
        ):
            before += value
            continue
        before = value
        plain = {"name": _PLAIN_NAMES, "sign": _PLAIN_SIGNS}.get(kind)
        if plain is not None and value not in plain:
            raise SourceError(
                f"a default or constant is computed by {value.decode()!r} while the program is compiled"
            )
