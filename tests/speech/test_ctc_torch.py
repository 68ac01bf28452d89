"""Unconverted wav2vec2 and HuBERT folders: the logits of transformers, and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.files import version_files
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.registry import runtime_for
from sounds import wav

pytestmark = pytest.mark.speech
RATE = 16_000
LETTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", "A", "B", "C")
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": len(LETTERS),
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 4, 4),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
LARGE = {
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
    "num_conv_pos_embeddings": 15,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2": ("Wav2Vec2", {}),
    "wav2vec2-large": ("Wav2Vec2", LARGE),
    "hubert": ("Hubert", {}),
    "hubert-large": ("Hubert", {**LARGE, "feat_proj_layer_norm": False}),
}


def write(folder: Path, kind: str, shard: str = "5GB") -> Any:
    """Save a small random model; return the network of transformers."""
    import torch
    import transformers

    class_name, changes = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{class_name}Config")(**{**TINY, **changes})
    network = getattr(transformers, f"{class_name}ForCTC")(config).eval()
    with torch.no_grad():
        for name, values in network.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # else 0 or 1
                values += 0.1 * torch.randn_like(values)
    network.save_pretrained(folder, max_shard_size=shard)
    front = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": RATE,
        "do_normalize": True,
    }
    files = {
        "vocab": {letter: place for place, letter in enumerate(LETTERS)},
        "preprocessor_config": front,
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return network


def opened(folder: Path) -> tuple[Any, Any]:
    """Return the session and its task."""
    entry = Models(folder.parent)[folder.name]
    version = entry.versions["ctc-torch"]
    source = ModelSource(path=version.path)
    session: Any = runtime_for(version.format).open(source)
    session.try_out()
    return session, set_up(entry, version, session, 1, source).task


def samples(seconds: float = 1) -> Any:
    random = np.random.default_rng(0)
    return random.standard_normal((1, round(seconds * RATE)), np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    import torch

    network = write(tmp_path / "tiny", kind)
    session, _ = opened(tmp_path / "tiny")
    for seconds in (1, 0.05):
        sound = samples(seconds)
        with torch.inference_mode():
            expected = network(torch.from_numpy(sound)).logits.numpy()
        logits = session.run({"input_values": sound})["logits"]
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_parts_of_weights_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "whole", "hubert")
    write(tmp_path / "parts", "hubert", "30KB")
    version = Models(tmp_path)["parts"].versions["ctc-torch"]
    names = sorted(path.name for path in version_files(version))
    assert names[0] == "config.json"
    assert names[-1] == "model.safetensors.index.json"
    assert len(names) > 3
    sound = {"input_values": samples()}
    whole, _ = opened(tmp_path / "whole")
    parts, task = opened(tmp_path / "parts")
    np.testing.assert_array_equal(
        parts.run(sound)["logits"], whole.run(sound)["logits"]
    )
    assert task.name == "speech-to-text"


def test_a_sound_becomes_the_letters_of_its_frames(tmp_path: Path) -> None:
    write(tmp_path / "tiny", "wav2vec2")
    session, task = opened(tmp_path / "tiny")
    louder = np.linspace(0.1, 0.5, 3 * RATE)[:, None]
    prepared = task.prepare(memoryview(wav(louder * samples(3).T)))
    options = task.read_options({})
    transcript = task.transcribe(session, prepared.context, options, lambda: None)
    assert set(transcript.text) <= set("ABC ")
    assert transcript.seconds == 3


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("add_adapter", True, "add_adapter is true, .* ONNX"),
        ("hidden_act", "relu", 'hidden_act is "relu"'),
        ("hidden_size", 30, "not a multiple"),
        ("hidden_size", 64, r"is \[16\], but|but config.json says"),
        ("conv_stride", [5, 4], "different lengths"),
        ("conv_stride", [1024, 1024, 1024], "samples for a frame"),
        ("conv_kernel", [10, 4, 0], "outside 1 to"),
        ("conv_dim", 16, "no list"),
        ("feat_extract_norm", "batch", "neither group nor layer"),
        ("conv_bias", "no", "neither true nor false"),
        ("layer_norm_eps", 0, "not a number between"),
        ("num_hidden_layers", 3, "is missing"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    write(tmp_path / "tiny", "wav2vec2")
    path = tmp_path / "tiny" / "config.json"
    config = json.loads(path.read_text())
    config[key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=reason):
        opened(tmp_path / "tiny")


def test_a_closed_session_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tiny", "wav2vec2")
    session, _ = opened(tmp_path / "tiny")
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({"input_values": samples()})
