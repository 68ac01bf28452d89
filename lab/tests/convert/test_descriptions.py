"""Carry labels and preprocessing from a TFLite file to its ONNX conversion."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from places import MODELS, ROOT
from pocketserve.cli import main
from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffer_tree import FlatNode, FlatVector, write_tree
from pocketserve.repository.scan import scan
from pocketserve.runtimes.metadata_parts import FileType, Normalization
from pocketserve.runtimes.onnx import description as onnx_description
from pocketserve.runtimes.tflite import description as tflite_description
from pocketserve_lab.convert import tflite_model
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.descriptions import carry_description
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter

pytestmark = pytest.mark.onnx

STAND_IN = Converter("stand-in", ("tflite",), "onnx", "convert.test_descriptions")
LABELS = [f"the digit {number}" for number in range(10)]


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Imitate a tool: the same ONNX network with an option's metadata only."""
    model = onnx.load(MODELS / "digits" / "digits.onnx")
    del model.metadata_props[:]
    for name, text in request.options.items():
        model.metadata_props.add(key=name, value=text)
    onnx.save(model, request.output)
    return ConversionOutcome("stand-in", "1")


def node(
    *,
    numbers: dict[int, tuple[str, int]] | None = None,
    **children: FlatNode | list[FlatNode] | FlatVector,
):
    """Return a table with these fields: ``_3=…`` is field 3."""
    table = FlatNode()
    for index, (kind, value) in (numbers or {}).items():
        table.set_number(index, kind, value)
    for name, child in children.items():
        table.set_child(int(name[1:]), child)
    return table


def floats(value: float) -> FlatVector:
    return FlatVector(np.array([value], "<f4").tobytes(), 4)


def description(std: float) -> bytes:
    """Return a picture classifier's metadata as TFLite's library writes it."""
    options = node(_0=floats(0.0), _1=floats(std))
    content = node(numbers={0: ("B", 2)}, _1=node())  # a picture
    image = node(_3=content, _4=[node(numbers={0: ("B", 1)}, _1=options)])
    labels = node(
        numbers={2: ("b", int(FileType.TENSOR_AXIS_LABELS))},
        _0=FlatVector(b"labels.txt"),
    )
    file = io.BytesIO()
    write_tree(node(_3=[node(_2=[image], _3=[node(_6=[labels])])]), b"M001", file)
    return file.getvalue()


def described_digits(path: Path, std: float = 255.0) -> None:
    """Write the digits as a self-describing file."""
    model = tflite_model.read_tflite_model(MODELS / "digits" / "digits.tflite")
    buffers = model.nodes(4)
    buffers.append(node(_0=FlatVector(description(std), 1, 16)))
    entry = node(
        numbers={1: ("I", len(buffers) - 1)}, _0=FlatVector(b"TFLITE_METADATA")
    )
    model.set_child(6, [entry])
    with path.open("wb") as file:
        write_tree(model, tflite_model.IDENTIFIER, file)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "\n".join(LABELS))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a models folder with that file.

    The file alone reveals the task only if its pictures are larger.
    """
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tests"))
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "models" / "numbers"
    folder.mkdir(parents=True)
    described_digits(folder / "numbers.tflite")
    (folder / "model.toml").write_text('task = "image-classification"\n')
    return tmp_path / "models"


def converted(models: Path, **options: str) -> Conversion:
    settings = ConversionSettings(
        models,
        models.parent / "state",
        samples=MODELS / "digits" / "samples",
        options=options,
    )
    converter = ModelConverter(
        scan(models)["numbers"], settings, lambda title, share: None, print, [STAND_IN]
    )
    try:
        return converter.convert("onnx")
    finally:
        converter.close()


def answer(
    models: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, object]]:
    picture = str(MODELS / "digits" / "samples" / "7.png")
    words = [
        "predict",
        "--local",
        "numbers",
        "--models-dir",
        str(models),
        "--version",
        version,
        "--json",
        picture,
    ]
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)["predictions"]


def test_labels_of_a_file_are_converted(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ONNX file gives the same labels after the same preprocessing."""
    conversion = converted(models)
    assert conversion.version == "onnx"
    assert conversion.agreement is not None
    assert conversion.agreement.same_class == 1.0
    assert conversion.agreement.error < 1e-4
    before, after = (answer(models, version, capsys) for version in ("tflite", "onnx"))
    assert [entry["label"] for entry in before] == [entry["label"] for entry in after]
    assert str(before[0]["label"]).startswith("the digit ")
    metadata = onnx_description.read_onnx_metadata(conversion.path)
    assert metadata == tflite_description.read_metadata(
        models / "numbers" / "numbers.tflite"
    )
    assert metadata is not None
    assert metadata.inputs[0].normalization == Normalization((0.0,), (255.0,))


def test_a_result_with_other_preprocessing_is_refused(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It agrees on arrays, but would answer differently to pictures."""
    import base64

    before = sorted(models.rglob("*"))
    for change, words in (
        ({"TFLITE_METADATA": description(16.0)}, "it prepares a sample differently"),
        ({"TFLITE_METADATA/labels.txt": b"x\n" * 10}, "its labels differ"),
        (
            {"TFLITE_METADATA/labels.txt": "\n".join(LABELS[1:]).encode()},
            "it has 9 labels, and the original 10",
        ),
    ):
        options = {
            name: base64.b64encode(content).decode() for name, content in change.items()
        }
        with pytest.raises(
            ConversionError,
            match=rf"^the result does not take the original's requests: {words}; declare",
        ):
            converted(models, **options)
    monkeypatch.setattr(
        "pocketserve_lab.convert.run.carry_description", lambda *arguments: None
    )
    with pytest.raises(
        ConversionError, match="it has 0 labels, and the original 10; declare"
    ):
        converted(models)
    assert sorted(models.rglob("*")) == before


def test_onnx_metadata_goes_to_tflite_and_back(tmp_path: Path) -> None:
    """The format is Ultralytics'; existing metadata is kept."""
    first, lite, last = (tmp_path / name for name in ("a.onnx", "b.tflite", "c.onnx"))
    model = onnx.load(MODELS / "digits" / "digits.onnx")
    del model.metadata_props[:]
    onnx.save(model, last)
    model.metadata_props.add(key="names", value="{0: 'größe'}")
    onnx.save(model, first)
    shutil.copyfile(MODELS / "digits" / "digits.tflite", lite)
    carry_description(first, "onnx", lite, "tflite")
    assert tflite_description.read_properties(lite) == {"names": "{0: 'größe'}"}
    carry_description(lite, "tflite", last, "onnx")
    assert onnx_description.read_onnx_texts(last) == {"names": "{0: 'größe'}"}
    assert {entry.key: entry.value for entry in onnx.load(last).metadata_props} == {
        "names": "{0: 'größe'}"
    }
    size = last.stat().st_size
    carry_description(first, "onnx", last, "onnx")
    assert last.stat().st_size == size


@pytest.mark.parametrize("text", ["not base64", "####", "A" * 5_000_000, ""])
def test_other_texts_are_not_metadata(text: str, tmp_path: Path) -> None:
    model = onnx.load(MODELS / "digits" / "digits.onnx")
    model.metadata_props.add(key="TFLITE_METADATA", value=text)
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(DamagedFileError):
        onnx_description.read_onnx_metadata(tmp_path / "odd.onnx")
    with pytest.raises(DamagedFileError, match=r"has no file 'labels\.txt' in it"):
        onnx_description.read_carried_files(tmp_path / "odd.onnx", ["labels.txt"], 100)
