"""Exports of Teachable Machine answer right after ``pocketserve add``."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

pytestmark = [
    pytest.mark.tensorflow,
    # Keras warns about its older format when a test writes one.
    pytest.mark.filterwarnings("ignore"),
]

SIDE = 32
LABELS = ("Class 1", "Class 2", "Class 3")
NUMBERED = "".join(f"{number} {label}\n" for number, label in enumerate(LABELS))
WEIGHTS = np.array(
    [
        [3.0, -1, 0],
        [-2, 4, 0],
        [0, -3, 2],
    ],
    np.float32,
)
COLOUR = (250, 40, 90)
WIDE = (96, 48)
"""The (width, height) of a picture with differently coloured sides.

The model sees only its middle.
"""

Files = Mapping[str, bytes]


def expected(middle: float) -> dict[str, float]:
    """Return scores by label for the mean colour, with pixels from -1 to 1."""
    values = np.array(COLOUR) / middle - 1
    powers = np.exp(values @ WEIGHTS.astype(np.float64))
    return dict(zip(LABELS, (powers / powers.sum()).tolist(), strict=True))


def photo(path: Path) -> Path:
    """Write a picture of one colour with black sides."""
    image = Image.new("RGB", WIDE)
    image.paste(COLOUR, (24, 0, 72, 48))
    image.save(path)
    return path


def keras_model() -> Any:
    """Return the network shared by all three exports."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, activation="softmax", use_bias=False),
        ]
    )
    model.layers[-1].set_weights([WEIGHTS])
    return model


def tensorflow_js(folder: Path) -> Files:
    """Return the files of ``tm-my-image-model.zip``."""
    pool = {
        "name": "pool",
        "batch_input_shape": [None, SIDE, SIDE, 3],
        "dtype": "float32",
        "data_format": "channels_last",
    }
    dense = {
        "name": "dense",
        "units": 3,
        "activation": "softmax",
        "use_bias": False,
    }
    layers = [
        {"class_name": "GlobalAveragePooling2D", "config": pool},
        {"class_name": "Dense", "config": dense},
    ]
    topology = {
        "class_name": "Sequential",
        "config": {"name": "model", "layers": layers},
        "keras_version": "tfjs-layers 1.3.1",
        "backend": "tensor_flow.js",
    }
    weights = [{"name": "dense/kernel", "shape": [3, 3], "dtype": "float32"}]
    model = {
        "modelTopology": topology,
        "weightsManifest": [{"paths": ["weights.bin"], "weights": weights}],
    }
    metadata = {
        "tfjsVersion": "1.7.4",
        "tmVersion": "2.4.10",
        "packageVersion": "0.8.4-alpha2",
        "packageName": "@teachablemachine/image",
        "timeStamp": "2025-11-20T05:27:06.107Z",
        "userMetadata": {},
        "modelName": "tm-my-image-model",
        "labels": LABELS,
        "imageSize": SIDE,
    }
    return {
        "metadata.json": json.dumps(metadata).encode(),
        "model.json": json.dumps(model).encode(),
        "weights.bin": WEIGHTS.astype("<f4").tobytes(),
    }


def keras_file(folder: Path) -> Files:
    """Return the files of ``converted_keras.zip``."""
    path = folder / "keras_model.h5"
    keras_model().save(path)
    return {"keras_model.h5": path.read_bytes(), "labels.txt": NUMBERED.encode()}


def float_lite(folder: Path) -> Files:
    """Return the files of ``converted_tflite.zip``."""
    import tensorflow as tf

    model = tf.lite.TFLiteConverter.from_keras_model(keras_model()).convert()
    return {"model_unquant.tflite": model, "labels.txt": NUMBERED.encode()}


def quantised_lite(folder: Path) -> Files:
    """Return the files of ``converted_tflite_quantized.zip``."""
    import tensorflow as tf

    # All corners of the colour space: the converter measures each value's range on
    # them.
    colours = itertools.product((-1.0, 1.0), repeat=3)
    samples = []
    for colour in colours:
        samples.append(np.full((1, SIDE, SIDE, 3), colour, np.float32))
    converter = tf.lite.TFLiteConverter.from_keras_model(keras_model())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([sample] for sample in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.uint8
    converter.inference_output_type = tf.uint8
    return {"model.tflite": converter.convert(), "labels.txt": NUMBERED.encode()}


def run(*words: object) -> str:
    """Run a ``pocketserve`` command; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "pocketserve", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_archive(path: Path, files: Files) -> None:
    """Write a zip archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("name", "make", "middle", "tolerance"),
    [
        pytest.param(
            *("tm-my-image-model", tensorflow_js, 127.0, 1e-3), marks=pytest.mark.tfjs
        ),
        ("converted_keras", keras_file, 127.5, 1e-3),
        ("converted_tflite", float_lite, 127.5, 1e-3),
        ("converted_tflite_quantized", quantised_lite, 127.5, 0.05),
    ],
)
def test_an_added_export_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Path], Files],
    middle: float,
    tolerance: float,
) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    modules = Path(sys.prefix) / "tfjs"
    monkeypatch.setenv("POCKETSERVE_TFJS_MODULES", str(modules))
    export = tmp_path / f"{name}.zip"
    write_archive(export, make(tmp_path))
    models = tmp_path / "models"

    run("add", export, "--models-dir", models)
    (model,) = [path.name for path in models.iterdir() if path.is_dir()]
    options = ("--local", "--models-dir", models, "--json")
    answer = json.loads(run("predict", model, photo(tmp_path / "photo.png"), *options))

    scores = {entry["label"]: entry["score"] for entry in answer["predictions"]}
    assert scores == pytest.approx(expected(middle), abs=tolerance)
    assert "assumed" not in answer
