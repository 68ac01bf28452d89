"""Captions on a terminal: final words stay, open ones are grey and change."""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import Final

from pocketserve.terminal.output import printable, terminal_columns

CLEAR: Final = "\r\033[K"
GREY: Final = "\033[2m"
PLAIN: Final = "\033[0m"
CUT: Final = "…"
_WORDS: Final = re.compile(r"\s{0,64}\S+")


class LineCaptions:
    """Prints each utterance as one line, once it is final; for scripts and files."""

    def __init__(self) -> None:
        self._line = ""

    def show(self, text: str, open_text: str, *, is_final: bool) -> None:
        """Print the line if it is complete."""
        self._line += text
        line = " ".join(printable(self._line, keep="\n\t").split())
        if is_final and line:
            print(line, flush=True)
        if is_final:
            self._line = ""

    def end(self) -> None:
        """Print the words that are there."""
        self.show("", "", is_final=True)


class TerminalCaptions:
    """Prints words as they become final, and the open ones behind them.

    Only the current line is drawn again, so open words are cut at its end.
    """

    def __init__(self) -> None:
        self._line = ""
        # The escaped stream would make the control sequences visible.
        self._stream = getattr(sys.stdout, "unescaped", sys.stdout)

    def show(self, text: str, open_text: str, *, is_final: bool) -> None:
        """Print new final words and the open ones."""
        columns = terminal_columns() - 1
        output = CLEAR
        for word in _WORDS.findall(printable(text, keep="\n\t")):
            added = self._spaced(word)
            if self._line and _width(self._line + added) > columns:
                output += f"{self._line}\n"
                added = word.strip()
                self._line = ""
            self._line += added
        if is_final and self._line:
            output += f"{self._line}\n"
            self._line = ""
        output += self._line + self._open_part(open_text, columns)
        self._stream.write(output)
        self._stream.flush()

    def end(self) -> None:
        """End the current line."""
        self.show("", "", is_final=bool(self._line))

    def _spaced(self, word: str) -> str:
        space = " " if word[0].isspace() and self._line else ""
        return space + word.strip()

    def _open_part(self, text: str, columns: int) -> str:
        words = " ".join(printable(text, keep="\n\t").split())
        if not words:
            return ""
        space = " " if self._line and text[0].isspace() else ""
        room = columns - _width(self._line + space)
        if _width(words) > room:
            words = _cut(words, room - 1) + CUT if room > 1 else ""
        return f"{GREY}{space}{words}{PLAIN}" if words else ""


def _width(text: str) -> int:
    """Return the columns of a text; Chinese characters take two."""
    width = 0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            width += 2
        elif not unicodedata.combining(character):
            width += 1
    return width


def _cut(text: str, columns: int) -> str:
    while _width(text) > columns:
        text = text[:-1]
    return text
