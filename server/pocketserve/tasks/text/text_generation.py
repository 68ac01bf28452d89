"""Chats and completions of a language model.

Its session generates the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.llm.options import GENERATION, GenerationOptions
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
    invalid_input,
)
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import ModelFacts

NAME: Final = "text-generation"
INPUT: Final = "text_input"
FORMATS: Final = ("gguf", "transformers")
MAX_CHARACTERS: Final = 1_000_000


class TextGeneration:
    """Take a text, and answer it as a chat or complete it.

    Attributes:
        generates: requests go to the session's own stream of answers.
    """

    name = NAME
    generates = True

    def __init__(self, facts: ModelFacts) -> None:
        self.options = facts.manifest.section(GenerationOptions)

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return the text as the model's input."""
        text = read_text(body)
        return Prepared([{INPUT: np.array([text.encode()], dtype=object)}])

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"text"}`` for each run."""
        entries: Answer = []
        for outputs in runs:
            for array in outputs.values():
                text = bytes(array.reshape(-1)[0]).decode("utf-8", errors="replace")
                entries.append({"text": text})
        return entries

    def form(self) -> Form:
        """Return the task's input."""
        return Form(("text",))

    def describe(self) -> Mapping[str, str]:
        """Return facts for the model's card."""
        return {
            "input": "a text in UTF-8",
            "answer": "the generated text",
            "example": "text.txt",
        }


def read_text(body: memoryview) -> str:
    """Return a request's text.

    Raises:
        ApiError: INVALID_INPUT.
    """
    try:
        text = bytes(body).decode("utf-8")
    except UnicodeDecodeError:
        raise invalid_input("the text must be UTF-8") from None
    if not text.strip():
        raise invalid_input("the text is empty")
    if len(text) > MAX_CHARACTERS:
        raise invalid_input(f"the text has more than {MAX_CHARACTERS} characters")
    return text


def fits(facts: ModelFacts) -> bool:
    """Return whether the model is a language model."""
    return facts.version.format.name in FORMATS


TASK = TaskDefinition(NAME, fits, TextGeneration, (GENERATION,))
