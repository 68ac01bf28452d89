"""Speech recognition by CTC models: wav2vec2, HuBERT and their relatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.sounds import SoundInput, SoundWindow
from pocketserve.tasks.base import invalid_parameter
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.speech.ctc import CtcWord, ctc_vocabulary
from pocketserve.tasks.speech.decoding import WindowText, compression_of
from pocketserve.tasks.speech.facts import CONFIG, TRANSCRIBE
from pocketserve.tasks.speech.gate import Gate, quiet_cut
from pocketserve.tasks.speech.options import SpeechOptions
from pocketserve.tasks.speech.transcribe import FRAMES_PER_SECOND, SpeechSegment
from pocketserve.tasks.speech.whisper_to_text import (
    NAME,
    SpeechToText,
    TranscribeOptions,
    Transcript,
)
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

WINDOW_S: Final = 20.0
"""Sound of one run: the cost of attention grows with its square."""

LEAST_S: Final = 0.05
"""Shorter sound has no frame."""

PAUSE_S: Final = 0.6
"""Silence between two segments."""

UNKNOWN: Final = ""


class CtcToText(SpeechToText):
    """Writes down speech; set up with ``config.json`` and ``vocab.json``."""

    normalizes = False

    def __init__(self, facts: ModelFacts) -> None:
        config = facts.json_beside(CONFIG)
        self._vocabulary_of_letters = ctc_vocabulary(facts, config)
        self._input = SoundInput(facts, NAME)
        self._output_name = facts.outputs[0].name
        self.options = facts.manifest.section(SpeechOptions)
        if self.options.prompt or self.options.task != TRANSCRIBE:
            raise ModelLoadError("model.toml: speech: a CTC model only transcribes")

    @property
    def languages(self) -> tuple[str, ...]:
        """Return nothing: the files don't name the language."""
        return ()

    def read_options(self, values: Mapping[str, Any]) -> TranscribeOptions:
        """Check a request's options; the model has no prompt and no tasks.

        Raises:
            ApiError: INVALID_PARAMETER.
        """
        if values.get("speech_task", TRANSCRIBE) != TRANSCRIBE:
            raise invalid_parameter(
                "this model only transcribes; translating needs a multilingual model",
                "model",
            )
        language = values.get("language", self.options.language)
        return TranscribeOptions(language=language or None)

    def transcribe(
        self,
        model: Any,
        samples: Array,
        options: TranscribeOptions,
        check: Callable[[], None],
        on_segment: Callable[[SpeechSegment], None] | None = None,
    ) -> Transcript:
        """Transcribe a sound; see :meth:`SpeechToText.transcribe`."""
        rate = self._input.rate
        transcript = Transcript(
            options.language or UNKNOWN, TRANSCRIBE, len(samples) / rate
        )
        for stretch in Gate(samples, rate).stretches():
            for start, end in _windows(samples, stretch.start, stretch.end, rate):
                check()
                for segment in self._segments(model, samples, start, end):
                    numbered = _numbered(segment, len(transcript.segments))
                    transcript.segments.append(numbered)
                    if on_segment is not None:
                        on_segment(numbered)
        return transcript

    def _segments(
        self, model: Any, samples: Array, start: int, end: int
    ) -> Iterator[SpeechSegment]:
        rate = self._input.rate
        window = self._input.normalized(samples[start:end, None])
        seconds = (end - start) / rate
        (run,) = self._input.runs([SoundWindow(window, 0.0, seconds)])
        logits = model.run(run)[self._output_name]
        size = len(self._vocabulary_of_letters.letters)
        if logits.ndim != 3 or logits.shape[2] != size or not logits.shape[1]:
            raise ApiError(
                ErrorCode.INFERENCE_FAILED,
                f"the model's output has the shape {list(logits.shape)}, not [1, frames,"
                f" {size}]; vocab.json belongs to another model",
            )
        values = logits[0].astype(np.float64)
        if not np.isfinite(values).all():
            raise ApiError(
                ErrorCode.INFERENCE_FAILED,
                "the model's scores are not numbers; its file may be damaged",
            )
        frame_s = seconds / len(values)
        words = self._vocabulary_of_letters.words(values)
        for group in _groups(words, PAUSE_S / frame_s):
            yield _segment(group, start / rate, frame_s)

    def form(self) -> Form:
        """Return the task's input and parameters."""
        return Form(("sound",), tuple(self._input.parameters))

    def describe(self) -> dict[str, str]:
        """Return facts for the model's card."""
        answer = "the words in segments with start and end in seconds"
        return {**self._input.describe(), "answer": answer}


def _windows(
    samples: Array, start: int, end: int, rate: int
) -> Iterator[tuple[int, int]]:
    """Yield windows of a stretch, cut at the quietest places."""
    longest = round(WINDOW_S * rate)
    while end - start > longest:
        cut = start + quiet_cut(samples[start : start + longest], rate)
        yield start, cut
        start = cut
    if end - start >= LEAST_S * rate:
        yield start, end


def _groups(words: list[CtcWord], pause: float) -> list[list[CtcWord]]:
    """Group words that no pause separates.

    Args:
        pause: in frames.
    """
    groups: list[list[CtcWord]] = []
    for word in words:
        if not groups or word.start - groups[-1][-1].end > pause:
            groups.append([])
        groups[-1].append(word)
    return groups


def _segment(words: list[CtcWord], offset: float, frame_s: float) -> SpeechSegment:
    text = "".join([f" {word.text}" for word in words])
    letters = sum([word.letters for word in words])
    total = math.fsum([word.log_probability for word in words])
    window = WindowText(
        tokens=(),
        log_probability=total / max(1, letters),
        no_speech=0.0,
        compression=compression_of(text),
        temperature=0.0,
    )
    return SpeechSegment(
        number=0,
        start=offset + words[0].start * frame_s,
        end=offset + words[-1].end * frame_s,
        text=text,
        tokens=(),
        seek=round(offset * FRAMES_PER_SECOND),
        window=window,
    )


def _numbered(segment: SpeechSegment, number: int) -> SpeechSegment:
    return replace(segment, number=number)
