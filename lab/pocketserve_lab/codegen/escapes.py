"""Escape texts for source code: metadata can end neither a string nor a comment."""

from __future__ import annotations

import re
import textwrap

MAX_COMMENT = 2_000
"""Characters of one text in a comment."""

COMMENT_WIDTH = 100
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
# Javadoc interprets <, &, @ and {. Kotlin's comments nest at /*. Java interprets
# Unicode escapes even in comments.
_MARKUP = frozenset("<>&@{}*\\`[]")


def java_string(text: str) -> str:
    """Return a literal in ASCII.

    After the escape of a surrogate, javac miscounts backslashes: such a backslash is
    octal.
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
    """Return a literal in ASCII, in which ``$`` starts no expression."""
    literal = "".join(map(_escape, text))
    return f'"{literal}"'.replace("$", "\\$")


def typescript_string(text: str) -> str:
    """Return a literal in ASCII."""
    literal = "".join(map(_escape, text))
    return f'"{literal}"'


def typescript_key(text: str) -> str:
    """Return a key of an object, computed if it is no identifier."""
    if _IDENTIFIER.fullmatch(text) and text != "__proto__":
        return text
    # Quoted, __proto__ would still set the prototype; computed, it is a plain key.
    return f"[{typescript_string(text)}]"


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    escaped = ""
    for start in range(0, len(units), 2):
        escaped += f"\\u{units[start : start + 2].hex()}"
    return escaped


def capital(text: str) -> str:
    """Capitalise the first letter of a text, before it is escaped."""
    return text[:1].upper() + text[1:]


def comment(text: str, indent: int = 0) -> str:
    """Return a text in ASCII for a block comment, with further lines after ``*``."""
    if len(text) > MAX_COMMENT:
        text = f"{text[:MAX_COMMENT]} ..."
    escaped = "".join(map(_escape_in_comment, " ".join(text.split())))
    lines = textwrap.wrap(
        escaped,
        COMMENT_WIDTH - indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"\n{' ' * indent} * ".join(lines)


def _escape_in_comment(char: str) -> str:
    if char <= "\x1f":
        return ""
    if char > "~" or char in _MARKUP:
        return f"&#{ord(char)};"
    return char
