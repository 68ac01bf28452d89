"""Live captions: speech that arrives in pieces, with words that never change again.

All sound since the last cut is transcribed again as it grows. Words on which two results
in a row agree are final. Source: LocalAgreement-2 of ufal/whisper_streaming.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from pocketserve.tasks.base import Answer
from pocketserve.tasks.speech.gate import Gate, quiet_cut
from pocketserve.tasks.speech.spoken_words import (
    SpokenWord,
    common_length,
    joined_text,
    spoken_words,
    words_after,
)
from pocketserve.tasks.speech.transcribe import SpeechSegment
from pocketserve.tensors import Array

PAUSE_S: Final = 0.6
"""Silence that ends an utterance."""

LONGEST_S: Final = 28.0
"""Sound of one utterance: a little less than the window of most models."""

CUT_S: Final = 15.0
"""Sound after which finished sentences are cut off; Whisper loses words of longer ones."""

KEPT_S: Final = 0.2
"""Sound that is kept after a cut, since words begin quietly."""

MIN_STEP_S: Final = 1.0
"""New sound before the model runs again."""

LOAD_FACTOR: Final = 2.0
"""Seconds of new sound per second that the model took: it runs half of the time."""


TIME_DECIMALS: Final = 2


class CaptionTranscript(Protocol):
    """A transcript of the sound since the last cut."""

    @property
    def segments(self) -> Sequence[SpeechSegment]: ...
    @property
    def language(self) -> str: ...


@dataclass
class CaptionStep:
    """The words that one piece of sound added.

    Attributes:
        words: final words; they never change again.
        open_words: words that may still change.
        is_final: whether the utterance has ended.
        position: seconds of sound so far.
    """

    words: list[SpokenWord] = field(default_factory=list)
    open_words: list[SpokenWord] = field(default_factory=list)
    is_final: bool = False
    language: str = ""
    position: float = 0.0


class Captions:
    """The captions of one stream of sound.

    Attributes:
        language: of the utterance; None if it is not known yet.

    Args:
        rate: samples per second.
        clock: monotonic, in seconds.
    """

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._samples = np.zeros(0, np.float32)
        self._offset = 0
        self._new_samples = 0
        self._seconds_of_run = 0.0
        self._final: list[SpokenWord] = []
        self._last: list[SpokenWord] = []
        self._has_text = False
        self.language: str | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the sound that is kept."""
        return self._samples.nbytes

    @property
    def is_full(self) -> bool:
        """Return whether the model must run before more sound is added."""
        return len(self._samples) >= LONGEST_S * self._rate

    def step(
        self,
        samples: Array,
        transcribe: Callable[[Array], CaptionTranscript],
        *,
        is_end: bool,
        may_run: bool,
    ) -> CaptionStep:
        """Add sound, and return the words that are new.

        Args:
            samples: sound [n], from -1 to 1; a step that raises doesn't keep it, so that
                it can be repeated.
            transcribe: runs the model.
            is_end: no more sound follows.
            may_run: False leaves the sound to the next step, which waits already.
        """
        before, new_before = self._samples, self._new_samples
        self._samples = np.concatenate([before, samples])
        self._new_samples += len(samples)
        try:
            return self._new_words(transcribe, is_end, may_run)
        except BaseException:
            self._samples, self._new_samples = before, new_before
            raise

    def _new_words(
        self,
        transcribe: Callable[[Array], CaptionTranscript],
        is_end: bool,
        may_run: bool,
    ) -> CaptionStep:
        if not may_run and not is_end and not self.is_full:
            return self._result([])
        gate = Gate(self._samples, self._rate)
        last_loud = gate.last_loud()
        if last_loud is None:
            words = words_after(self._last, self._final)
            return self._end_utterance(words, 0)
        end = self._utterance_end(gate, last_loud, is_end)
        if end is not None:
            words = self._run(transcribe, end)
            rest = len(self._samples) - end
            return self._end_utterance(words_after(words, self._final), rest)
        if self._new_samples < self._step_samples():
            return self._result([])
        return self._agree(self._run(transcribe, len(self._samples)))

    def _utterance_end(self, gate: Gate, last_loud: int, is_end: bool) -> int | None:
        """Return the sample that ends the utterance; None if it goes on.

        On a slow device a step brings seconds of sound. So its pause may be in the
        middle, and the words after it wait for the next step.
        """
        length = len(self._samples)
        if is_end or length - last_loud >= PAUSE_S * self._rate:
            return length
        pause = gate.last_pause(PAUSE_S)
        transcribed = length - self._new_samples
        # Words after an earlier pause may be final already.
        if pause is not None and pause.end >= transcribed:
            return (pause.start + pause.end) // 2
        if self.is_full:
            return self._cut_between_words()
        return None

    def _cut_between_words(self) -> int:
        """Return a quiet place after the final words."""
        first = 0
        if self._final:
            first = min(len(self._samples), round(self._final[-1].end * self._rate))
        return first + quiet_cut(self._samples[first:], self._rate)

    def _step_samples(self) -> float:
        """Return the new samples before the model runs again."""
        step = max(MIN_STEP_S, LOAD_FACTOR * self._seconds_of_run)
        return min(step, LONGEST_S) * self._rate

    def _run(
        self, transcribe: Callable[[Array], CaptionTranscript], end: int
    ) -> list[SpokenWord]:
        began = self._clock()
        transcript = transcribe(self._samples[:end])
        self._seconds_of_run = self._clock() - began
        self._new_samples = 0
        self.language = transcript.language or None
        return spoken_words(transcript.segments)

    def _agree(self, words: list[SpokenWord]) -> CaptionStep:
        """Make the words final that are in this result and in the last one."""
        new = words_after(words, self._final)
        before = words_after(self._last, self._final)
        count = common_length(new, before)
        agreed = new[:count]
        self._final += agreed
        self._last = [*self._final, *new[count:]]
        result = self._result(agreed)
        self._cut()
        return result

    def _cut(self) -> None:
        """Drop the sound of finished segments whose words are all final."""
        if len(self._samples) < CUT_S * self._rate:
            return
        count = 0
        for number, word in enumerate(self._final):
            if word.ends_segment:
                count = number + 1
        if not count:
            return
        samples = min(
            len(self._samples), round(self._final[count - 1].end * self._rate)
        )
        seconds = samples / self._rate
        self._drop(samples)
        self._final = _moved(self._final[count:], seconds)
        self._last = _moved(self._last[count:], seconds)

    def _end_utterance(self, words: list[SpokenWord], rest: int) -> CaptionStep:
        """Make all words final, and keep the samples of the next utterance.

        Args:
            rest: number of samples after this utterance.
        """
        self._last = []
        result = self._result(words)
        result.is_final = True
        self._final = []
        self._new_samples = rest
        self.language = None
        remaining = max(rest, round(KEPT_S * self._rate))
        self._drop(max(0, len(self._samples) - remaining))
        return result

    def _drop(self, samples: int) -> None:
        self._samples = self._samples[samples:].copy()
        self._offset += samples

    def _result(self, words: list[SpokenWord]) -> CaptionStep:
        seconds = self._offset / self._rate
        open_words = words_after(self._last, self._final)
        step = CaptionStep(
            words=_moved(words, -seconds),
            open_words=_moved(open_words, -seconds),
            language=self.language or "",
            position=(self._offset + len(self._samples)) / self._rate,
        )
        if words and not self._has_text:
            self._has_text = True
            first = step.words[0]
            step.words[0] = first._replace(text=first.text.lstrip())
        return step


def _moved(words: Sequence[SpokenWord], seconds: float) -> list[SpokenWord]:
    """Return words whose times are earlier by some seconds."""
    moved = []
    for word in words:
        start = word.start - seconds
        moved.append(word._replace(start=start, end=word.end - seconds))
    return moved


def caption_entries(step: CaptionStep) -> Answer:
    """Return the final words of a step as entries of an answer: one, or none."""
    if not step.words:
        return []
    scores = [word.score for word in step.words]
    entry = {
        "text": joined_text(step.words).strip(),
        "start": round(step.words[0].start, TIME_DECIMALS),
        "end": round(step.words[-1].end, TIME_DECIMALS),
        "score": sum(scores) / len(scores),
    }
    return [entry]


def caption_facts(step: CaptionStep) -> dict[str, Any]:
    """Return the other parts of a step's answer.

    The texts of all steps, joined, are the whole text.
    """
    return {
        "text": joined_text(step.words),
        "open": joined_text(step.open_words),
        "final": step.is_final,
        "language": step.language,
        "duration": round(step.position, TIME_DECIMALS),
    }
