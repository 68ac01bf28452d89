"""Turn tokens into pieces of text: whole characters, up to the first stop text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

UNFINISHED: Final = "\ufffd"
MAX_HELD: Final = 8
"""Tokens after which an unfinished character is invalid, and is passed on as it is."""


class TextPieces:
    """The text of one answer.

    Args:
        decode: returns the text of tokens.
        stops: texts that end the answer, and are left out.

    Attributes:
        stopped: whether a stop text has come.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]
    ) -> None:
        self.stopped = False
        self._decode = decode
        self._stops = stops
        self._tokens: list[int] = []
        # The text of a token may depend on the one before it.
        self._start = 0
        self._finished = 0
        self._pending = ""

    def add(self, token: int) -> str:
        """Add a token, and return the text that is certain now."""
        self._tokens.append(token)
        return self._release(self._new_text())

    def finish(self) -> str:
        """Return the text that was held back."""
        if self.stopped:
            return ""
        rest = self._new_text(is_last=True)
        text = self._release(rest)
        pending, self._pending = self._pending, ""
        return text if self.stopped else text + pending

    def _new_text(self, is_last: bool = False) -> str:
        before = self._decode(self._tokens[self._start : self._finished])
        text = self._decode(self._tokens[self._start :])
        unfinished = len(self._tokens) - self._finished
        waits = unfinished < MAX_HELD and not is_last
        if text.endswith(UNFINISHED) and waits:
            return ""
        self._start = self._finished
        self._finished = len(self._tokens)
        return text[len(before) :]

    def _release(self, new: str) -> str:
        """Return the text without a possible start of a stop text."""
        text = self._pending + new
        ends = [text.find(stop) for stop in self._stops if stop in text]
        if ends:
            self.stopped = True
            self._pending = ""
            return text[: min(ends)]
        overlaps = [_overlap(text, stop) for stop in self._stops]
        end = len(text) - max(overlaps, default=0)
        self._pending = text[end:]
        return text[:end]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that begins a stop text."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """Return a token's bytes, also of one that is a part of a character."""
    text = str(tokenizer.decode([token]))
    if UNFINISHED not in text:
        return text.encode("utf-8", "replace")
    name = str(tokenizer.convert_ids_to_tokens(token))
    if len(name) == 6 and name.startswith("<0x"):
        number = int(name[3:5], 16)
        return bytes([number])
    letters = _letters()
    if all(letter in letters for letter in name):
        numbers = [letters[letter] for letter in name]
        return bytes(numbers)
    return text.encode("utf-8", "replace")


def _letters() -> dict[str, int]:
    """Return the bytes that GPT-2's letters stand for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    number = 256  # of the letter for the next byte that can't be printed
    for byte in range(256):
        if byte not in printable:
            letters[chr(number)] = byte
            number += 1
    return letters
