"""Whisper's ONNX files: what is recognised, and what damaged folders get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.files import version_files
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.registry import runtime_for
from pocketserve.tensors import Array
from sounds import wav
from whisper_files import (
    FIRST_TIME,
    START,
    TEXT,
    TinyWhisper,
)

pytestmark = pytest.mark.onnx
RATE = 16_000


def opened(folder: Path) -> tuple[Any, Any]:
    """Return a model's session and task."""
    entry = Models(folder.parent)[folder.name]
    version = entry.versions[entry.default_version]
    assert version.problem is None
    source = ModelSource(path=version.path)
    session = runtime_for(version.format).open(source)
    session.try_out()
    return session, set_up(entry, version, session, 1, source).task


def speech(seconds: float) -> Array:
    count = round(seconds * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    return 0.2 * noise * np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2


def transcribe(session: Any, model_task: Any, samples: Array, **values: Any) -> Any:
    prepared = model_task.prepare(memoryview(wav(samples[:, None])))
    options = model_task.read_options(values)
    return model_task.transcribe(session, prepared.context, options, lambda: None)


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "pair"])
def test_a_model_says_its_script(tmp_path: Path, merged: bool) -> None:
    session, task = opened(TinyWhisper().write(tmp_path / "tiny", merged=merged))
    transcript = transcribe(session, task, speech(1.5))
    assert transcript.text == TEXT.strip()
    assert transcript.language == "en"
    (segment,) = transcript.segments
    assert segment.end == 1.0


def test_merged_decoder_and_pair_have_the_same_logits(tmp_path: Path) -> None:
    tokens = [START, FIRST_TIME, ord("a"), ord("b")]
    features = np.random.default_rng(0).standard_normal((1, 8, 200), np.float32)
    logits = []
    for merged in (True, False):
        folder = TinyWhisper().write(tmp_path / f"tiny-{merged}", merged=merged)
        session, _ = opened(folder)
        encoded = session.encode(features)
        whole = session.step(tokens, encoded).logits
        step = session.step(tokens[:1], encoded)
        step = session.step(tokens[1:], step.cache)
        np.testing.assert_allclose(step.logits, whole, atol=1e-4)
        logits.append(whole)
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


def test_caches_stay_unchanged(tmp_path: Path) -> None:
    session, _ = opened(TinyWhisper().write(tmp_path / "tiny"))
    encoded = session.encode(np.zeros((1, 8, 200), np.float32))
    first = session.step([START], encoded)
    following = session.step([FIRST_TIME], first.cache).logits
    session.step([ord("a")], first.cache)
    again = session.step([FIRST_TIME], first.cache).logits
    np.testing.assert_array_equal(following, again)


def test_a_multilingual_model_detects_the_language(tmp_path: Path) -> None:
    session, task = opened(TinyWhisper(multilingual=True).write(tmp_path / "tiny"))
    transcript = transcribe(session, task, speech(1.5))
    assert transcript.language == "de"
    assert transcript.text == TEXT.strip()
    assert transcribe(session, task, speech(1.5), language="English").language == "en"
    translated = transcribe(session, task, speech(1.5), speech_task="translate")
    assert translated.task == "translate"


def test_a_prompt_comes_before_the_text(tmp_path: Path) -> None:
    session, task = opened(TinyWhisper().write(tmp_path / "tiny"))
    plain = transcribe(session, task, speech(1.5))
    prompted = transcribe(session, task, speech(1.5), prompt="ab")
    # The script is at fixed positions, which the prompt shifts.
    assert prompted.text != plain.text


def test_quantised_files_are_versions_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    model = TinyWhisper()
    model.write(folder)
    model.write_onnx(folder / "onnx", suffix="_int8")
    entry = Models(tmp_path)["tiny"]
    assert sorted(entry.versions) == ["whisper", "whisper-int8"]
    assert entry.default_version == "whisper"
    names = {path.name for path in version_files(entry.versions["whisper-int8"])}
    assert names == {"encoder_model_int8.onnx", "decoder_model_merged_int8.onnx"}


def test_other_encoders_are_plain_models(tmp_path: Path) -> None:
    folder = TinyWhisper().write(tmp_path / "tiny", merged=False)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    entry = Models(tmp_path)["tiny"]
    assert {version.format.name for version in entry.versions.values()} == {"onnx"}
    assert len(entry.versions) == 3


def test_a_missing_decoder_is_named(tmp_path: Path) -> None:
    folder = TinyWhisper().write(tmp_path / "tiny", merged=False)
    (folder / "onnx" / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(
        ModelLoadError, match=r"decoder_with_past_model\.onnx is missing"
    ):
        opened(folder)


def test_an_unrelated_decoder_is_refused(tmp_path: Path) -> None:
    folder = TinyWhisper().write(tmp_path / "tiny")
    encoder = folder / "onnx" / "encoder_model.onnx"
    (folder / "onnx" / "decoder_model_merged.onnx").write_bytes(encoder.read_bytes())
    with pytest.raises(ModelLoadError, match="unlike Whisper's exports"):
        opened(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = TinyWhisper().write(tmp_path / "tiny")
    (folder / name).unlink()
    if name == "config.json":
        # Without it, nothing shows that the files belong together.
        assert "whisper" not in Models(tmp_path)["tiny"].versions
        return
    with pytest.raises(ModelLoadError, match=name):
        opened(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", None),
        ("vocab_size", "many"),
        ("eos_token_id", 1 << 30),
        ("no_timestamps_token_id", None),
        ("suppress_tokens", [1 << 30]),
        ("suppress_tokens", {"a": 1}),
        ("lang_to_id", {"<|en|>": -1}),
        ("max_initial_timestamp_index", "late"),
    ],
)
def test_an_invalid_key_is_named(tmp_path: Path, key: str, value: Any) -> None:
    model = TinyWhisper(multilingual=True)
    folder = model.write(tmp_path / "tiny")
    model.write_settings(folder, **{key: value})
    with pytest.raises(ModelLoadError, match=key):
        opened(folder)


@pytest.mark.parametrize(
    "content",
    ["[]", '{"model": {}}', '{"model": {"vocab": {"a": 9999999}, "merges": []}}'],
)
def test_an_invalid_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    folder = TinyWhisper().write(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        opened(folder)


def test_the_manifest_sets_defaults(tmp_path: Path) -> None:
    folder = TinyWhisper(multilingual=True).write(tmp_path / "tiny")
    (folder / "model.toml").write_text(
        '[speech]\nlanguage = "de"\ntask = "translate"\n'
    )
    _, task = opened(folder)
    options = task.read_options({})
    assert (options.language, options.task) == ("de", "translate")
    (folder / "model.toml").write_text('[speech]\nlanguage = "fr"\n')
    with pytest.raises(ModelLoadError, match="language must be one of en, de"):
        opened(folder)
