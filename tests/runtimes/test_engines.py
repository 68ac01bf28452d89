"""Explain why other engines aren't available, wherever a user names one."""

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
def test_each_name_finds_its_engine(engine: OtherEngine) -> None:
    """Names match in any case and in ONNX Runtime's spelling; none has two engines."""
    for word in engine.words:
        assert (
            engine_advice(word)
            == engine_advice(word.upper())
            == engine_advice(1, f" {word}ExecutionProvider")
        )
        assert [other for other in ENGINES if word in other.words] == [engine]
    assert engine_advice("cpu", "xnnpack", None, 7) is None


@EVERY
def test_converting_to_another_engine_is_explained(engine: OtherEngine) -> None:
    """Formats that can be written are not refused."""
    for word in engine.words:
        if word in KINDS:
            assert check_kinds(word) == [word]
            continue
        with pytest.raises(ConversionError) as caught:
            check_kinds(f"tflite,{word}")
        assert (
            caught.value.message == f"{word!r} is not a kind of file; {engine.advice}"
        )


@EVERY
def test_a_manifest_that_names_another_engine_is_explained(engine: OtherEngine) -> None:
    """The name may be an unknown key, the value of one, or a delegate."""
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
def test_an_execution_provider_of_another_engine_is_explained(
    word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the provider a required one is an error; an optional one warns, and the
    CPU is used.
    """
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
def test_a_file_of_another_engine_in_a_manifest_is_explained(
    file: str, words: str, tmp_path: Path
) -> None:
    """The explanation is the same as for a file without a manifest."""
    folder = tmp_path / "net"
    folder.mkdir()
    for name in (file, "m.bin"):
        (folder / name).write_bytes(b"content")
    (folder / "model.toml").write_text(f'[versions.v]\nfile = "{file}"\n')
    problem = str(scan(tmp_path)["net"].versions["v"].problem)
    assert problem.startswith(f"net/model.toml: versions.v.file: {file} {words}")
