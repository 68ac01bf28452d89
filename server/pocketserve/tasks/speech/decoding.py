"""Decode one window of sound: token by token, again at a higher temperature if it fails."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from pocketserve.runtimes.speech.interface import SpeechModel, TokenStep
from pocketserve.tasks.speech.facts import SpeechTokens
from pocketserve.tasks.speech.rules import apply_rules, token_log_probabilities
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

MAX_TOKENS: Final = 224
"""Tokens of one window's text; 30 s of fast speech have fewer."""

MAX_COMPRESSION: Final = 2.4
"""A text that zlib makes smaller than this repeats itself."""

MIN_LOG_PROBABILITY: Final = -1.0
NO_SPEECH: Final = 0.6
TEMPERATURE_STEP: Final = 0.4
SEED: Final = 0


class TextOf(Protocol):
    """Returns the text of tokens."""

    def __call__(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Prompt:
    """The tokens before a window's text.

    Attributes:
        context: earlier text, which guides the spelling.
        language, task: tokens of multilingual models; None for others.
        temperature: of the first try.
        retries: tries at higher temperatures.
    """

    context: tuple[int, ...] = ()
    language: int | None = None
    task: int | None = None
    temperature: float = 0.0
    retries: int = 2


@dataclass(frozen=True)
class WindowText:
    """The decoded tokens of one window.

    Attributes:
        log_probability: mean of the tokens'.
        no_speech: probability that there is no speech.
        compression: of the text by zlib.
    """

    tokens: Sequence[int]
    log_probability: float
    no_speech: float
    compression: float
    temperature: float

    @property
    def is_silence(self) -> bool:
        """Return whether the window most likely has no speech."""
        is_unlikely = self.log_probability < MIN_LOG_PROBABILITY
        return self.no_speech > NO_SPEECH and is_unlikely

    @property
    def is_good(self) -> bool:
        """Return whether no other temperature need be tried."""
        if self.is_silence:
            return True
        is_likely = self.log_probability >= MIN_LOG_PROBABILITY
        return is_likely and self.compression <= MAX_COMPRESSION


class WindowDecoder:
    """Decodes windows with one model and one prompt.

    Args:
        check: called before each token; raises to give up.
    """

    def __init__(
        self,
        model: SpeechModel,
        tokens: SpeechTokens,
        text_of: TextOf,
        check: Callable[[], None],
    ) -> None:
        self._model = model
        self._tokens = tokens
        self._text_of = text_of
        self._check = check

    def encode(self, features: Array) -> Any:
        """Return the cache before the first token of a window."""
        self._check()
        return self._model.encode(features)

    def detect_language(self, encoded: Any) -> str:
        """Return the code of a window's most likely language."""
        logits = _checked(self._model.step([self._tokens.start], encoded).logits)
        best = ""
        best_logit = -np.inf
        for code, token in self._tokens.languages.items():
            if logits[token] > best_logit:
                best = code
                best_logit = logits[token]
        return best

    def decode(self, encoded: Any, prompt: Prompt) -> WindowText:
        """Decode a window; try again at higher temperatures if the text is bad."""
        generator = np.random.default_rng(SEED)
        temperature = prompt.temperature
        result = self._try(encoded, prompt, temperature, generator)
        for _ in range(prompt.retries):
            if result.is_good or temperature >= 1:
                break
            temperature = min(1.0, temperature + TEMPERATURE_STEP)
            result = self._try(encoded, prompt, temperature, generator)
        return result

    def _try(
        self,
        encoded: Any,
        prompt: Prompt,
        temperature: float,
        generator: np.random.Generator,
    ) -> WindowText:
        tokens = self._tokens
        step, no_speech = self._read_prompt(encoded, prompt)
        used = len(prompt.context) + 4
        limit = min(MAX_TOKENS, tokens.positions - used)
        text_tokens: list[int] = []
        total = 0.0
        while True:
            logits = _checked(step.logits)
            apply_rules(logits, text_tokens, tokens)
            probabilities = token_log_probabilities(logits)
            token = _choose(probabilities, temperature, generator)
            total += float(probabilities[token])
            if token == tokens.end:
                break
            text_tokens.append(token)
            if len(text_tokens) >= limit:
                break
            self._check()
            step = self._model.step([token], step.cache)
        return WindowText(
            tokens=text_tokens,
            log_probability=total / (len(text_tokens) + 1),
            no_speech=no_speech,
            compression=compression_of(self._text_of(text_tokens)),
            temperature=temperature,
        )

    def _read_prompt(self, encoded: Any, prompt: Prompt) -> tuple[TokenStep, float]:
        """Read the prompt; return the last step and the probability of no speech."""
        tokens = self._tokens
        head = [tokens.start]
        if prompt.context:
            head = [tokens.previous, *prompt.context, tokens.start]
        self._check()
        step = self._model.step(head, encoded)
        # This probability is valid only after the start token.
        probabilities = token_log_probabilities(_checked(step.logits))
        no_speech = float(np.exp(probabilities[tokens.no_speech]))
        for token in (prompt.language, prompt.task):
            if token is not None:
                step = self._model.step([token], step.cache)
        return step, no_speech


def _checked(logits: Array) -> Array:
    """Return logits in double precision.

    Raises:
        ApiError: INFERENCE_FAILED if they are no numbers, as of a damaged model.
    """
    if np.isnan(logits).any() or not np.isfinite(logits).any():
        raise ApiError(
            ErrorCode.INFERENCE_FAILED,
            "the model's scores are not numbers; its file may be damaged, or half"
            " precision too small for it",
        )
    return logits.astype(np.float64)


def _choose(
    log_probabilities: Array, temperature: float, generator: np.random.Generator
) -> int:
    if temperature <= 0:
        return int(log_probabilities.argmax())
    # The best is 0, which no temperature makes infinite.
    distances = log_probabilities - log_probabilities.max()
    with np.errstate(over="ignore"):
        weights = np.exp(distances / temperature)
    return int(generator.choice(len(weights), p=weights / weights.sum()))


def compression_of(text: str) -> float:
    """Return how many times zlib makes a text smaller."""
    content = text.encode()
    return len(content) / len(zlib.compress(content))
