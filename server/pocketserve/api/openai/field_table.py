"""The fields of each of OpenAI's routes; ``docs/text-generation.md`` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pocketserve.api.openai.fields import (
    MAX_SEED,
    FieldCheck,
    NumberField,
    bad_field,
    check_bias,
    check_effort,
    check_encoding,
    check_flag,
    check_format,
    check_inputs,
    check_messages,
    check_modalities,
    check_no_echo,
    check_prompt,
    check_single,
    check_small_object,
    check_stop,
    check_stream_options,
    check_text,
)
from pocketserve.api.openai.tools import check_choice, check_tools

MAX_TOP_LOGPROBS: Final = 20
MAX_COMPLETION_LOGPROBS: Final = 5
MAX_TOKENS: Final = 1 << 24


@dataclass(frozen=True)
class RefusedField:
    """A field of OpenAI's that nothing here can apply.

    Attributes:
        allowed: values that ask for nothing.
    """

    reason: str
    allowed: tuple[Any, ...] = ()

    def __call__(self, field: str, value: Any) -> Any:
        if value not in self.allowed:
            raise bad_field(field, f"is not supported: {self.reason}")


def ignore(field: str, value: Any) -> None:
    """Accept any value of a field that doesn't change answers here."""


TOKEN_LIMIT: Final = NumberField(1, MAX_TOKENS, whole=True)
_PENALTY = NumberField(-2, 2)
_SAMPLING: Final[Mapping[str, FieldCheck]] = {
    "model": check_text,
    "stream": check_flag,
    "stream_options": check_stream_options,
    "max_tokens": TOKEN_LIMIT,
    "temperature": NumberField(0, 2),
    "top_p": NumberField(0, 1),
    "top_k": NumberField(0, 1000, whole=True),
    "min_p": NumberField(0, 1),
    "seed": NumberField(0, MAX_SEED, whole=True),
    "stop": check_stop,
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "repeat_penalty": NumberField(0.1, 2),
    "logit_bias": check_bias,
    "n": check_single,
    "user": ignore,
}
IGNORED: Final[Mapping[str, FieldCheck]] = dict.fromkeys(
    (
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "verbosity",
    ),
    ignore,
)
"""Fields for OpenAI's own service, which clients may send."""

_TOOLS_INSTEAD = RefusedField("it is OpenAI's older form; send tools and tool_choice")
TEXTS_ONLY: Final = RefusedField("language models write only text")
CHAT_FIELDS: Final[Mapping[str, FieldCheck]] = {
    **_SAMPLING,
    **IGNORED,
    "messages": check_messages,
    "max_completion_tokens": TOKEN_LIMIT,
    "logprobs": check_flag,
    "top_logprobs": NumberField(0, MAX_TOP_LOGPROBS, whole=True),
    "response_format": check_format,
    "tools": check_tools,
    "tool_choice": check_choice,
    "parallel_tool_calls": check_flag,
    "chat_template_kwargs": check_small_object,
    "reasoning_effort": check_effort,
    "modalities": check_modalities,
    "audio": TEXTS_ONLY,
    "functions": _TOOLS_INSTEAD,
    "function_call": _TOOLS_INSTEAD,
    "moderation": RefusedField("answers are not moderated"),
    "web_search_options": RefusedField("models can't reach the network"),
}
COMPLETION_FIELDS: Final[Mapping[str, FieldCheck]] = {
    **_SAMPLING,
    "prompt": check_prompt,
    "logprobs": NumberField(0, MAX_COMPLETION_LOGPROBS, whole=True),
    "best_of": check_single,
    "echo": check_no_echo,
    "suffix": RefusedField("the prompt is completed at its end only"),
}
EMBEDDING_FIELDS: Final[Mapping[str, FieldCheck]] = {
    "model": check_text,
    "input": check_inputs,
    "encoding_format": check_encoding,
    "dimensions": RefusedField("vectors have the model's own length"),
    "user": ignore,
}
NOT_FOR_ENGINE: Final = frozenset(
    (
        *IGNORED,
        "model",
        "n",
        "best_of",
        "echo",
        "user",
        "modalities",
        "stream_options",
        "max_completion_tokens",
    )
)
"""Fields that the engine doesn't get."""
