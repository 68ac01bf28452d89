"""List the sound classifiers of transformers to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from families.text_reference import TRANSFORMERS, Family, export, import_torchvision

RATE = 16_000


@dataclass(frozen=True)
class SoundModel:
    """A tiny random sound classifier of transformers.

    Attributes:
        config: the name of its configuration class without ``Config``.
        extractor: the name of its feature extractor's class without ``FeatureExtractor``.
        options: arguments of the configuration.
        extracting: arguments of the feature extractor.
        mask: whether the model has an attention mask.
        input: the name of its input.
    """

    config: str
    extractor: str = "Wav2Vec2"
    options: Mapping[str, Any] = field(default_factory=dict)
    extracting: Mapping[str, Any] = field(default_factory=dict)
    mask: bool = False
    input: str = "input_values"


TINY = {
    **{
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "num_labels": 3,
    },
    **{
        "conv_dim": (16, 16, 16),
        "conv_stride": (5, 4, 4),
        "conv_kernel": (10, 4, 4),
        "num_feat_extract_layers": 3,
    },
    **{
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "classifier_proj_size": 16,
    },
}
LAYER_NORM = {
    **TINY,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}

MODELS: dict[str, SoundModel] = {
    "Wav2Vec2": SoundModel("Wav2Vec2", options=TINY),
    "Wav2Vec2, attention mask": SoundModel(
        "Wav2Vec2",
        options=LAYER_NORM,
        extracting={"return_attention_mask": True},
        mask=True,
    ),
    "Wav2Vec2, not normalised": SoundModel(
        "Wav2Vec2", options=TINY, extracting={"do_normalize": False}
    ),
    "Wav2Vec2, several labels": SoundModel(
        "Wav2Vec2", options={**TINY, "problem_type": "multi_label_classification"}
    ),
    "HuBERT": SoundModel("Hubert", options=TINY),
    "WavLM": SoundModel("WavLM", options=TINY),
    "SEW": SoundModel("SEW", options={**TINY, "squeeze_factor": 2}),
    "UniSpeech": SoundModel("UniSpeech", options=TINY),
    "UniSpeechSat": SoundModel("UniSpeechSat", options=TINY),
    "Data2VecAudio": SoundModel(
        "Data2VecAudio", options={**TINY, "conv_pos_kernel_size": 5}
    ),
    "AST": SoundModel(
        "AST",
        "AST",
        {
            **{
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 48,
            },
            **{"num_labels": 3, "max_length": 64, "num_mel_bins": 32, "patch_size": 16},
        },
        {"max_length": 64, "num_mel_bins": 32},
    ),
    "Whisper": SoundModel(
        "Whisper",
        "Whisper",
        {
            **{
                "d_model": 32,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 48,
            },
            **{
                "decoder_layers": 1,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 48,
                "vocab_size": 200,
            },
            **{
                "num_labels": 3,
                "num_mel_bins": 16,
                "max_source_positions": 50,
                "pad_token_id": 0,
            },
            **{
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
                "classifier_proj_size": 16,
            },
        },
        {"feature_size": 16, "chunk_length": 1},
        input="input_features",
    ),
}

FAMILIES = [Family(name, TRANSFORMERS, "audio-classification") for name in MODELS]


def sounds() -> list[Any]:
    """Return five float32 sounds at the models' rate, in 16-bit steps."""
    import numpy as np

    random = np.random.default_rng(5)
    times = np.arange(RATE) / RATE
    tones = [
        0.3 * np.sin(2 * np.pi * 440 * times),
        0.01 * np.sin(2 * np.pi * 1200 * times[:9000]),
    ]
    noises = [
        random.normal(0, 0.1, RATE // 2),
        random.normal(0.05, 0.02, 7000),
        random.normal(0, 0.2, 14_000),
    ]
    steps = [
        np.rint(np.clip(sound, -1, 1) * 32767).astype(np.int16)
        for sound in (*tones, *noises)
    ]
    return [step.astype(np.float32) / 32768 for step in steps]


def wav_of(samples: Any) -> bytes:
    """Return a 16-bit WAV file."""
    import io
    import wave

    import numpy as np

    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(np.rint(samples * 32768).astype("<i2").tobytes())
    return file.getvalue()


def write_sound_classifier(spec: SoundModel, folder: Path) -> Any:
    """Write a tiny classifier with its files; return the library's pipeline."""
    import torch
    import transformers

    import_torchvision()
    torch.manual_seed(0)
    extractor = getattr(transformers, f"{spec.extractor}FeatureExtractor")(
        **spec.extracting
    )
    config = getattr(transformers, f"{spec.config}Config")(**spec.options)
    model = transformers.AutoModelForAudioClassification.from_config(
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():  # so that different sounds get different answers
        head = model.classifier.dense if spec.config == "AST" else model.classifier
        head.weight.mul_(50)
    folder.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    extractor.save_pretrained(folder)
    example = extractor(sounds()[0], sampling_rate=RATE, return_tensors="pt")
    names = [spec.input, *(["attention_mask"] if spec.mask else [])]
    fixed = spec.extractor != "Wav2Vec2"
    export(
        model,
        {name: example[name] for name in names},
        ["logits"],
        folder / "model.onnx",
        fixed=fixed,
    )
    return transformers.pipeline(
        "audio-classification", model=model, feature_extractor=extractor, device="cpu"
    )
