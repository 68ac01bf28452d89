"""Read requests in the form of llama.cpp's server, in the engine's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TOO_LONG: Final = "exceed_context_size_error"
INVALID: Final = "invalid_request_error"

UNSUPPORTED: Final = ("tools", "response_format")
"""Fields that need llama.cpp's grammars."""

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
"""Values of such fields that ask for nothing."""


KNOWN: Final = frozenset(
    (
        "cache_prompt",
        "chat_template_kwargs",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "messages",
        "min_p",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "repeat_penalty",
        "response_format",
        "return_progress",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    )
)
"""All fields; others might mean something that would not happen."""


class RefusedError(Exception):
    """A request that the engine refuses.

    Attributes:
        kind: the engine's word for the fault.
        details: further members of the error.
    """

    def __init__(
        self,
        message: str,
        kind: str = INVALID,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details or {}


@dataclass(frozen=True)
class Sampling:
    """The settings of a choice of tokens; the defaults are llama.cpp's.

    Attributes:
        biases: added to the scores of tokens, by token.
        logprobs: number of likely tokens to report; None reports nothing.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    biases: Mapping[int, float] | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class AnswerRequest:
    """The options of a request, beside its prompt.

    Attributes:
        reuses: whether the cache of the last prompt may be used.
        ignores_end: whether tokens that end an answer are not chosen.
    """

    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    reuses: bool = False
    ignores_end: bool = False


def read_answer(body: Mapping[str, Any], context: int) -> AnswerRequest:
    """Return the options of a request.

    Raises:
        RefusedError: it needs something that this engine doesn't have.
    """
    for name in body:
        if name not in KNOWN:
            raise RefusedError(
                f"{name!r:.80} is not supported for Hugging Face folders"
            )
    for name in UNSUPPORTED:
        value = body.get(name)
        if value is not None and value not in NEUTRAL[name]:
            raise RefusedError(
                f"{name!r} needs the model's GGUF file; Hugging Face folders don't"
                " support it"
            )
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise RefusedError("'tool_choice' needs the model's GGUF file")
    stops = body.get("stop") or []
    return AnswerRequest(
        sampling=_read_sampling(body),
        max_tokens=int(body.get("max_tokens") or context),
        stops=(stops,) if isinstance(stops, str) else tuple(stops),
        reuses=bool(body.get("cache_prompt")),
        ignores_end=bool(body.get("ignore_eos")),
    )


def _read_sampling(body: Mapping[str, Any]) -> Sampling:
    default = Sampling()
    numbers: dict[str, Any] = {}
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "frequency_penalty",
        "presence_penalty",
        "seed",
    ):
        value = body.get(name)
        numbers[name] = getattr(default, name) if value is None else value
    biases = {int(key): float(bias) for key, bias in _biases(body).items()}
    return Sampling(**numbers, biases=biases, logprobs=_read_logprobs(body))


def _biases(body: Mapping[str, Any]) -> Mapping[str, Any]:
    biases: Mapping[str, Any] = body.get("logit_bias") or {}
    return biases


def _read_logprobs(body: Mapping[str, Any]) -> int | None:
    """Return the number of likely tokens; a chat and a completion name it differently."""
    value = body.get("logprobs")
    if value is None or value is False:
        return None
    if value is True:
        return int(body.get("top_logprobs") or 0)
    return int(value)
