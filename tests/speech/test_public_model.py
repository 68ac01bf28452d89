"""Public weights of Whisper, unconverted: compared with transformers and faster-whisper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketserve.tasks.audio.wav import read_wav
from pocketserve.tensors import Array
from public_speech import MAX_WRONG, RATE, SENTENCES, Opened, wrong_words
from sounds import wav
from whisper_public import source_folder

pytestmark = pytest.mark.speech


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
