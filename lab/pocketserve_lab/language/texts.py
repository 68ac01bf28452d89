"""The texts that language models are measured with, unless the user names others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pocketserve.terminal.errors import CommandError

PROMPTS: Final = (
    "Write one sentence about a river.",
    "Name three fruits.",
    "What is 3 plus 4?",
    "Explain in two sentences why the sky is blue.",
    "Translate into German: The house is small.",
    "Spell the word moon.",
    "Give a short definition of a triangle.",
    "Continue: Once there was a fox who",
)
TEXT: Final = (
    "The lighthouse stood on a low rock at the end of the harbour. Every evening the"
    " keeper climbed its ninety steps, cleaned the glass and lit the lamp. Ships that"
    " came from the north saw the light first, and then the roofs of the town. In"
    " winter, when the wind was strong, nobody could reach the rock for days, so the"
    " keeper had bread, dried fish and books for a month. When the lamp was replaced by"
    " an electric one, the keeper moved to the town, but on clear nights one could still"
    " see somebody on the stairs."
)
TOKEN_TEXTS: Final = (
    "In 1987 it cost 3.50, then 12345 of them.",
    "Caf\u00e9, na\u00efve, Stra\u00dfe, e\u0301.",
    "\u6771\u4eac\u306e\u5929\u6c17\u306f\u3001\u6674\u308c\u3002",
    "I'm Happy \U0001f642\U0001f44d\U0001f3fd!",
    "if x:\n\n    return  y",
)
"""Texts whose tokens a conversion must keep: digits, accents, Japanese, emoji, spaces."""

MAX_TEXT_BYTES: Final = 64 * 1024
MAX_PROMPTS: Final = 100


def read_sample_text(path: Path | None) -> str:
    """Return the text for the perplexity.

    Raises:
        CommandError: the file can't be read, or has no text.
    """
    if path is None:
        return TEXT
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES)
    except OSError as error:
        raise CommandError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    text = content.decode("utf-8", errors="ignore").strip()
    if len(text) < 2:
        raise CommandError(f"{str(path)!r} has no text in UTF-8")
    return text
