"""Ask one version of a language model for figures."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pocketserve.child.memory import memory_of
from pocketserve.engine.device.processes import stat_fields
from pocketserve.runtimes.llm.session import LlmSession
from pocketserve.runtimes.llm.settings import CHAT, COMPLETIONS, TOKENIZE

ANSWER_TIMEOUT_S: Final = 300.0
MAX_EXPONENT: Final = 700.0
"""A larger power of e is no number."""

LEAST_ROUNDS: Final = 3
"""Rounds of turns that are always completed."""

USER_TIME, SYSTEM_TIME = 11, 12  # of stat_fields: ticks
CERTAIN: Final = 1000.0
"""Added to a token's score, so that it is written whatever the model prefers."""

OWNER: Final = "measurement"
"""Whoever asks for the perplexity; the engine may reuse the text's beginning."""


@dataclass(frozen=True)
class TimedAnswer:
    """The figures of one answer.

    Attributes:
        first_ms: from the request to the first piece of text.
        prompt_rate: tokens of the prompt that were read per second.
        rate: tokens that were written per second, after the first one.
        cpu_s: processor time for each of them.
    """

    first_ms: float
    prompt_rate: float
    rate: float
    cpu_s: float


@dataclass(frozen=True)
class Perplexity:
    """The loss of a model on a text.

    Attributes:
        per_token: e to the mean loss; depends on the vocabulary. None if the loss is
            no number, or too large.
        bits_per_byte: the loss by the text's size; comparable among vocabularies.
    """

    per_token: float | None
    bits_per_byte: float | None
    tokens: int


@dataclass(frozen=True)
class _EngineClock:
    """A time, and the processor time of the engine until then, in seconds."""

    time: float
    cpu: float


class LanguageSubject:
    """A loaded version of a language model."""

    def __init__(self, session: LlmSession) -> None:
        self._session = session

    def prompt_tokens(self, text: str, answer_tokens: int) -> list[int]:
        """Return the tokens of a text, cut so that an answer fits the context."""
        room = self._session.context - answer_tokens - 1
        return self._tokens(text, max(1, room))

    def time_answer(self, prompt: str | list[int], tokens: int) -> TimedAnswer:
        """Time an answer of a number of tokens; no cached prompt is used."""
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        began = self._now()
        first: _EngineClock | None = None
        usage: Mapping[str, Any] = {}
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        with self._session.stream(COMPLETIONS, body, deadline) as events:
            for event in events:
                if first is None and _text_of(event):
                    first = self._now()
                usage = event.get("usage") or usage
        end = self._now()
        return _figures(began, first or end, end, usage)

    def greedy_text(self, prompt: str, tokens: int) -> str:
        """Return the likeliest answer to a chat, or to a prompt without a template."""
        return "".join(self.pieces(prompt, tokens))

    def pieces(self, prompt: str, tokens: int) -> Iterator[str]:
        """Yield the pieces of the likeliest answer."""
        body: dict[str, Any] = {"max_tokens": tokens, "temperature": 0}
        if self._session.header.template:
            path = CHAT
            message = {"role": "user", "content": prompt}
            body["messages"] = [message]
        else:
            path = COMPLETIONS
            body["prompt"] = prompt
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        with self._session.stream(path, body, deadline) as events:
            for event in events:
                yield _text_of(event)

    def _now(self) -> _EngineClock:
        return _EngineClock(time.perf_counter(), self._cpu_seconds())

    def perplexity(self, text: str, most: int) -> Perplexity:
        """Return the perplexity of a text.

        Each of its tokens is demanded after the ones before it; the engine reports its
        probability without the demand.

        Args:
            most: tokens at most; further text is left out.
        """
        tokens = self._tokens(text, most)
        loss = 0.0
        read = 0
        for place in range(1, len(tokens)):
            entry = self._demand(tokens[:place], tokens[place])
            loss -= entry["logprob"]
            content = entry["bytes"] or str(entry["token"]).encode()
            read += len(content)
        return perplexity_of(loss, len(tokens) - 1, read)

    def _tokens(self, text: str, most: int) -> list[int]:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        request = {"content": text, "add_special": True}
        answer = self._session.ask(TOKENIZE, request, deadline)
        tokens: list[int] = answer["tokens"]
        limit = min(most, self._session.context - 1)
        return tokens[:limit]

    def memory(self) -> Mapping[str, int]:
        """Return the bytes of the engine's process, by kind."""
        pid = self._session.pid
        if pid is None:
            return {}
        return memory_of(pid) or {}

    def _demand(self, tokens: list[int], token: int) -> Mapping[str, Any]:
        """Return the probability of a token after others."""
        body = {
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 1,
            "logit_bias": {str(token): CERTAIN},
        }
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        stream = self._session.stream(COMPLETIONS, body, deadline, owner=OWNER)
        with stream as opened:
            events = list(opened)
        for event in events:
            entry = _probability_of(event)
            if entry is not None:
                return entry
        raise RuntimeError("the engine reports no probabilities")

    def _cpu_seconds(self) -> float:
        """Return the processor time of the engine's process."""
        fields = stat_fields(self._session.pid or 0)
        user_ticks = int(fields[USER_TIME])
        system_ticks = int(fields[SYSTEM_TIME])
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        return (user_ticks + system_ticks) / ticks_per_second


def perplexity_of(loss: float, tokens: int, text_bytes: int) -> Perplexity:
    """Return the figures of a summed loss, which is in nats."""
    count = max(1, tokens)
    if not math.isfinite(loss):
        return Perplexity(None, None, count)
    exponent = loss / count
    per_token = None
    if exponent <= MAX_EXPONENT:
        per_token = math.exp(exponent)
    bits = loss / math.log(2)
    bits_per_byte = bits / max(1, text_bytes)
    return Perplexity(per_token, bits_per_byte, count)


def _figures(
    began: _EngineClock,
    first: _EngineClock,
    end: _EngineClock,
    usage: Mapping[str, Any],
) -> TimedAnswer:
    """Return the figures of an answer, from its moments."""
    all_written = usage.get("completion_tokens", 1)
    written = max(1, all_written - 1)
    reading_s = max(1e-9, first.time - began.time)
    writing_s = max(1e-9, end.time - first.time)
    prompt_tokens = usage.get("prompt_tokens", 0)
    cpu_s = end.cpu - first.cpu
    return TimedAnswer(
        first_ms=reading_s * 1e3,
        prompt_rate=prompt_tokens / reading_s,
        rate=written / writing_s,
        cpu_s=cpu_s / written,
    )


def _text_of(event: Mapping[str, Any]) -> str:
    """Return the text of a completion's or a chat's event."""
    pieces = []
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content")
        if text:
            pieces.append(text)
    return "".join(pieces)


def _probability_of(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first probability in an event; None if it has none."""
    for choice in event.get("choices", ()):
        logprobs = choice.get("logprobs") or {}
        for entry in logprobs.get("content") or ():
            probability: Mapping[str, Any] = entry
            return probability
    return None
