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
