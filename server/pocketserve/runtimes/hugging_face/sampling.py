"""Choose tokens as llama.cpp does: biases, penalties, top-k, top-p, min-p, temperature.

The order and the meaning of the numbers are those of llama.cpp's ``common/sampling.cpp``
and ``src/llama-sampling.cpp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from pocketserve.runtimes.hugging_face.fields import Sampling

PENALTY_TOKENS: Final = 64
"""The last tokens of prompt and answer that penalties look at."""

MIN_TEMPERATURE: Final = 1e-6
"""Lower ones choose alike, but quotients by them overflow."""


class Sampler:
    """Chooses the tokens of one answer."""

    def __init__(self, torch: Any, sampling: Sampling) -> None:
        self._torch = torch
        self._sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def choose(
        self, scores: Any, previous: Sequence[int], barred: Sequence[int] = ()
    ) -> int:
        """Return the next token.

        Args:
            scores: of all tokens, 32-bit, not changed.
            previous: the tokens so far.
            barred: tokens that must not be chosen.

        Raises:
            ValueError: the scores are not finite.
        """
        # The largest is NaN if any is.
        if not self._torch.isfinite(scores.max()):
            raise ValueError(
                "the model's scores are not numbers; its files may be damaged, or half"
                " precision too small for it"
            )
        scores = scores.clone()
        for token, bias in (self._sampling.biases or {}).items():
            if token < len(scores):
                scores[token] += bias
        if barred:
            scores[list(barred)] = float("-inf")
        self._penalise(scores, previous)
        if self._sampling.temperature <= 0:
            return int(scores.argmax())
        return self._draw(scores)

    def _penalise(self, scores: Any, previous: Sequence[int]) -> None:
        """Lower the scores of tokens that occurred before."""
        sampling = self._sampling
        repeat = sampling.repeat_penalty
        frequency = sampling.frequency_penalty
        presence = sampling.presence_penalty
        if repeat == 1 and not frequency and not presence:
            return
        counts = Counter(previous[-PENALTY_TOKENS:])
        for token, count in counts.items():
            score = float(scores[token])
            if score <= 0:
                score *= repeat
            else:
                score /= repeat
            scores[token] = score - count * frequency - presence

    def _draw(self, scores: Any) -> int:
        """Draw one of the likely tokens."""
        torch = self._torch
        sampling = self._sampling
        count = len(scores)
        if 0 < sampling.top_k < count:
            count = sampling.top_k
        best, tokens = torch.topk(scores, count)
        if sampling.top_p < 1:
            total = torch.softmax(best, 0).cumsum(0)
            # All tokens up to the one with which the sum reaches top_p.
            count = 1 + int((total < sampling.top_p).sum())
            best = best[:count]
        if sampling.min_p > 0:
            chances = torch.softmax(best, 0)
            least = sampling.min_p * chances[0]
            count = max(1, int((chances >= least).sum()))
            best = best[:count]
        # The best is 0 then, at any temperature.
        distances = (best - best[0]).double()
        temperature = max(sampling.temperature, MIN_TEMPERATURE)
        chances = torch.softmax(distances / temperature, 0)
        number = torch.multinomial(chances, 1, generator=self._random)
        return int(tokens[number])
