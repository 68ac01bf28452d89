"""Engines that are none of the formats' own: whoever asks for one is answered by its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT
from pocketserve.repository.manifest import parse_manifest
from pocketserve.repository.scan import scan
from pocketserve.repository.toml_table import ManifestError
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.engines import ENGINES, OtherEngine, engine_advice
from pocketserve.runtimes.onnx.native import provider_options
from pocketserve.runtimes.tflite.delegates import delegate_request
from pocketserve_lab.convert.converter import KINDS, ConversionError
from pocketserve_lab.convert.plan import check_kinds

EVERY = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.words[0])
PROVIDERS = {
    "openvino": "OpenVINO",
    "coreml": "CoreML",
    "tensorrt": "Tensorrt",
    "nnapi": "Nnapi",
}


@EVERY
def test_the_sentence_stands_in_the_documents_table(engine: OtherEngine) -> None:
    """Word for word."""
    assert f"| {engine.advice} |" in (ROOT / "docs" / "models.md").read_text()


@EVERY
def test_each_of_its_names_finds_it(engine: OtherEngine) -> None:
    """In any case, and as ONNX Runtime spells it; no other engine has the name."""
    for word in engine.words:
        assert (
            engine_advice(word)
            == engine_advice(word.upper())
            == engine_advice(1, f" {word}ExecutionProvider")
        )
        assert [other for other in ENGINES if word in other.words] == [engine]
    assert engine_advice("cpu", "xnnpack", None, 7) is None


@EVERY
def test_as_a_kind_to_convert_into(engine: OtherEngine) -> None:
    """What can be written is no error."""
    for word in engine.words:
        if word in KINDS:
            assert check_kinds(word) == [word]
            continue
        with pytest.raises(ConversionError) as caught:
            check_kinds(f"tflite,{word}")
        assert caught.value.message == f"{word!r} is no kind of file; {engine.advice}"


@EVERY
def test_in_a_manifest(engine: OtherEngine) -> None:
    """As the value of a key that there is not, as such a key, and as a delegate, which is a library."""
    word = engine.words[0]
    for document in ({"device": word}, {word: True}):
        with pytest.raises(ManifestError) as caught:
            parse_manifest(document)
        assert str(caught.value).endswith(f"; {engine.advice}")
    with pytest.raises(ModelLoadError) as refused:
        delegate_request(ModelSource(Path("m.tflite"), options={"delegate": word}))
    assert (
        str(refused.value)
        == f"the option delegate is a library, not {word!r}; {engine.advice}"
    )


@pytest.mark.onnx
@pytest.mark.parametrize("word", PROVIDERS)
def test_as_an_execution_provider(word: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where the package lacks it: an error if it is required, else a warning, and the CPU runs the model."""
    import onnxruntime

    from pocketserve.runtimes.onnx.session import RUNTIME

    name = f"{PROVIDERS[word]}ExecutionProvider"
    assert name not in onnxruntime.get_available_providers()
    source = ModelSource(
        ROOT / "models" / "digits" / "digits.onnx", options={"providers": [name]}
    )
    assert provider_options(source) == ([name], False)
    assert RUNTIME.open(source).device == "cpu"
    assert caplog.messages == [
        f"digits.onnx runs without {name}; {engine_advice(word)}"
    ]
    with pytest.raises(ModelLoadError) as caught:
        RUNTIME.open(source._replace(options={"providers": [name], "required": True}))
    assert str(caught.value).endswith(
        f"or remove required to run on the CPU; {engine_advice(word)}"
    )


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("m.engine", "was compiled by TensorRT"),
        ("m.plan", "was compiled by TensorRT"),
        ("m.mlpackage", "is a Core ML model"),
        ("m.xml", "is an OpenVINO model"),
    ],
)
def test_as_a_file_that_a_manifest_names(file: str, words: str, tmp_path: Path) -> None:
    """As where it lies by itself."""
    folder = tmp_path / "net"
    folder.mkdir()
    for name in (file, "m.bin"):
        (folder / name).write_bytes(b"content")
    (folder / "model.toml").write_text(f'[versions.v]\nfile = "{file}"\n')
    problem = str(scan(tmp_path)["net"].versions["v"].problem)
    assert problem.startswith(f"net/model.toml: versions.v.file: {file} {words}")
