"""The tokens that may come next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pocketserve.tasks.speech.facts import SpeechTokens, speech_tokens
from pocketserve.tasks.speech.rules import apply_rules, token_log_probabilities
from whisper_files import END, FIRST_TIME, START, VOCABULARY, number_of

TEXT = ord("a")
SECOND = FIRST_TIME + 50
FACTS = speech_tokens(
    {
        "vocab_size": VOCABULARY,
        "max_target_positions": 24,
        "decoder_start_token_id": START,
        "eos_token_id": END,
    },
    {
        "no_timestamps_token_id": number_of("<|notimestamps|>"),
        "suppress_tokens": [TEXT + 1],
        "begin_suppress_tokens": [TEXT + 2],
        "max_initial_timestamp_index": 50,
    },
)


def allowed(
    text_tokens: Sequence[int], facts: SpeechTokens = FACTS, likely: int = TEXT
) -> set[int]:
    """Return the allowed tokens after others."""
    logits = np.zeros(VOCABULARY)
    logits[likely] = 20.0
    apply_rules(logits, text_tokens, facts)
    return set(np.flatnonzero(np.isfinite(logits)).tolist())


def test_a_text_begins_with_an_early_time() -> None:
    assert allowed([]) == set(range(FIRST_TIME, FIRST_TIME + 51))


def test_suppressed_tokens_never_come() -> None:
    tokens = allowed([FIRST_TIME])
    assert TEXT in tokens
    assert TEXT + 1 not in tokens
    assert TEXT + 2 in tokens  # it may not begin a text, but may come later
    assert number_of("<|notimestamps|>") not in tokens


def test_a_text_follows_the_first_time() -> None:
    tokens = allowed([FIRST_TIME])
    assert not any(token >= FIRST_TIME for token in tokens)


def test_a_time_or_the_end_follows_the_time_after_a_text() -> None:
    tokens = allowed([FIRST_TIME, TEXT, SECOND], likely=END)
    assert TEXT not in tokens
    assert END in tokens
    assert min(tokens - set(range(END, FIRST_TIME))) == SECOND


def test_a_text_follows_two_times() -> None:
    tokens = allowed([FIRST_TIME, TEXT, SECOND, SECOND])
    assert TEXT in tokens
    assert not any(token >= FIRST_TIME for token in tokens)


def test_times_never_go_back_and_segments_are_not_empty() -> None:
    tokens = allowed([FIRST_TIME, TEXT, SECOND, SECOND, TEXT])
    times = [token for token in tokens if token >= FIRST_TIME]
    assert min(times) == SECOND + 1


def test_times_come_if_they_are_together_more_likely_than_any_text() -> None:
    logits = np.zeros(VOCABULARY)
    apply_rules(logits, [FIRST_TIME, TEXT], FACTS)
    assert np.isinf(logits[:FIRST_TIME]).all()
    assert np.isfinite(logits[FIRST_TIME + 1 :]).all()


def test_log_probabilities_sum_to_one() -> None:
    values = token_log_probabilities(np.array([1000.0, 0.0, 999.0]))
    assert np.isclose(np.exp(values).sum(), 1)
