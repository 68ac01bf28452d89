"""Check the sources in a TorchScript archive for code that runs during compilation.

PyTorch evaluates argument defaults and class constants when it compiles a program, so
these must be plain values: ``y: Tensor=torch.from_file(...)`` reads the file before the
compiled graph can be checked. Everything else is checked in the graph. Source text that
``torch.jit.save`` does not write is rejected: if this reader and PyTorch's disagreed
about where a comment or a text ends, code could pass unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile


class SourceError(ValueError):
    """A source runs code when compiled, or has an unknown form."""


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
_PLAIN = {"name": _PLAIN_NAMES, "sign": _PLAIN_SIGNS}
_STATEMENTS = frozenset((b"if", b"for", b"while", b"with", b"import", b"return"))
_OPENING = frozenset((b"(", b"[", b"{"))
_CLOSING = frozenset((b")", b"]", b"}"))

SourceToken = tuple[str, bytes]


def check_source(source: bytes) -> None:
    """Raise ``SourceError`` if compiling a source may run its code."""
    blocks: list[tuple[int, bytes]] = []
    for indent, line in _lines(source):
        while blocks and indent <= blocks[-1][0]:
            blocks.pop()
        block = b""
        if blocks:
            block = blocks[-1][1]
        _check_no_definition(line[1:])
        word = line[0][1]
        if word in (b"def", b"class"):
            _check_definition(line, block)
            blocks.append((indent, word))
        elif block != b"def":
            _check_statement(line, block)


def _check_no_definition(tokens: Sequence[SourceToken]) -> None:
    """Raise if a definition begins among tokens."""
    for kind, value in tokens:
        if kind == "name" and value in (b"def", b"class", b"lambda"):
            raise SourceError("a definition begins in the middle of a line")


def _check_definition(line: Sequence[SourceToken], block: bytes) -> None:
    """Check the first line of a function or class."""
    word = line[0][1]
    if line[-1][1] != b":" or (word == b"class" and block):
        raise SourceError("a definition is not on lines of its own")
    if word == b"def":
        _check_defaults(line)


def _lines(source: bytes) -> Iterator[tuple[int, list[SourceToken]]]:
    """Yield the logical lines with their indentation.

    A line with open brackets continues on the next one.
    """
    at = depth = indent = 0
    line: list[SourceToken] = []
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise SourceError(
                f"its source is not written as PyTorch writes it (byte {at})"
            )
        kind = str(match.lastgroup)
        value = match[0]
        at = match.end()
        if kind == "space":
            if not line:
                indent = len(value)
        elif kind != "line":
            depth += (value in _OPENING) - (value in _CLOSING)
            line.append((kind, value))
        elif depth == 0:
            if line:
                yield indent, line
            line, indent = [], 0
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
    """Check a line of a class body, or one outside all classes and functions."""
    kind, word = line[0]
    if not block and word != b"op_version_set":
        raise SourceError("there is code outside of functions and classes")
    if word == b"pass" and len(line) == 1:
        return
    if kind != "name" or word in _STATEMENTS:
        raise SourceError("the body of a class is not understood")
    if word == b"__annotations__" and len(line) > 1 and line[1][1] == b"[":
        return  # __annotations__["0"] = TYPE, for a name that isn't valid in Python
    values = dropwhile(lambda token: token[1] != b"=", line)
    _check_plain(list(values)[1:])


def _check_plain(tokens: Sequence[SourceToken]) -> None:
    """Check that tokens are literals or weights (``CONSTANTS.c0``)."""
    before = b""
    for kind, value in tokens:
        is_weight_name = before == b"CONSTANTS." and kind == "name"
        is_weight_dot = before == b"CONSTANTS" and value == b"."
        if is_weight_name or is_weight_dot:
            before += value
            continue
        before = value
        plain = _PLAIN.get(kind)
        if plain is not None and value not in plain:
            raise SourceError(
                f"a default or constant is computed by {value.decode()!r} while the "
                "program is compiled"
            )
