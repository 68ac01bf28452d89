"""Probabilities of tokens, which the engine sends in one form for all routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pocketserve.api.openai.fields import bad_field

LOWEST: Final = -9999.0
"""OpenAI's number for a token that is next to impossible."""


def ask_for_chat(fields: dict[str, Any]) -> int:
    """Ask the engine for a chat's probabilities; return how many the client wants.

    The engine leaves all out where none but the written token's are wanted.
    """
    count: int = fields.get("top_logprobs", 0)
    if fields.get("logprobs"):
        fields["top_logprobs"] = max(count, 1)
    elif "top_logprobs" in fields:
        raise bad_field("top_logprobs", "needs logprobs: true")
    return count


def ask_for_completion(fields: dict[str, Any]) -> int:
    """Ask the engine for a completion's probabilities; return how many are wanted."""
    count: int = fields.get("logprobs", 0)
    if "logprobs" in fields:
        fields["logprobs"] = max(count, 1)
    return count


def chat_logprobs(logprobs: Any, count: int) -> dict[str, Any] | None:
    """Return a chat's form, with ``count`` alternatives for each token."""
    if not logprobs:
        return None
    entries = []
    for token in logprobs.get("content") or ():
        alternatives = (token.get("top_logprobs") or ())[:count]
        entry = _entry(token)
        entry["top_logprobs"] = [_entry(other) for other in alternatives]
        entries.append(entry)
    return {"content": entries, "refusal": None}


def _entry(token: Mapping[str, Any]) -> dict[str, Any]:
    text = token["token"]
    data = token.get("bytes")
    if data is None:
        data = list(text.encode())
    return {"token": text, "logprob": _logprob(token), "bytes": data}


def _logprob(token: Mapping[str, Any]) -> float:
    value = token.get("logprob")
    return LOWEST if value is None else max(float(value), LOWEST)


class CompletionLogprobs:
    """Writes a completion's form: a list for each fact of its tokens.

    Args:
        count: alternatives for each token.
        offset: characters before the answer.
    """

    def __init__(self, count: int, offset: int) -> None:
        self._count = count
        self._offset = offset

    def lists(self, logprobs: Any) -> dict[str, list[Any]] | None:
        """Return the lists for the next tokens."""
        if not logprobs:
            return None
        lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token in logprobs.get("content") or ():
            alternatives = {}
            for other in (token.get("top_logprobs") or ())[: self._count]:
                alternatives[other["token"]] = _logprob(other)
            lists["tokens"].append(token["token"])
            lists["token_logprobs"].append(_logprob(token))
            lists["top_logprobs"].append(alternatives)
            lists["text_offset"].append(self._offset)
            self._offset += len(token["token"])
        return lists
