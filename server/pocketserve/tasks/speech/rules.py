"""The tokens that may come next: suppression, and the rules for timestamps.

Times come in pairs, except before the end of a text, and never go back. A text begins
with a time. Source: openai/whisper, decoding.py, ``ApplyTimestampRules``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pocketserve.tasks.speech.facts import SpeechTokens
from pocketserve.tensors import Array


def apply_rules(
    logits: Array, text_tokens: Sequence[int], tokens: SpeechTokens
) -> None:
    """Set the logits of forbidden tokens to minus infinity.

    Args:
        logits: of all tokens; changed in place.
        text_tokens: the tokens so far, without the prompt.
    """
    logits[tokens.suppressed] = -np.inf
    logits[tokens.no_timestamps] = -np.inf
    if not text_tokens:
        _allow_first_times(logits, tokens)
        return
    _pair_times(logits, text_tokens, tokens)
    _forbid_earlier_times(logits, text_tokens, tokens)
    _prefer_times(logits, tokens)


def _allow_first_times(logits: Array, tokens: SpeechTokens) -> None:
    first = tokens.first_time
    logits[tokens.suppressed_first] = -np.inf
    logits[:first] = -np.inf
    logits[first + tokens.first_times + 1 :] = -np.inf


def _pair_times(
    logits: Array, text_tokens: Sequence[int], tokens: SpeechTokens
) -> None:
    """After one time comes another or the end; after two comes a text."""
    first = tokens.first_time
    if text_tokens[-1] < first:
        return
    is_second = len(text_tokens) < 2 or text_tokens[-2] >= first
    if is_second:
        logits[first:] = -np.inf
    else:
        logits[: tokens.end] = -np.inf


def _forbid_earlier_times(
    logits: Array, text_tokens: Sequence[int], tokens: SpeechTokens
) -> None:
    first = tokens.first_time
    last_time = None
    for token in reversed(text_tokens):
        if token >= first:
            last_time = token
            break
    if last_time is None:
        return
    # A segment may begin where the last one ended, but it may not be empty.
    begins_segment = (
        text_tokens[-1] >= first and len(text_tokens) > 1 and text_tokens[-2] < first
    )
    earliest = last_time if begins_segment else last_time + 1
    logits[first:earliest] = -np.inf


def _prefer_times(logits: Array, tokens: SpeechTokens) -> None:
    """Forbid texts if times together are more likely than each of them."""
    first = tokens.first_time
    times = logits[first:]
    best_time = times.max(initial=-np.inf)
    if not np.isfinite(best_time):
        return
    all_times = best_time + np.log(np.exp(times - best_time).sum())
    if all_times > logits[:first].max():
        logits[:first] = -np.inf


def token_log_probabilities(logits: Array) -> Array:
    """Return the logarithms of the softmax."""
    shifted = logits - logits.max()
    result: Array = shifted - np.log(np.exp(shifted).sum())
    return result
