"""Live captions: words on which two results agree never change again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from pocketserve.tasks.speech.captions import (
    Captions,
    CaptionStep,
    caption_entries,
    caption_facts,
)
from pocketserve.tasks.speech.spoken_words import joined_text, spoken_words, words_after
from pocketserve.tensors import Array

RATE = 1000


@dataclass
class Segment:
    text: str
    start: float
    end: float
    score: float = 0.5


@dataclass
class Result:
    segments: Sequence[Segment]
    language: str = "en"


@dataclass
class Model:
    """Returns one scripted transcript per run; notes the seconds of each run."""

    script: list[str]
    cost: float = 0.0
    now: float = 0.0
    runs: list[float] = field(default_factory=list)

    def transcribe(self, samples: Array) -> Result:
        seconds = len(samples) / RATE
        self.runs.append(seconds)
        self.now += self.cost
        texts = self.script.pop(0).split("|")
        part = seconds / len(texts)
        segments = []
        for number, text in enumerate(texts):
            segments.append(Segment(text, number * part, (number + 1) * part))
        return Result(segments)


def loud(seconds: float) -> Array:
    noise = np.random.default_rng(0).standard_normal(round(seconds * RATE))
    waves = np.sin(np.arange(len(noise)) / RATE * 2 * np.pi * 2) ** 2
    return (0.2 * noise * waves).astype(np.float32)


def silence(seconds: float) -> Array:
    return np.zeros(round(seconds * RATE), np.float32)


def listener(model: Model) -> Callable[..., CaptionStep]:
    """Return a function that sends a piece of sound."""
    captions = Captions(RATE, lambda: model.now)

    def send(
        samples: Array, *, is_end: bool = False, may_run: bool = True
    ) -> CaptionStep:
        return captions.step(samples, model.transcribe, is_end=is_end, may_run=may_run)

    return send


def texts(step: CaptionStep) -> tuple[str, str]:
    return joined_text(step.words), joined_text(step.open_words)


def test_words_become_final_once_two_results_agree() -> None:
    send = listener(
        Model([" The first one departs.", " The first one, departing at", " The first"])
    )
    assert texts(send(loud(2))) == ("", " The first one departs.")
    step = send(loud(2))
    assert texts(step) == ("The first one,", " departing at")
    assert not step.is_final
    # The last result is shorter, but final words stay.
    last = send(loud(1), is_end=True)
    assert (texts(last), last.is_final) == (("", ""), True)


def test_texts_of_all_steps_are_the_whole_text() -> None:
    model = Model([" One two", " One two three", " One two three.", " Four"])
    send = listener(model)
    steps = [send(loud(1)), send(loud(1)), send(silence(1)), send(loud(1), is_end=True)]
    assert "".join([joined_text(step.words) for step in steps]) == "One two three. Four"
    assert [step.is_final for step in steps] == [False, False, True, True]
    # The second utterance begins with what is kept of the pause.
    assert model.runs == [1, 2, 3, pytest.approx(1.2)]
    (entry,) = caption_entries(steps[3])
    assert entry == {"text": "Four", "start": 2.8, "end": 4.0, "score": 0.5}
    assert caption_facts(steps[3])["duration"] == 4.0


def test_silence_does_not_run_the_model() -> None:
    model = Model([])
    send = listener(model)
    for _ in range(3):
        step = send(silence(5))
        assert (texts(step), step.is_final) == (("", ""), True)
    assert model.runs == []


def test_the_step_follows_the_measured_time() -> None:
    model = Model([" a"] * 3, cost=2.0)
    send = listener(model)
    for _ in range(9):
        send(loud(1))
    assert model.runs == [1, 5, 9]


def test_sound_is_only_added_while_another_step_waits() -> None:
    model = Model([" a", " a b"])
    send = listener(model)
    send(loud(1))
    assert texts(send(loud(2), may_run=False)) == ("", " a")
    assert texts(send(loud(2))) == ("a", " b")
    assert model.runs == [1, 5]


def test_waiting_steps_cannot_add_sound_without_end() -> None:
    model = Model([" a"])
    send = listener(model)
    for _ in range(28):
        step = send(loud(1), may_run=False)
    assert (texts(step), step.is_final) == (("a", ""), True)
    (seconds,) = model.runs
    assert 23 < seconds < 28


def test_a_long_utterance_is_cut_at_a_quiet_place() -> None:
    model = Model([" a", " b", " c", " d e", " f"])
    send = listener(model)
    speech = loud(28)
    # The last 5 s are searched.
    speech[25 * RATE : 25 * RATE + RATE // 4] = 0
    for start in range(0, 27, 9):
        step = send(speech[start * RATE : (start + 9) * RATE])
    step = send(speech[27 * RATE :])
    assert (texts(step), step.is_final) == (("d e", ""), True)
    assert texts(send(silence(1))) == (" f", "")
    assert model.runs == [
        9,
        18,
        27,
        pytest.approx(25.1, abs=0.15),
        pytest.approx(3.9, 0.1),
    ]


def test_a_pause_inside_a_piece_ends_an_utterance() -> None:
    model = Model([" One.", " Two.", " Two three.", " Four."])
    send = listener(model)
    step = send(np.concatenate([loud(3), silence(1), loud(2)]))
    assert (texts(step), step.is_final) == (("One.", ""), True)
    assert texts(send(loud(1))) == ("", " Two.")
    last = send(np.concatenate([silence(1), loud(1)]), is_end=True)
    assert model.runs == [pytest.approx(3.5, abs=0.1), pytest.approx(3.5, abs=0.1), 5.5]
    assert texts(last) == (" Two three.", "")


def test_words_behind_a_pause_that_was_transcribed_stay_final() -> None:
    model = Model([" a b", " a b", " a b c"])
    send = listener(model)
    quiet = 0.5 * loud(4)
    quiet[RATE : 2 * RATE] *= 0.1
    send(quiet)
    assert texts(send(quiet[3 * RATE :])) == ("a b", "")
    # Louder speech makes the pause before the final words one.
    step = send(3 * loud(2))
    assert (texts(step), step.is_final) == (("", " c"), False)


def test_a_failed_step_can_be_repeated() -> None:
    model = Model([])
    send = listener(model)
    for _ in range(2):
        with pytest.raises(IndexError):  # the script is over
            send(loud(2))
    model.script += [" a", " a b"]
    assert send(loud(2)).position == 2
    assert texts(send(loud(2), is_end=True)) == ("a b", "")
    assert model.runs == [2, 2, 2, 4]


def test_finished_sentences_are_cut_off() -> None:
    model = Model([" One two.| Three", " One two.| Three four", " Three four five"])
    send = listener(model)
    send(loud(8))
    assert texts(send(loud(8))) == ("One two. Three", " four")
    step = send(loud(2))
    assert model.runs == [8, 16, 10]
    assert texts(step) == (" four", " five")
    assert step.words[0].start > 8


@pytest.mark.parametrize(
    ("final", "new", "after"),
    [
        ("", " a b", " a b"),
        (" at 6.20 am", " at 6.20 am, arrives", " arrives"),
        (" at 6 20 am", " at 6.20 am arrives", " arrives"),
        (" it is", " it isn't so", " so"),
        (" a b c", " a b", ""),
        (" 今日", " 今日は雨", "は雨"),
    ],
)
def test_a_new_result_continues_the_final_words(
    final: str, new: str, after: str
) -> None:
    final_words = spoken_words([Segment(final, 0, 1)])
    new_words = spoken_words([Segment(new, 0, 1)])
    assert joined_text(words_after(new_words, final_words)) == after


def test_words_have_the_times_of_their_letters() -> None:
    words = spoken_words(
        [Segment(" ab cd", 1, 2), Segment(" e", 2, 3), Segment(" ", 3, 4)]
    )
    times = [(word.text, word.start, word.end, word.ends_segment) for word in words]
    assert times == [
        (" ab", 1, 1.5, False),
        (" cd", 1.5, 2, True),
        (" e", 2, 3, True),
    ]
