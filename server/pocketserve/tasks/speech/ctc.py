"""CTC models of speech: letters at each frame, joined into words.

Source: huggingface/transformers, tokenization_wav2vec2.py, for the vocabulary's files and
special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array

VOCABULARY: Final = "vocab.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
DELIMITER: Final = "|"
MAX_TOKENS: Final = 1 << 17
_SPECIAL: Final = ("<s>", "</s>", "<pad>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]")


class CtcWord(NamedTuple):
    """A word with its first frame, and the frame after its last one.

    Attributes:
        log_probability: sum over its letters.
        letters: number of its letters.
    """

    text: str
    start: int
    end: int
    log_probability: float
    letters: int


@dataclass(frozen=True)
class CtcVocabulary:
    """The letters of a model.

    Attributes:
        letters: by token; empty for special tokens.
        blank: the token between two letters.
        delimiter: the token between two words; None if there is none.
    """

    letters: tuple[str, ...]
    blank: int
    delimiter: int | None

    def words(self, logits: Array) -> list[CtcWord]:
        """Return the most likely words of logits [frames, tokens]."""
        shifted = logits - logits.max(axis=1, keepdims=True)
        sums = np.log(np.exp(shifted).sum(axis=1))
        tokens = logits.argmax(axis=1)
        # The largest logit is 0 after the shift.
        log_probabilities = -sums
        words: list[CtcWord] = []
        current: CtcWord | None = None
        before = self.blank
        for frame, value in enumerate(tokens.tolist()):
            is_new = value != before
            before = value
            if value == self.delimiter:
                _finish(words, current)
                current = None
            letter = self.letters[value]
            if value in (self.blank, self.delimiter) or not letter:
                continue
            if not is_new:
                if current is not None:
                    current = current._replace(end=frame + 1)
                continue
            if current is None:
                current = CtcWord("", frame, frame, 0.0, 0)
            current = CtcWord(
                current.text + letter,
                current.start,
                frame + 1,
                current.log_probability + float(log_probabilities[frame]),
                current.letters + 1,
            )
        _finish(words, current)
        return words


def _finish(words: list[CtcWord], current: CtcWord | None) -> None:
    """Add a complete word."""
    if current is not None:
        words.append(current)


def ctc_vocabulary(facts: ModelFacts, config: Mapping[str, Any]) -> CtcVocabulary:
    """Read the letters beside a model.

    Raises:
        ModelLoadError: the file is missing, or not one of letters.
    """
    numbers = facts.json_beside(VOCABULARY)
    if not numbers:
        raise ModelLoadError(
            f"{VOCABULARY} is missing beside the model; copy it from the model's source"
        )
    claimed = config.get("vocab_size", 0)
    if type(claimed) is not int or claimed < 0:
        raise ModelLoadError(
            "config.json beside the model: vocab_size must be a positive integer"
        )
    size = max(len(numbers), claimed)
    if size > MAX_TOKENS:
        raise ModelLoadError(f"{VOCABULARY} beside the model is too large")
    letters = [""] * size
    for text, number in numbers.items():
        if isinstance(number, dict):
            raise ModelLoadError(
                f"{VOCABULARY} beside the model has a table for each language; copy the"
                " one of your language into a file of its own"
            )
        if type(number) is not int or not 0 <= number < size:
            raise ModelLoadError(
                f"{VOCABULARY} beside the model: the number of {text!r:.20} must be an"
                f" integer from 0 to {size - 1}"
            )
        letters[number] = "" if text in _SPECIAL else text
    blank = config.get("pad_token_id", 0)
    if type(blank) is not int or not 0 <= blank < size:
        raise ModelLoadError(
            f"config.json beside the model: pad_token_id must be 0 to {size - 1}"
        )
    mark = facts.json_beside(TOKENIZER_CONFIG).get("word_delimiter_token", DELIMITER)
    delimiter = numbers.get(mark) if isinstance(mark, str) else None
    return CtcVocabulary(tuple(letters), blank, delimiter)
