"""Texts in source code: what a model says of itself must end neither a string nor a comment."""

from __future__ import annotations

import textwrap

MAX_COMMENT = 2_000  # characters of one text in a comment
COMMENT_WIDTH = 100
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
# Javadoc reads <, &, @ and {. Kotlin's comments nest at /*. Java takes a backslash with u for a character even here.
_MARKUP = frozenset("<>&@{}*\\`[]")


def java_string(text: str) -> str:
    """Return a literal in ASCII.

    javac looks ahead behind the escape of a surrogate, and miscounts the backslashes there: that one is in octal.
    """
    escaped = []
    previous = ""
    for char in text:
        if char == "\\" and previous > "~":
            escaped.append("\\134")
        else:
            escaped.append(_escape(char))
        previous = char
    return f'"{"".join(escaped)}"'


def kotlin_string(text: str) -> str:
    """Return a literal in ASCII, in which ``$`` begins no expression."""
    literal = "".join(map(_escape, text))
    return f'"{literal}"'.replace("$", "\\$")


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def capital(text: str) -> str:
    """Return a text that begins a sentence; it is not yet escaped."""
    return text[:1].upper() + text[1:]


def comment(text: str, indent: int = 0) -> str:
    """Return a text for the inside of a block comment, in ASCII, in lines that go on below ``*``."""
    short = text if len(text) <= MAX_COMMENT else f"{text[:MAX_COMMENT]} ..."
    words = " ".join(short.split())
    escaped = "".join(
        char if " " <= char <= "~" and char not in _MARKUP else f"&#{ord(char)};"
        for char in words
        if char > "\x1f"
    )
    lines = textwrap.wrap(
        escaped, COMMENT_WIDTH - indent, break_long_words=False, break_on_hyphens=False
    )
    return f"\n{' ' * indent} * ".join(lines)
