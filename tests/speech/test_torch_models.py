"""Unconverted Whisper folders: the same answers as ONNX, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.repository.files import version_files
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.registry import runtime_for
from whisper_files import FIRST_TIME, START, TARGET_POSITIONS, TinyWhisper

pytestmark = pytest.mark.speech


def opened(folder: Path) -> Any:
    entry = Models(folder.parent)[folder.name]
    version = entry.versions[entry.default_version]
    assert version.problem is None
    session = runtime_for(version.format).open(ModelSource(path=version.path))
    session.try_out()
    return session


def test_torch_and_onnx_have_the_same_logits(tmp_path: Path) -> None:
    features = np.random.default_rng(0).standard_normal((1, 8, 200), np.float32)
    tokens = [START, FIRST_TIME, ord("a"), ord("b")]
    converted = opened(TinyWhisper().write(tmp_path / "converted"))
    session = opened(TinyWhisper().write_torch(tmp_path / "plain"))
    expected = converted.step(tokens, converted.encode(features)).logits
    encoded = session.encode(features)
    whole = session.step(tokens, encoded).logits
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    first = session.step(tokens[:1], encoded)
    np.testing.assert_allclose(
        session.step(tokens[1:], first.cache).logits, expected, atol=1e-5
    )
    again = session.step(tokens[1:], first.cache).logits  # the cache is unchanged
    np.testing.assert_allclose(again, expected, atol=1e-5)


def test_parts_of_weights_are_joined(tmp_path: Path) -> None:
    folder = TinyWhisper().write_torch(tmp_path / "parts", parts=3)
    version = Models(tmp_path)["parts"].versions["whisper-torch"]
    names = sorted(path.name for path in version_files(version))
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert names == ["config.json", *shards, "model.safetensors.index.json"]
    features = np.random.default_rng(0).standard_normal((1, 8, 200), np.float32)
    whole = opened(TinyWhisper().write_torch(tmp_path / "whole"))
    expected = whole.step([START], whole.encode(features)).logits
    session = opened(folder)
    logits = session.step([START], session.encode(features)).logits
    np.testing.assert_array_equal(logits, expected)


def test_faults_of_parts_are_named(tmp_path: Path) -> None:
    folder = TinyWhisper().write_torch(tmp_path / "parts", parts=2)
    first, second = sorted(folder.glob("model-*.safetensors"))
    content = second.read_bytes()
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelLoadError, match="an earlier part both have"):
        opened(folder)
    second.write_bytes(content[:-8])
    with pytest.raises(ModelLoadError, match="truncated"):
        opened(folder)
    second.unlink()
    with pytest.raises(ModelLoadError, match=f"no {second.name}, which"):
        opened(folder)


def test_onnx_files_of_a_folder_come_first(tmp_path: Path) -> None:
    folder = TinyWhisper().write(tmp_path / "tiny")
    TinyWhisper().write_torch(folder)
    entry = Models(tmp_path)["tiny"]
    assert sorted(entry.versions) == ["whisper", "whisper-torch"]
    assert entry.default_version == "whisper"
    names = {path.name for path in version_files(entry.versions["whisper-torch"])}
    assert names == {"model.safetensors", "config.json"}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("d_model", None, "d_model is not a whole number"),
        ("d_model", 64, r"conv1\.weight is \[32, 8, 3\]"),
        ("encoder_layers", 3, "is missing"),
        ("decoder_attention_heads", 5, "not a multiple"),
        ("vocab_size", 1 << 40, "vocab_size is not"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    folder = TinyWhisper().write_torch(tmp_path / "tiny")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config[key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=reason):
        opened(folder)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = TinyWhisper().write_torch(tmp_path / "tiny")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ModelLoadError, match="truncated"):
        opened(folder)


def test_a_text_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    session = opened(TinyWhisper().write_torch(tmp_path / "tiny"))
    encoded = session.encode(np.zeros((1, 8, 200), np.float32))
    with pytest.raises(RuntimeError, match="tokens"):
        session.step([START] * (TARGET_POSITIONS + 1), encoded)
