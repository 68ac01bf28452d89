"""Windows, retries and segments, with a model that says a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pocketserve.runtimes.speech.interface import TokenStep
from pocketserve.tasks.speech.decoding import Prompt, WindowDecoder
from pocketserve.tasks.speech.facts import speech_tokens
from pocketserve.tasks.speech.transcribe import (
    SoundModel,
    SpeechSegment,
    Transcription,
    split,
)
from pocketserve.tasks.speech.vocabulary import ByteVocabulary
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode
from whisper_files import (
    END,
    FIRST_TIME,
    SPECIAL,
    START,
    number_of,
    text_numbers,
)

VOCABULARY = FIRST_TIME + 1501
RATE = 1000
WINDOW_S = 30
SPACE = ord(" ")
FACTS = speech_tokens(
    {
        "vocab_size": VOCABULARY,
        "max_target_positions": 448,
        "decoder_start_token_id": START,
        "eos_token_id": END,
    },
    {"no_timestamps_token_id": number_of("<|notimestamps|>")},
)
VOCAB = ByteVocabulary(text_numbers(), [])


def time(seconds: float) -> int:
    return FIRST_TIME + round(seconds * 50)


@dataclass
class ScriptedModel:
    """Says one script per window.

    Attributes:
        scripts: the tokens of each window; the last one repeats.
        likelihood: the logit of the script's tokens; others have 0.
        no_speech: the logit of no speech after the start.
        windows: the windows' first samples.
    """

    scripts: Sequence[Sequence[int]]
    likelihood: float = 30.0
    no_speech: float = 0.0
    windows: list[float] = field(default_factory=list)
    steps: int = 0

    def encode(self, features: Array) -> Any:
        number = min(len(self.windows), len(self.scripts) - 1)
        self.windows.append(float(features[0]))
        return number, -1

    def step(self, tokens: Sequence[int], cache: Any) -> TokenStep:
        number, place = cache
        logits = np.zeros(VOCABULARY)
        self.steps += 1
        script = [*self.scripts[number], END]
        place = min(place + 1, len(script) - 1)
        logits[script[place]] = self.likelihood
        if tokens[-1] == START:
            logits[number_of("<|nospeech|>")] = self.no_speech
        return TokenStep(logits, (number, place))


def speech(seconds: float) -> Array:
    """Return loud samples that vary as speech does; each has its place as fraction."""
    count = round(seconds * RATE)
    beat = 1 + np.sin(np.arange(count) / RATE * 2 * np.pi * 2)
    return (0.1 + 0.2 * beat).astype(np.float32)


def transcribe(
    model: ScriptedModel, samples: Array, check: Callable[[], None] = lambda: None
) -> list[SpeechSegment]:
    decoder = WindowDecoder(model, FACTS, VOCAB.text, check)
    sound = SoundModel(RATE, WINDOW_S * RATE, lambda window: window)
    parts = Transcription(
        samples,
        sound,
        decoder,
        FACTS,
        Prompt(retries=2),
        "en",
    )
    return list(parts.segments(VOCAB.text))


def words(text: str) -> list[int]:
    return list(text.encode())


def segment(start: float, text: str, end: float) -> list[int]:
    return [
        time(start),
        *words(text),
        time(end),
    ]


def test_segments_have_texts_and_times() -> None:
    script = [*segment(0, "one", 2), *segment(2, "two", 4)]
    first, second = transcribe(ScriptedModel([script]), speech(4))
    assert (first.text, first.start, first.end) == ("one", 0, 2)
    assert (second.text, second.start, second.end) == ("two", 2, 4)
    assert [first.number, second.number] == [0, 1]


def test_a_tiny_temperature_takes_the_likeliest_tokens() -> None:
    model = ScriptedModel([segment(0, "one", 2)])
    decoder = WindowDecoder(model, FACTS, VOCAB.text, lambda: None)
    sound = SoundModel(RATE, WINDOW_S * RATE, lambda window: window)
    prompt = Prompt(temperature=5e-324)
    parts = Transcription(
        speech(2),
        sound,
        decoder,
        FACTS,
        prompt,
        "en",
    )
    assert [part.text for part in parts.segments(VOCAB.text)] == ["one"]


def test_a_window_begins_where_the_last_whole_segment_ended() -> None:
    cut = [*segment(0, "one", 20), time(20), *words("tw")]
    rest = segment(0, "two", 15)
    samples = speech(35)
    segments = transcribe(ScriptedModel([cut, rest]), samples)
    assert [part.text for part in segments] == ["one", "two"]
    assert (segments[1].start, segments[1].end) == (20, 35)
    assert segments[1].seek == 2000


def test_a_window_that_ends_early_is_continued() -> None:
    scripts = [segment(0, "one", 10), segment(0, "two", 20)]
    segments = transcribe(ScriptedModel(scripts), speech(30))
    assert [part.text for part in segments] == ["one", "two"]
    assert segments[1].start == 10


def test_nothing_is_decoded_in_silence() -> None:
    model = ScriptedModel([segment(0, "you", 1)])
    assert transcribe(model, np.zeros(35 * RATE, np.float32)) == []
    assert model.windows == []


def test_no_window_spans_a_long_pause() -> None:
    pause = np.zeros(10 * RATE, np.float32)
    samples = np.concatenate(
        [
            speech(2),
            pause,
            speech(3),
        ]
    )
    scripts = [segment(0, "one", 2), segment(0.2, "two", 3)]
    first, second = transcribe(ScriptedModel(scripts), samples)
    assert first.end <= 2.4
    assert 11.5 < second.start < 12.5


def test_a_window_without_speech_has_no_text() -> None:
    model = ScriptedModel([segment(0, "you", 1)], likelihood=5.0, no_speech=40.0)
    assert transcribe(model, speech(2)) == []


def test_a_repeating_text_is_tried_again_at_higher_temperatures() -> None:
    script = segment(0, "no " * 60, 10)
    model = ScriptedModel([script])
    (part,) = transcribe(model, speech(10))
    assert part.window.compression > 2.4
    assert part.window.temperature == pytest.approx(0.8)


def test_a_good_text_is_tried_once() -> None:
    (part,) = transcribe(ScriptedModel([segment(0, "one", 2)]), speech(2))
    assert part.window.temperature == 0


def test_a_text_has_a_limit() -> None:
    script = [time(0), *[ord("a") + place % 26 for place in range(400)]]
    (part,) = transcribe(ScriptedModel([script]), speech(2))
    assert len(part.tokens) == 223


def test_a_check_ends_the_work_between_two_tokens() -> None:
    model = ScriptedModel([segment(0, "one two three", 2)])

    def check() -> None:
        if model.steps == 4:
            raise ApiError(ErrorCode.CANCELLED, "cancelled")

    with pytest.raises(ApiError, match="cancelled"):
        transcribe(model, speech(2), check)
    assert model.steps == 4


def test_a_window_without_times_is_one_segment() -> None:
    result = split(words("one"), 4.0, FACTS)
    assert result.advance == 4
    assert [(part.start, part.end) for part in result.segments] == [(0, 4)]


def test_special_tokens_have_no_text() -> None:
    assert VOCAB.text([START, *words("a"), END + len(SPECIAL)]) == "a"
