"""Convert a language model to GGUF, and compare both on the same texts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.llm.client import EngineError
from pocketserve.runtimes.llm.session import LlmSession
from pocketserve.runtimes.registry import format_named, missing_framework
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.environments import Note, Tell
from pocketserve_lab.convert.run import (
    ConversionSettings,
    ModelConverter,
    Reference,
    Result,
)
from pocketserve_lab.convert.sample_run import served_model
from pocketserve_lab.convert.staging import stage
from pocketserve_lab.convert.verify import Agreement
from pocketserve_lab.language.comparison import agreement_of
from pocketserve_lab.language.gguf_tool import CONVERTER
from pocketserve_lab.language.subject import LanguageSubject
from pocketserve_lab.language.texts import PROMPTS, TEXT, TOKEN_TEXTS

KIND: Final = CONVERTER.kind
TASK: Final = "text-generation"
GREEDY_TOKENS: Final = 24
TEXT_TOKENS: Final = 64
LOSS_BOUNDS: Final[Mapping[str, float]] = {"none": 0.02, "fp16": 0.02, "q8_0": 0.05}
"""Accepted differences of the loss on a text, as a share of the original's."""


class _Reading(NamedTuple):
    """The answers of one version.

    Attributes:
        texts: the likeliest answers to some prompts.
        loss: on a text, in bits per byte.
        tokens: of some texts.
    """

    texts: list[str]
    loss: float
    tokens: list[list[int]]


class LanguageConverter(ModelConverter):
    """Converts Hugging Face folders of one language model.

    The loss on a text decides about a result. Greedy answers part at the first token
    that two engines round differently, so that they are only reported.
    """

    def __init__(
        self, entry: Any, settings: ConversionSettings, tell: Tell, note: Note
    ) -> None:
        super().__init__(entry, settings, tell, note, [CONVERTER])
        self._readings: dict[str, _Reading] = {}

    def _reference(self, source: VersionEntry, python: Path) -> Reference:
        """Return the facts of the original, which is asked once."""
        if source.name not in self._readings:
            missing = missing_framework(source.format)
            if missing is not None:
                raise ConversionError(f"the original can't be run: {missing}")
            self._tell(f"asking version {source.name}", 0.0)
            self._readings[source.name] = _read(self._place_of(source))
        facts = {
            "inputs": [],
            "outputs": [],
            "variants": [],
            "task": TASK,
            "count": len(PROMPTS),
            "random": False,
            "samples_sha256": "",
        }
        return Reference(facts, Path("none"), Path("none"))

    def _verify(
        self, result: Result, python: Path
    ) -> tuple[Mapping[str, Any], Agreement, list[str]]:
        """Ask the result, and compare its loss and its answers."""
        format = format_named(KIND)
        assert format is not None
        folder, state_dir = self._folder(), self._settings.state_dir
        staged = stage(
            self._entry, result.source, result.output, format, folder, state_dir
        )
        self._tell(f"asking the new {KIND} version", 0.0)
        document = {
            "models_dir": str(staged.models_dir),
            "state_dir": str(staged.state_dir),
            "model": self._entry.name,
            "version": staged.version,
        }
        try:
            reading = _read(document)
        except ConversionError as error:
            text = f"the result cannot be served: {error.message}"
            raise ConversionError(text, detail=error.detail) from None
        original = self._readings[result.source.name]
        agreement = self._compare(original, reading)
        return result.reference.facts, agreement, [_answers(original, reading)]

    def _compare(self, original: _Reading, reading: _Reading) -> Agreement:
        """Return the difference of the losses.

        Raises:
            ConversionError: it is too large, or the tokens differ.
        """
        difference = abs(reading.loss - original.loss)
        share = difference / max(original.loss, sys.float_info.epsilon)
        limit = LOSS_BOUNDS[self._settings.quantize]
        if not share <= limit:
            raise ConversionError(
                f"the result differs from the original: its loss on a text is"
                f" {reading.loss:.3f} bits per byte instead of {original.loss:.3f}; at"
                f" most {limit:.0%} is accepted"
            )
        _check_tokens(original, reading)
        return Agreement(share, difference, None, len(PROMPTS))

    def _variant_bound(self, agreement: Agreement | None) -> float:
        """Accept all: a text has no other shapes."""
        return sys.float_info.max


def _check_tokens(original: _Reading, reading: _Reading) -> None:
    """Refuse other tokens, which move the loss too little.

    Raises:
        ConversionError: a text has other tokens.
    """
    for text, before, after in zip(
        TOKEN_TEXTS, original.tokens, reading.tokens, strict=True
    ):
        if before != after:
            raise ConversionError(
                f"the result differs from the original: it reads {text!r} as other"
                " tokens; add the model's own GGUF file"
            )


def _answers(original: _Reading, reading: _Reading) -> str:
    shares = agreement_of(original.texts, reading.texts)
    whole, start = shares["same"], shares["start"]
    return (
        f"{whole:.0%} of its answers to {len(PROMPTS)} prompts are the original's, and"
        f" {start:.0%} of their text, up to the first difference"
    )


def _read(document: Mapping[str, Any]) -> _Reading:
    """Load a version and ask it.

    Raises:
        ConversionError: it can't be loaded or asked.
    """
    with served_model(document) as (_, _, model):
        session = model.sessions[0]
        if not isinstance(session, LlmSession) or session.header.pooling:
            raise ConversionError("it generates no text")
        subject = LanguageSubject(session)
        try:
            texts = [subject.greedy_text(prompt, GREEDY_TOKENS) for prompt in PROMPTS]
            tokens = [subject.prompt_tokens(text, 0) for text in TOKEN_TEXTS]
            perplexity = subject.perplexity(TEXT, TEXT_TOKENS)
        except (EngineError, OSError, RuntimeError) as error:
            raise ConversionError(f"its engine failed: {error}") from error
    loss = perplexity.bits_per_byte
    return _Reading(texts, float("nan") if loss is None else loss, tokens)
