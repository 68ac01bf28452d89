"""Facts about a Whisper model from ``config.json`` and ``generation_config.json``.

Source: huggingface/transformers, generation_whisper.py, and openai/whisper,
tokenizer.py, for the order of the special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array

CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"
MAX_VOCABULARY: Final = 1 << 20
MAX_POSITIONS: Final = 1 << 14
MAX_LANGUAGES: Final = 256
MAX_SUPPRESSED: Final = 4096
DEFAULT_FIRST_TIMES: Final = 50
TRANSCRIBE: Final = "transcribe"
TRANSLATE: Final = "translate"


@dataclass(frozen=True, eq=False)
class SpeechTokens:
    """The special tokens of a model, and its limits.

    Attributes:
        vocabulary: number of tokens.
        positions: tokens of prompt and text together.
        first_time: the token of 0.00 s; the next ones are 20 ms apart.
        suppressed: tokens that never appear in a text.
        suppressed_first: tokens that no text begins with.
        first_times: tokens after ``first_time`` with which a text may begin.
        languages: tokens by code, such as ``de``; empty for English-only models.
        tasks: tokens by name; empty for English-only models.
    """

    vocabulary: int
    positions: int
    start: int
    end: int
    previous: int
    no_speech: int
    no_timestamps: int
    suppressed: Array
    suppressed_first: Array
    first_times: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]

    @property
    def first_time(self) -> int:
        """Return the token of 0.00 s."""
        return self.no_timestamps + 1

    @property
    def is_multilingual(self) -> bool:
        """Return whether the model knows several languages."""
        return bool(self.languages)


def speech_tokens(
    config: Mapping[str, Any], generation: Mapping[str, Any]
) -> SpeechTokens:
    """Read the special tokens from a model's files.

    Raises:
        ModelLoadError: a key is missing or invalid.
    """
    vocabulary = _number(CONFIG, config, "vocab_size", 2, MAX_VOCABULARY)

    def token(file: str, keys: Mapping[str, Any], name: str) -> int:
        return _number(file, keys, name, 0, vocabulary - 1)

    no_timestamps = token(GENERATION_CONFIG, generation, "no_timestamps_token_id")
    # These tokens are in this order in each of the published vocabularies.
    no_speech = no_timestamps - 1
    previous = no_timestamps - 2
    if "prev_sot_token_id" in generation:
        previous = token(GENERATION_CONFIG, generation, "prev_sot_token_id")
    languages = _named_tokens(generation, "lang_to_id", vocabulary)
    tasks = _named_tokens(generation, "task_to_id", vocabulary)
    if languages and TRANSCRIBE not in tasks:
        raise _fault(GENERATION_CONFIG, "task_to_id", "has no transcribe")
    first_times = generation.get("max_initial_timestamp_index", DEFAULT_FIRST_TIMES)
    if type(first_times) is not int or first_times < 0:
        raise _fault(
            GENERATION_CONFIG, "max_initial_timestamp_index", "is not a whole number"
        )
    return SpeechTokens(
        vocabulary=vocabulary,
        positions=_number(CONFIG, config, "max_target_positions", 8, MAX_POSITIONS),
        start=token(CONFIG, config, "decoder_start_token_id"),
        end=token(CONFIG, config, "eos_token_id"),
        previous=previous,
        no_speech=no_speech,
        no_timestamps=no_timestamps,
        suppressed=_suppressed(generation, "suppress_tokens", vocabulary),
        suppressed_first=_suppressed(generation, "begin_suppress_tokens", vocabulary),
        first_times=first_times,
        languages=languages,
        tasks=tasks,
    )


def _number(file: str, keys: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = keys.get(name)
    if value is None:
        raise _fault(file, name, "is missing")
    if type(value) is not int or not low <= value <= high:
        raise _fault(file, name, f"is not a whole number from {low} to {high}")
    number: int = value
    return number


def _suppressed(keys: Mapping[str, Any], name: str, vocabulary: int) -> Array:
    values = keys.get(name) or []
    if not isinstance(values, list) or len(values) > MAX_SUPPRESSED:
        raise _fault(GENERATION_CONFIG, name, "is not a list of tokens")
    for value in values:
        if type(value) is not int or not 0 <= value < vocabulary:
            raise _fault(
                GENERATION_CONFIG, name, f"has a token outside 0 to {vocabulary - 1}"
            )
    return np.array(values, np.int64)


def _named_tokens(
    keys: Mapping[str, Any], name: str, vocabulary: int
) -> dict[str, int]:
    """Return tokens by name, without the ``<|`` and ``|>`` around languages."""
    values = keys.get(name) or {}
    if not isinstance(values, dict) or len(values) > MAX_LANGUAGES:
        raise _fault(GENERATION_CONFIG, name, "is not an object with tokens")
    tokens = {}
    for text, value in values.items():
        if type(value) is not int or not 0 <= value < vocabulary:
            raise _fault(
                GENERATION_CONFIG, name, f"has a token outside 0 to {vocabulary - 1}"
            )
        tokens[text.removeprefix("<|").removesuffix("|>")] = value
    return tokens


def _fault(file: str, key: str, fault: str) -> ModelLoadError:
    return ModelLoadError(
        f"{file} beside the model: {key} {fault}; copy the file from the model's source"
    )
