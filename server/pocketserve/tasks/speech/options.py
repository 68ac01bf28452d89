"""The manifest's ``[speech]``, and the options of one request."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable
from pocketserve.tasks.speech.facts import TRANSCRIBE, TRANSLATE

MAX_RETRIES = 5
MAX_PROMPT_CHARACTERS = 4096


class SpeechOptions(NamedTuple):
    """The manifest's ``[speech]``; see ``docs/speech.md``.

    Attributes:
        language: code of the language; None detects it.
        task: ``translate`` translates into English.
        prompt: text that guides spelling and style.
        temperature: 0 always takes the most likely token.
        retries: further tries, at higher temperatures, for a window with a bad text.
        timeout: seconds that one transcription may take.
    """

    language: Annotated[str | None, TomlTable.text] = None
    task: Annotated[str, TomlTable.choice, (TRANSCRIBE, TRANSLATE)] = TRANSCRIBE
    prompt: Annotated[str, TomlTable.text] = ""
    temperature: Annotated[float, TomlTable.number, 0, 1] = 0.0
    retries: Annotated[int, TomlTable.integer, 0, MAX_RETRIES] = 2
    timeout: Annotated[float, TomlTable.number, 1, 86_400] = 3600.0


SPEECH = Section("speech", SpeechOptions)
