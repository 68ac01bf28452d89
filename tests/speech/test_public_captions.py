"""Live captions by a public model, on devices of different speed.

A clock of the test's own tells how long the model takes, so that the steps are the same
on each machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pocketserve.tasks.audio.wav import read_wav
from pocketserve.tasks.speech.captions import Captions, CaptionStep
from pocketserve.tasks.speech.spoken_words import joined_text
from pocketserve.tensors import Array
from public_speech import MAX_WRONG, RATE, SENTENCES, Opened, wrong_words

pytestmark = pytest.mark.speech
SLICE = RATE // 2
NUMBERS = (
    "The first one, departing Caracas at 6.20 AM, arrives Erie at 6.52 AM, connects to"
    " Egypt air at 8.05 AM, arrive Providence at 10.34 AM."
)
"""The words of en_num.wav, as read from the model's text."""


@dataclass
class Listener:
    """Sends sound as the page does: each step has all that came since the last one.

    Attributes:
        cost: seconds that the model takes.
        now: the clock.
    """

    model: Opened
    cost: float
    now: float = 0.0
    steps: list[CaptionStep] = field(default_factory=list)

    def listen(self, samples: Array) -> None:
        captions = Captions(RATE, lambda: self.now)
        sent = 0
        while sent < len(samples):
            self.now = max(self.now, (sent + SLICE) / RATE)
            end = round(self.now * RATE) // SLICE * SLICE
            piece = samples[sent:end]
            sent = end
            is_end = sent >= len(samples)
            step = captions.step(piece, self.transcribe, is_end=is_end, may_run=True)
            self.steps.append(step)

    def transcribe(self, samples: Array) -> Any:
        self.now += self.cost
        task = self.model.task
        options = task.read_options({})
        return task.transcribe(self.model.session, samples, options, lambda: None)

    @property
    def text(self) -> str:
        return "".join([joined_text(step.words) for step in self.steps])

    @property
    def early_words(self) -> int:
        """Return the number of words that were final before their utterance ended."""
        count = 0
        for step in self.steps:
            if not step.is_final:
                count += len(step.words)
        return count


@pytest.mark.assets
@pytest.mark.parametrize(("cost", "early"), [(0.4, 15), (1.5, 15), (3, 1), (10, 0)])
def test_captions_of_a_recording_have_one_wrong_word(
    model: Opened, assets: Path, cost: float, early: int
) -> None:
    content = (assets / "inputs" / "audio" / "en_num.wav").read_bytes()
    sound = read_wav(memoryview(content), 600.0, mono=True)
    assert sound.rate == RATE
    listener = Listener(model, cost)
    listener.listen(sound.samples[:, 0])
    assert wrong_words(NUMBERS, listener.text) <= 1
    assert listener.early_words >= early


@pytest.mark.parametrize(("cost", "early"), [(1.5, 20), (8, 0), (14, 0)])
def test_captions_of_a_talk_have_its_words(
    model: Opened, talk: Array, cost: float, early: int
) -> None:
    listener = Listener(model, cost)
    listener.listen(talk.astype("float32"))
    assert wrong_words(" ".join(SENTENCES), listener.text) <= MAX_WRONG
    assert listener.early_words >= early
