"""Transcribe a whole sound, window by window.

Each window begins where the last finished segment of the one before ended, so that no
word is cut. Source: openai/whisper, transcribe.py. Unlike there, a window that ends
early is continued, and windows never span long pauses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pocketserve.tasks.speech.decoding import Prompt, WindowDecoder, WindowText
from pocketserve.tasks.speech.facts import SpeechTokens
from pocketserve.tasks.speech.gate import Gate, Stretch
from pocketserve.tensors import Array

TIME_STEP_S: Final = 0.02
"""Seconds between two timestamp tokens."""

MIN_WINDOW_S: Final = 0.1
"""A shorter rest is left out."""

MIN_ADVANCE_S: Final = 1.0
MAX_LEAD_S: Final = 1.0
"""Silence at a window's start that is skipped if it is longer."""

KEPT_LEAD_S: Final = 0.2
MAX_UNREAD_S: Final = 1.0
"""Sound after the last time token that is read again if it is longer."""

FRAMES_PER_SECOND: Final = 100


@dataclass(frozen=True)
class SpeechSegment:
    """A piece of a transcript.

    Attributes:
        number: from 0.
        start, end: in seconds.
        seek: start of its window, in frames of 10 ms.
    """

    number: int
    start: float
    end: float
    text: str
    tokens: Sequence[int]
    seek: int
    window: WindowText

    @property
    def score(self) -> float:
        """Return the mean probability of the window's tokens."""
        return math.exp(self.window.log_probability)


class TimedText(NamedTuple):
    """Tokens of a segment, with seconds from the window's start."""

    start: float
    end: float
    tokens: Sequence[int]


class WindowSegments(NamedTuple):
    """The segments of a window, and the seconds after which the next one begins."""

    segments: list[TimedText]
    advance: float


@dataclass(frozen=True)
class SoundModel:
    """The constants of a model's input.

    Attributes:
        rate: samples per second.
        window: samples of a window.
        features: returns the features of a window's samples.
    """

    rate: int
    window: int
    features: Callable[[Array], Array]


class Transcription:
    """The transcription of one sound.

    Attributes:
        language: code of the language; set before the first segment.

    Args:
        samples: mono, from -1 to 1.
        prompt: its language is set here.
        language: code, or None to detect it.
    """

    def __init__(
        self,
        samples: Array,
        sound: SoundModel,
        decoder: WindowDecoder,
        tokens: SpeechTokens,
        prompt: Prompt,
        language: str | None,
    ) -> None:
        self._samples = samples
        self._sound = sound
        self._decoder = decoder
        self._tokens = tokens
        self._prompt = prompt
        self.language = language
        self._gate = Gate(samples, sound.rate)
        self._count = 0

    def segments(
        self, text_of: Callable[[Sequence[int]], str]
    ) -> Iterator[SpeechSegment]:
        """Yield the segments as soon as their window is decoded."""
        for stretch in self._gate.stretches():
            yield from self._stretch_segments(stretch, text_of)

    def _stretch_segments(
        self, stretch: Stretch, text_of: Callable[[Sequence[int]], str]
    ) -> Iterator[SpeechSegment]:
        rate = self._sound.rate
        seek: int | None = self._skip_silence(stretch.start, stretch.end)
        while seek is not None and stretch.end - seek >= MIN_WINDOW_S * rate:
            end = min(seek + self._sound.window, stretch.end)
            window = self._decode(seek, end)
            if window.is_silence:
                seek = self._skip_silence(end, stretch.end)
                continue
            result = split(window.tokens, (end - seek) / rate, self._tokens)
            for timed in result.segments:
                text = text_of(timed.tokens)
                if text.strip():
                    yield self._segment(timed, text, seek, end, window)
            advance = max(result.advance, MIN_ADVANCE_S)
            seek = self._skip_silence(seek + round(advance * rate), stretch.end)

    def _decode(self, start: int, end: int) -> WindowText:
        encoded = self._decoder.encode(self._sound.features(self._samples[start:end]))
        prompt = self._prompt
        if self._tokens.is_multilingual:
            if self.language is None:
                self.language = self._decoder.detect_language(encoded)
            token = self._tokens.languages[self.language]
            prompt = replace(prompt, language=token)
        return self._decoder.decode(encoded, prompt)

    def _skip_silence(self, start: int, end: int) -> int | None:
        """Return the start of the next window; None if only silence follows."""
        loud = self._gate.next_loud(start)
        if loud is None or loud >= end:
            return None
        rate = self._sound.rate
        if loud - start > MAX_LEAD_S * rate:
            return loud - round(KEPT_LEAD_S * rate)
        return start

    def _segment(
        self, timed: TimedText, text: str, seek: int, end: int, window: WindowText
    ) -> SpeechSegment:
        rate = self._sound.rate
        offset = seek / rate
        last = end / rate
        number = self._count
        self._count += 1
        return SpeechSegment(
            number=number,
            start=min(offset + timed.start, last),
            end=min(offset + timed.end, last),
            text=text,
            tokens=timed.tokens,
            seek=round(offset * FRAMES_PER_SECOND),
            window=window,
        )


def split(tokens: Sequence[int], seconds: float, facts: SpeechTokens) -> WindowSegments:
    """Split the tokens of a window at its timestamps.

    Args:
        seconds: length of the window's sound.
    """
    first_time = facts.first_time
    places = []
    for place, token in enumerate(tokens):
        if token >= first_time:
            places.append(place)

    def time_at(place: int) -> float:
        return (tokens[place] - first_time) * TIME_STEP_S

    segments = []
    for place, next_place in itertools.pairwise(places):
        if next_place - place > 1:
            inner = tokens[place + 1 : next_place]
            segments.append(TimedText(time_at(place), time_at(next_place), inner))
    if not places:
        segments.append(TimedText(0.0, seconds, tokens))
        return WindowSegments(segments, seconds)
    last = places[-1]
    rest = tokens[last + 1 :]
    last_time = time_at(last)
    if rest:
        # A segment that is cut off is read again, unless it is the only one.
        if segments:
            return WindowSegments(segments, last_time)
        segments.append(TimedText(last_time, seconds, rest))
        return WindowSegments(segments, seconds)
    begins_next = len(places) > 1 and places[-2] == last - 1
    is_early = 0 < last_time < seconds - MAX_UNREAD_S
    if segments and (begins_next or is_early):
        return WindowSegments(segments, last_time)
    return WindowSegments(segments, seconds)
