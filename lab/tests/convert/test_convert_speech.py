"""Whisper's weights become ONNX that answers like them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.registry import runtime_for
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.run import ConversionSettings
from pocketserve_lab.convert.speech import tool
from pocketserve_lab.convert.speech.run import SpeechConverter, speech_source
from sounds import wav
from whisper_files import FIRST_TIME, START, TEXT, TinyWhisper

pytestmark = pytest.mark.speech
RATE = 16_000


def swelling_sound(seconds: float) -> bytes:
    count = round(seconds * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    swell = np.sin(np.arange(count) / RATE * np.pi * 4) ** 2
    return wav((0.2 * noise * swell)[:, None])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    TinyWhisper().write_torch(tmp_path / "models" / "tiny", parts=2)
    return tmp_path / "models"


def convert(models: Path, *, quantize: str = "none", **settings: Any) -> Any:
    state = models.parent / "state"
    state.mkdir(exist_ok=True)
    options = ConversionSettings(models, state, quantize=quantize, **settings)
    entry = Models(models)["tiny"]
    converter = SpeechConverter(entry, options, lambda *_: None, lambda _: None)
    try:
        return converter.convert("onnx")
    finally:
        converter.close()


def opened(models: Path, name: str) -> tuple[Any, Any]:
    entry = Models(models)["tiny"]
    version = entry.versions[name]
    assert version.problem is None
    source = ModelSource(path=version.path)
    session: Any = runtime_for(version.format).open(source)
    session.try_out()
    return session, set_up(entry, version, session, 1, source).task


def test_the_new_version_has_the_same_logits_and_text(models: Path) -> None:
    conversion = convert(models)
    assert conversion.version == "onnx"
    assert conversion.agreement.error < 1e-5
    assert conversion.random
    entry = Models(models)["tiny"]
    assert entry.default_version == "whisper-torch"
    assert entry.versions["onnx"].format.name == "whisper"
    features = np.random.default_rng(1).standard_normal((1, 8, 200), np.float32)
    tokens = [START, FIRST_TIME, ord("a"), ord("b")]
    original, _ = opened(models, "whisper-torch")
    session, task = opened(models, "onnx")
    expected = original.step(tokens, original.encode(features)).logits
    first = session.step(tokens[:2], session.encode(features))
    logits = session.step(tokens[2:], first.cache).logits
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    prepared = task.prepare(memoryview(swelling_sound(2)))
    options = task.read_options({})
    transcript = task.transcribe(session, prepared.context, options, lambda: None)
    assert TEXT in f" {transcript.text}"


def test_int8_is_smaller_and_replaces_an_earlier_one(
    models: Path, tmp_path: Path
) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    (samples / "a.wav").write_bytes(swelling_sound(2))
    whole = convert(models)
    for _ in range(2):
        small = convert(models, quantize="dynamic", samples=samples)
        assert small.version == "onnx-dynamic"
    assert small.agreement.samples == 1
    assert not small.random
    assert small.result_bytes < whole.result_bytes
    session, _ = opened(models, "onnx-dynamic")
    assert session.runtime.startswith("onnxruntime")
    versions = sorted(Models(models)["tiny"].versions)
    assert versions == ["onnx", "onnx-dynamic", "whisper-torch"]


def test_a_result_that_answers_otherwise_is_not_published(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = models.parent / "out"
    output.mkdir()
    source = models / "tiny" / "model.safetensors.index.json"
    for file in source.parent.glob("*.json"):
        if file != source:
            (output / file.name).write_text(file.read_text())
    document = {
        "source": str(source),
        "output": str(output),
        "quantize": "none",
        "samples": [],
    }
    assert tool.convert(document)["error"] < 1e-5
    monkeypatch.setitem(tool.MAX_ERRORS, "none", 0.0)
    with pytest.raises(ConversionError, match="logits differ by"):
        tool.convert(document)


@pytest.mark.parametrize(
    ("kind", "quantize"), [("tflite", "none"), ("onnx", "int8"), ("onnx", "fp16")]
)
def test_other_kinds_are_refused(models: Path, kind: str, quantize: str) -> None:
    state = models.parent / "state"
    state.mkdir()
    settings = ConversionSettings(models, state, quantize=quantize)
    entry = Models(models)["tiny"]
    converter = SpeechConverter(entry, settings, lambda *_: None, lambda _: None)
    with pytest.raises(ConversionError, match="can only become ONNX"):
        converter.convert(kind)
    converter.close()


def test_only_whispers_weights_are_a_speech_source(models: Path) -> None:
    entry = Models(models)["tiny"]
    assert speech_source(entry, None) == entry.versions["whisper-torch"]
    convert(models)
    entry = Models(models)["tiny"]
    assert speech_source(entry, "onnx") is None


def test_a_folder_in_the_way_is_kept(models: Path) -> None:
    (models / "tiny" / "onnx").mkdir()
    (models / "tiny" / "onnx" / "notes.json").write_text(json.dumps({}))
    with pytest.raises(ConversionError, match="--name"):
        convert(models)
    assert convert(models, name="small").version == "small"


def test_the_samples_folder_is_no_version(models: Path) -> None:
    with pytest.raises(ConversionError, match="model's samples"):
        convert(models, name="samples")


def test_sounds_with_a_table_of_transcripts_are_compared(
    models: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.wav").write_bytes(swelling_sound(2))
    (data / "words.csv").write_text("file,truth\na.wav,hello\n")
    assert convert(models, samples=data).agreement.samples == 1
    (data / "b.bin").write_text("hello")
    with pytest.raises(ConversionError, match=r"the sample 'b\.bin'"):
        convert(models, samples=data, name="again")


def test_no_matrix_of_an_int8_decoder_is_left_in_floats(models: Path) -> None:
    onnx = pytest.importorskip("onnx")
    convert(models, quantize="dynamic")
    file = models / "tiny" / "onnx-dynamic" / "decoder_model_merged.onnx"
    floats = []
    for name, size in matrices(onnx.load(file).graph):
        if size and "embed" not in name:
            floats.append(name)
    assert floats == []


def matrices(graph: Any) -> list[tuple[str, bool]]:
    """Return the matrices of a graph and its branches, and whether each has floats."""
    found = []
    for tensor in graph.initializer:
        if len(tensor.dims) == 2:
            found.append((tensor.name, tensor.data_type == 1))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += matrices(attribute.g)
    return found
