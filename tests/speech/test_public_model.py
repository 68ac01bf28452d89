"""Public weights of Whisper, unconverted: compared with transformers and faster-whisper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.registry import runtime_for
from pocketserve.tasks.audio.wav import read_wav
from pocketserve.tensors import Array
from sounds import wav
from whisper_public import source_folder, write_public_model

pytestmark = pytest.mark.speech
RATE = 16_000
TONE_PAUSE_S = 0.6
SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank every morning"
    " before the sun comes up.",
    "Please remember to buy bread, butter, fresh apples and two bottles of milk on your"
    " way home tonight.",
    "The museum opens at nine in the morning and closes at five in the afternoon, except"
    " on Mondays.",
    "Scientists have discovered a new species of frog in the mountains of Ecuador that"
    " sings like a bird.",
    "My grandmother planted roses along the fence, and each summer the whole street"
    " smells wonderful.",
    "If the weather stays dry, we will paint the garden shed on Saturday and clean the"
    " windows on Sunday.",
    "The train to London was delayed because a tree had fallen across the tracks during"
    " the storm.",
    "She opened the letter slowly, read the first line twice, and then put it back on the"
    " table.",
    "Turn left at the church, walk past the bakery, and you will find the library on the"
    " right side.",
    "Learning a new language takes patience, practice, and the courage to make many"
    " mistakes in public.",
)
MAX_WRONG = 2
"""Words of the sentences that may be wrong, of 177."""

NUMBERS = {"5": "five", "9": "nine", "2": "two"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_public_model(tmp_path_factory.mktemp("models") / "whisper")


class Opened:
    """The model in this process."""

    def __init__(self, folder: Path) -> None:
        entry = Models(folder.parent)[folder.name]
        version = entry.versions[entry.default_version]
        assert version.problem is None
        source = ModelSource(path=version.path, threads=2)
        self.session: Any = runtime_for(version.format).open(source)
        self.session.try_out()
        self.task: Any = set_up(entry, version, self.session, 1, source).task

    def transcribe(self, content: bytes) -> Any:
        prepared = self.task.prepare(memoryview(content))
        options = self.task.read_options({})
        return self.task.transcribe(
            self.session, prepared.context, options, lambda: None
        )


@pytest.fixture(scope="module")
def model(folder: Path) -> Opened:
    return Opened(folder)


@pytest.fixture(scope="module")
def talk() -> Array:
    """Ten sentences by a synthetic voice, with pauses between them."""
    from hibari import Hibari

    voice = Hibari()
    parts = []
    for sentence in SENTENCES:
        samples = voice(sentence, seed=0)  # at 24 kHz
        places = np.arange(round(len(samples) * 2 / 3)) * 1.5
        parts.append(np.interp(places, np.arange(len(samples)), samples))
        parts.append(np.zeros(round(TONE_PAUSE_S * RATE)))
    return np.concatenate(parts)


def words_of(text: str) -> list[str]:
    words = re.sub(r"[^\w\s']", "", text.lower()).split()
    return [NUMBERS.get(word, word) for word in words]


def wrong_words(expected: str, text: str) -> int:
    """Return the number of words to insert, remove or replace."""
    words = words_of(text)
    row = list(range(len(words) + 1))
    for number, word in enumerate(words_of(expected), 1):
        above = row
        row = [number]
        for place, other in enumerate(words):
            replaced = above[place] + (word != other)
            row.append(min(replaced, above[place + 1] + 1, row[-1] + 1))
    return row[-1]


def test_the_words_of_a_long_recording_are_right(model: Opened, talk: Array) -> None:
    transcript = model.transcribe(wav(talk[:, None]))
    assert wrong_words(" ".join(SENTENCES), transcript.text) <= MAX_WRONG


def test_nothing_is_invented_in_silence(model: Opened, talk: Array) -> None:
    silence = np.zeros(35 * RATE)
    noise = 0.003 * np.random.default_rng(1).standard_normal(20 * RATE)
    assert model.transcribe(wav(silence[:, None])).text == ""
    middle = len(talk) // 2
    parts = [talk[:middle], silence, noise, talk[middle:]]
    transcript = model.transcribe(wav(np.concatenate(parts)[:, None]))
    between = (middle / RATE + 2, middle / RATE + 53)
    for segment in transcript.segments:
        assert segment.end < between[0] + 1 or segment.start > between[1]


def test_the_words_are_those_of_faster_whisper(model: Opened, talk: Array) -> None:
    from faster_whisper import WhisperModel

    other = WhisperModel(str(source_folder()), device="cpu", compute_type="float32")
    segments, _ = other.transcribe(
        talk.astype(np.float32), beam_size=1, condition_on_previous_text=False
    )
    expected = "".join([segment.text for segment in segments]).strip()
    assert model.transcribe(wav(talk[:, None], bits=32, floating=True)).text == expected


@pytest.mark.assets
@pytest.mark.parametrize("name", ["en_num", "speech"])
def test_public_recordings_have_the_words_of_faster_whisper(
    model: Opened, assets: Path, name: str
) -> None:
    from faster_whisper import WhisperModel

    path = assets / "inputs" / "audio" / f"{name}.wav"
    content = path.read_bytes()
    sound = read_wav(memoryview(content), 600.0, mono=True)
    assert sound.rate == RATE
    other = WhisperModel(str(source_folder()), device="cpu", compute_type="float32")
    segments, _ = other.transcribe(
        sound.samples[:, 0], beam_size=1, condition_on_previous_text=False
    )
    expected = "".join([segment.text for segment in segments]).strip()
    assert model.transcribe(content).text == expected


def test_the_logits_are_those_of_transformers(folder: Path, model: Opened) -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    other = WhisperForConditionalGeneration.from_pretrained(folder)
    features = np.random.default_rng(0).standard_normal((1, 80, 3000), np.float32)
    tokens = [50257, 50362, 770, 318, 257, 1332]
    with torch.inference_mode():
        expected = other(
            input_features=torch.from_numpy(features),
            decoder_input_ids=torch.tensor([tokens]),
        )
    encoded = model.session.encode(features)
    step = model.session.step(tokens[:2], encoded)
    for token, row in zip(tokens[2:], expected.logits[0, 2:], strict=True):
        step = model.session.step([token], step.cache)
        np.testing.assert_allclose(step.logits, row.numpy(), atol=1e-3)
