"""Sounds are prepared like transformers' feature extractors prepare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.model_facts import MetadataError
from pocketserve.tensors import TensorSpec
from sounds import tone, wav
from text_models import task_of

SAMPLES = TensorSpec("input_values", "FP32", (-1, -1))
MASK = TensorSpec("attention_mask", "INT64", (-1, -1))
WAV2VEC2 = {
    "architectures": ["HubertForSequenceClassification"],
    "model_type": "hubert",
}
AST = {
    "architectures": ["ASTForAudioClassification"],
    "model_type": "audio-spectrogram-transformer",
}
LOGITS = {"logits": (1, 2)}


def audio_task(
    folder: Path, config: Any, preprocessor: Mapping[str, Any], *specs: TensorSpec
) -> Any:
    """Return the task of a model without a manifest."""
    return task_of(
        folder,
        specs,
        LOGITS,
        {},
        {"config.json": config, "preprocessor_config.json": dict(preprocessor)},
    )


def test_a_quiet_tone_is_normalised_and_its_mask_is_ones(tmp_path: Path) -> None:
    settings = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": 16000,
        "do_normalize": True,
    }
    task = audio_task(tmp_path, WAV2VEC2, settings, SAMPLES, MASK)
    assert task.name == "audio-classification"
    run = task.prepare(memoryview(wav(tone(0.5) * 0.01))).runs[0]
    assert run["input_values"].shape == run["attention_mask"].shape == (1, 8000)
    assert run["input_values"].var() == pytest.approx(1, abs=0.01)
    assert run["attention_mask"].all()


def test_the_mask_of_a_fixed_window_ends_with_the_sound(tmp_path: Path) -> None:
    settings = {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}
    samples = TensorSpec("input_values", "FP32", (1, 16000))
    mask = TensorSpec("attention_mask", "INT64", (1, 16000))
    task = audio_task(tmp_path, WAV2VEC2, settings, samples, mask)
    run = task.prepare(memoryview(wav(tone(0.25)))).runs[0]
    assert run["attention_mask"].sum() == 4000


def test_one_softmax_over_the_logits(tmp_path: Path) -> None:
    task = audio_task(
        tmp_path,
        WAV2VEC2,
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor"},
        SAMPLES,
    )
    prepared = task.prepare(memoryview(wav(tone(0.1))))
    answer = task.answer(
        [{"logits": np.array([[2.0, 0.0]], np.float32)}],
        AnswerOptions(),
        prepared.context,
    )
    assert answer[0]["score"] == pytest.approx(1 / (1 + np.exp(-2)))


def test_a_filter_bank_is_filled_with_zeros_before_it_is_normalised(
    tmp_path: Path,
) -> None:
    settings = {
        **{
            "feature_extractor_type": "ASTFeatureExtractor",
            "num_mel_bins": 16,
            "max_length": 20,
        },
        **{"mean": -4.0, "std": 2.0},
    }
    features = TensorSpec("input_values", "FP32", (-1, 20, 16))
    task = audio_task(tmp_path, AST, settings, features)
    silence = np.zeros((1600, 1))
    values = task.prepare(memoryview(wav(silence))).runs[0]["input_values"]
    assert values.shape == (1, 20, 16)
    frames = 1 + (1600 - 400) // 160
    floor = (np.log(1.192092955078125e-07) + 4) / 4
    assert values[0, :frames] == pytest.approx(np.full((frames, 16), floor), abs=1e-4)
    assert values[0, frames:] == pytest.approx(
        np.full((20 - frames, 16), 1.0), abs=1e-6
    )


REFUSED: dict[str, Mapping[str, Any]] = {
    "feature_extractor_type": {"feature_extractor_type": "ClapFeatureExtractor"},
    "sampling_rate": {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": "fast",
    },
    "padding_side": {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "padding_side": "left",
    },
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_model_with_other_settings_is_served_as_tensors(
    tmp_path: Path, key: str
) -> None:
    task = audio_task(tmp_path, WAV2VEC2, REFUSED[key], SAMPLES)
    assert task.name == "tensors"
    assert key in task.problem


def test_new_names_of_the_feature_extractors(tmp_path: Path) -> None:
    settings = {"audio_processor_type": "Wav2Vec2AudioProcessor", "do_normalize": True}
    task = audio_task(tmp_path, {}, settings, SAMPLES)
    assert task.name == "tensors"  # no file says that it is a classifier
    config = {"architectures": ["HubertForSequenceClassification"]}
    task = audio_task(tmp_path / "m", {**WAV2VEC2, **config}, settings, SAMPLES)
    run = task.prepare(memoryview(wav(tone(0.5) * 0.01))).runs[0]
    assert run["input_values"].var() == pytest.approx(1, abs=0.01)


def test_the_section_of_a_processor_file_is_read(tmp_path: Path) -> None:
    section = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": 8000,
    }
    files = {
        "config.json": WAV2VEC2,
        "processor_config.json": {"feature_extractor": section},
    }
    task = task_of(tmp_path, [SAMPLES], LOGITS, {}, files)
    assert task.name == "audio-classification"
    assert task.prepare(memoryview(wav(tone(0.5)))).runs[0]["input_values"].shape == (
        1,
        4000,
    )


def test_each_modality_has_its_section_of_a_processor_file(tmp_path: Path) -> None:
    sounds = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": 8000,
    }
    pictures = {"image_processor_type": "ViTImageProcessor", "do_thumbnail": True}
    processor = {"image_processor": pictures, "feature_extractor": sounds}
    files = {"config.json": WAV2VEC2, "processor_config.json": processor}

    task = task_of(tmp_path, [SAMPLES], LOGITS, {}, files)

    assert task.name == "audio-classification"
    run = task.prepare(memoryview(wav(tone(0.5)))).runs[0]
    assert run["input_values"].shape == (1, 4000)


def test_unsupported_keys_of_sounds_are_found_beside_pictures(tmp_path: Path) -> None:
    sounds = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "padding_side": "left",
    }
    pictures = {"image_processor_type": "ViTImageProcessor"}
    processor = {"image_processor": pictures, "feature_extractor": sounds}
    files = {"config.json": WAV2VEC2, "processor_config.json": processor}

    task = task_of(tmp_path, [SAMPLES], LOGITS, {}, files)

    assert task.name == "tensors"
    assert "padding_side" in task.problem


@pytest.mark.parametrize("key", ["padding_side", "spectrogram_config"])
def test_settings_of_sounds_that_change_the_input_are_named(
    tmp_path: Path, key: str
) -> None:
    settings = {"audio_processor_type": "Wav2Vec2AudioProcessor", key: "left"}
    task = audio_task(tmp_path, WAV2VEC2, settings, SAMPLES)
    assert task.name == "tensors"
    assert key in task.problem


CLAP = {"feature_extractor_type": "ClapFeatureExtractor", "sampling_rate": 48000}
ENCODEC = {"feature_extractor_type": "EncodecFeatureExtractor", "sampling_rate": 24000}


def described_task(
    folder: Path, preprocessor: Mapping[str, Any], spec: TensorSpec, **tables: Any
) -> Any:
    """Return the task of a model whose manifest describes its input."""
    manifest = {"task": "audio-classification", **tables}
    return task_of(
        folder,
        [spec],
        LOGITS,
        manifest,
        {"preprocessor_config.json": dict(preprocessor)},
    )


@pytest.mark.parametrize(
    "audio",
    [
        {},
        {"sample_rate": 48000},
    ],
    ids=str,
)
def test_a_spectrogram_of_the_manifest_replaces_an_unsupported_extractor(
    tmp_path: Path, audio: Any
) -> None:
    spectrogram = {
        "win_length": 1024,
        "hop_length": 480,
        "n_mels": 16,
    }
    spec = TensorSpec("input_features", "FP32", (1, 1, 20, 16))
    task = described_task(tmp_path, CLAP, spec, audio=audio, spectrogram=spectrogram)
    run = task.prepare(memoryview(wav(tone(0.1)))).runs[0]
    assert run["input_features"].shape == (1, 1, 20, 16)


def test_a_spectrogram_of_the_manifest_replaces_settings_of_the_extractor(
    tmp_path: Path,
) -> None:
    settings = {
        **CLAP,
        "padding_side": "left",
        "padding_value": -1.0,
    }
    spectrogram = {
        "win_length": 1024,
        "hop_length": 480,
        "n_mels": 16,
    }
    spec = TensorSpec("input_features", "FP32", (1, 1, 20, 16))
    task = described_task(tmp_path, settings, spec, spectrogram=spectrogram)
    assert task.name == "audio-classification"


@pytest.mark.parametrize(
    "shape",
    [
        (-1, 1, -1),
        (1, 1, 2400),
        (-1, -1),
    ],
    ids=str,
)
def test_the_rate_of_the_manifest_suffices_for_samples(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    task = described_task(
        tmp_path,
        ENCODEC,
        TensorSpec("input_values", "FP32", shape),
        audio={"sample_rate": 24000},
    )
    run = task.prepare(memoryview(wav(tone(0.1)))).runs[0]
    assert run["input_values"].shape == (1,) * (len(shape) - 1) + (2400,)


@pytest.mark.parametrize("key", ["padding_side", "padding_value", "dither"])
def test_the_rate_of_the_manifest_suffices_for_settings_of_padding(
    tmp_path: Path, key: str
) -> None:
    values = {
        "padding_side": "left",
        "padding_value": -1.0,
        "dither": 0.1,
    }
    settings = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        key: values[key],
    }
    task = described_task(tmp_path, settings, SAMPLES, audio={"sample_rate": 16000})
    assert task.name == "audio-classification"
    without = tmp_path / "without"
    without.mkdir()
    with pytest.raises(MetadataError, match=key):
        described_task(without, settings, SAMPLES)


@pytest.mark.parametrize(
    ("shape", "audio"),
    [
        ((-1, 1, 1001, 64), {"sample_rate": 48000}),
        ((-1, -1), {}),
    ],
    ids=("spectrogram", "no rate"),
)
def test_an_unsupported_extractor_is_named_if_the_manifest_leaves_a_gap(
    tmp_path: Path, shape: tuple[int, ...], audio: Any
) -> None:
    with pytest.raises(MetadataError, match="ClapFeatureExtractor"):
        described_task(
            tmp_path, CLAP, TensorSpec("input_features", "FP32", shape), audio=audio
        )


def test_the_rate_of_the_manifest_does_not_replace_a_supported_extractor(
    tmp_path: Path,
) -> None:
    settings = {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}
    task = described_task(tmp_path, settings, SAMPLES, audio={"sample_rate": 16000})
    run = task.prepare(memoryview(wav(tone(0.5) * 0.01))).runs[0]
    assert run["input_values"].var() == pytest.approx(1, abs=0.01)
