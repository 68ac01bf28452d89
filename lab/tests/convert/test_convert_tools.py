"""Measure the accuracy of real conversions, and convert public models (``make
test-convert``).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from places import MODELS, ROOT
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.registry import format_named, runtime_for
from pocketserve.runtimes.tfjs.packages import MODULES_VARIABLE
from pocketserve.tensors import Array
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.environments import FOLDER_VARIABLE
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter

pytestmark = pytest.mark.convert

MAX_LOSS = 0.005
"""The allowed loss of accuracy on the digits."""


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the environments' folder: the project's, or the variable's."""
    monkeypatch.setenv(
        FOLDER_VARIABLE, os.environ.get(FOLDER_VARIABLE) or str(ROOT / ".converters")
    )
    # `make test-convert` makes it.
    monkeypatch.setenv(MODULES_VARIABLE, str(ROOT / ".venv-all" / "tfjs"))


def converted(models: Path, model: str, kind: str, **settings: object) -> Conversion:
    """Return the new version of a model."""
    chosen = ConversionSettings(
        models, models.parent / "state", limits=ProcessLimits(1800.0), **settings
    )
    converter = ModelConverter(
        scan(models)[model], chosen, lambda title, share: None, print
    )
    try:
        return converter.convert(kind)
    finally:
        converter.close()


def digits() -> tuple[Array, Array, Array, Array]:
    """Return pictures and labels to calibrate with, and others to measure with."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = (data.images / 16).astype(np.float32)[..., None]
    seen, unseen, seen_labels, labels = train_test_split(
        images, data.target, test_size=0.25, random_state=0, stratify=data.target
    )
    return seen, seen_labels, unseen, labels


def accuracy(path: Path, kind: str, images: Array, labels: Array) -> float:
    """Return a file's share of right answers, one picture at a time."""
    format = format_named(kind)
    assert format is not None
    session = runtime_for(format).open(ModelSource(path))
    name = session.inputs[0].name
    best = [
        int(next(iter(session.run({name: images[i : i + 1]}).values())).argmax())
        for i in range(len(images))
    ]
    return float((np.array(best) == labels).mean())


@pytest.mark.parametrize(
    ("source", "kind", "quantize", "share"),
    [
        ("tflite", "tflite", "int8", 0.35),
        ("tflite", "tflite", "int16x8", 0.35),
        ("torch", "tflite", "int8", 0.35),
        ("keras", "tflite", "int8", 0.30),
        ("onnx", "onnx", "int8", 0.40),
        ("onnx", "onnx", "dynamic", 0.35),
        ("onnx", "onnx", "fp16", 0.55),
    ],
)
def test_the_digits_keep_their_accuracy(
    tmp_path: Path, source: str, kind: str, quantize: str, share: float
):
    seen, _, unseen, labels = digits()
    shutil.copytree(MODELS / "digits", tmp_path / "models" / "digits")
    np.savez(tmp_path / "seen.npz", image=seen[:200])
    settings = {
        "quantize": quantize,
        "version": source,
        "samples": tmp_path / "seen.npz",
    }
    conversion = converted(tmp_path / "models", "digits", kind, **settings)
    assert conversion.result_bytes < share * conversion.source_bytes
    before = accuracy(MODELS / "digits" / "digits.tflite", "tflite", unseen, labels)
    assert accuracy(conversion.path, kind, unseen, labels) >= before - MAX_LOSS


TEN_WEIGHTS = [
    ("torch", "int8"),
    ("torch", "dynamic"),
    ("keras", "fp16"),
    ("keras", "int8"),
    ("tflite", "int8"),
]


@pytest.mark.parametrize(("source", "quantize"), TEN_WEIGHTS)
def test_ten_weights_do_not_become_smaller(tmp_path: Path, source: str, quantize: str):
    """Quantisation data takes more than it saves, compared with the float file."""
    from sklearn.datasets import load_diabetes

    shutil.copytree(MODELS / "diabetes", tmp_path / "models" / "diabetes")
    before = sorted(tmp_path.joinpath("models").rglob("*"))
    np.savez(
        tmp_path / "rows.npz",
        features=load_diabetes(scaled=False).data.astype(np.float32),
    )
    settings = {
        "quantize": quantize,
        "version": source,
        "samples": tmp_path / "rows.npz",
    }
    with pytest.raises(
        ConversionError, match=r"^\S+ would not become smaller; use it "
    ):
        converted(tmp_path / "models", "diabetes", "tflite", **settings)
    assert sorted(tmp_path.joinpath("models").rglob("*")) == before


@pytest.mark.assets
@pytest.mark.parametrize(
    ("file", "kind", "quantize", "refusal"),
    [
        ("keras/fer_emotion.hdf5", "tflite", "none", ""),
        ("keras/fer_emotion.hdf5", "onnx", "none", ""),
        ("keras/fer_emotion.hdf5", "tfjs", "none", ""),
        ("onnx/mnist.onnx", "tflite", "none", ""),
        ("onnx/ppocr_v2_cls.onnx", "onnx", "dynamic", ""),
        ("tflite/mobilenet_v1_0.25_224_float_metadata.tflite", "onnx", "none", ""),
        (
            "tflite/yamnet_audio_classifier_with_metadata.tflite",
            "onnx",
            "none",
            "answers differently from the original",
        ),
        ("onnx/basic_pitch_nmp.onnx", "onnx", "dynamic", "would not become smaller"),
        (
            "tflite/mobilenet_v1_0.25_224_quant.tflite",
            "tflite",
            "dynamic",
            "would not become smaller|is quantised",
        ),
    ],
)
def test_public_models(
    tmp_path: Path, assets: Path, file: str, kind: str, quantize: str, refusal: str
):
    models = tmp_path / "models"
    models.mkdir()
    source = assets / "models" / file
    shutil.copyfile(source, models / source.name)
    (name,) = scan(models)
    if refusal:
        with pytest.raises(ConversionError, match=refusal):
            converted(models, name, kind, quantize=quantize)
        assert [path.name for path in models.iterdir()] == [source.name]
    else:
        conversion = converted(models, name, kind, quantize=quantize)
        assert conversion.agreement is not None
        assert conversion.path.exists()


@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "key", "shape"),
    [
        ("mnist", "Input3", (16, 1, 28, 28)),
        ("ppocr_v2_cls", "x", (8, 3, 48, 192)),
    ],
)
def test_public_onnx_files_of_old_releases(
    tmp_path: Path, assets: Path, name: str, key: str, shape: tuple[int, ...]
):
    """Their operators lack per-channel scales, so newer ones are written."""
    (tmp_path / "models").mkdir()
    shutil.copyfile(
        assets / "models" / "onnx" / f"{name}.onnx",
        tmp_path / "models" / f"{name}.onnx",
    )
    np.savez(
        tmp_path / "rows.npz",
        **{key: np.random.default_rng(0).random(shape, dtype=np.float32)},
    )
    conversion = converted(
        tmp_path / "models",
        name,
        "onnx",
        quantize="int8",
        samples=tmp_path / "rows.npz",
    )
    assert conversion.agreement is not None
    assert conversion.result_bytes < 0.65 * conversion.source_bytes
