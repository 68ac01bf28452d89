"""Sentences, their sound and wrong words, for tests of the public speech model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.registry import runtime_for
from pocketserve.tensors import Array

RATE = 16_000
TONE_PAUSE_S = 0.6
SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank every morning"
    " before the sun comes up.",
    "Please remember to buy bread, butter, fresh apples and two bottles of milk on your"
    " way home tonight.",
    "The museum opens at nine in the morning and closes at five in the afternoon, except"
    " on Mondays.",
    "Scientists have discovered a new species of frog in the mountains of Ecuador that"
    " sings like a bird.",
    "My grandmother planted roses along the fence, and each summer the whole street"
    " smells wonderful.",
    "If the weather stays dry, we will paint the garden shed on Saturday and clean the"
    " windows on Sunday.",
    "The train to London was delayed because a tree had fallen across the tracks during"
    " the storm.",
    "She opened the letter slowly, read the first line twice, and then put it back on the"
    " table.",
    "Turn left at the church, walk past the bakery, and you will find the library on the"
    " right side.",
    "Learning a new language takes patience, practice, and the courage to make many"
    " mistakes in public.",
)
MAX_WRONG = 2
"""Words of the sentences that may be wrong, of 177."""

NUMBERS = {"5": "five", "9": "nine", "2": "two"}


class Opened:
    """The model in this process."""

    def __init__(self, folder: Path) -> None:
        entry = Models(folder.parent)[folder.name]
        version = entry.versions[entry.default_version]
        assert version.problem is None
        source = ModelSource(path=version.path, threads=2)
        self.session: Any = runtime_for(version.format).open(source)
        self.session.try_out()
        self.task: Any = set_up(entry, version, self.session, 1, source).task

    def transcribe(self, content: bytes) -> Any:
        prepared = self.task.prepare(memoryview(content))
        options = self.task.read_options({})
        return self.task.transcribe(
            self.session, prepared.context, options, lambda: None
        )


def synthetic_talk() -> Array:
    """Ten sentences by a synthetic voice, with pauses between them."""
    from hibari import Hibari

    voice = Hibari()
    parts = []
    for sentence in SENTENCES:
        samples = voice(sentence, seed=0)  # at 24 kHz
        places = np.arange(round(len(samples) * 2 / 3)) * 1.5
        parts.append(np.interp(places, np.arange(len(samples)), samples))
        parts.append(np.zeros(round(TONE_PAUSE_S * RATE)))
    return np.concatenate(parts)


def words_of(text: str) -> list[str]:
    words = re.sub(r"[^\w\s']", "", text.lower()).split()
    return [NUMBERS.get(word, word) for word in words]


def wrong_words(expected: str, text: str) -> int:
    """Return the number of words to insert, remove or replace."""
    words = words_of(text)
    row = list(range(len(words) + 1))
    for number, word in enumerate(words_of(expected), 1):
        above = row
        row = [number]
        for place, other in enumerate(words):
            replaced = above[place] + (word != other)
            row.append(min(replaced, above[place + 1] + 1, row[-1] + 1))
    return row[-1]
