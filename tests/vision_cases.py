"""Serve public picture models as a user would, with a manifest if needed."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from places import copy_folder

FER_LABELS = "angry\ndisgust\nfear\nhappy\nsad\nsurprise\nneutral\n"
FER = """task = "image-classification"
labels = "labels.txt"
[image]
color = "grayscale"
mean = 127.5
std = 127.5
"""
HAND = """task = "object-detection"
labels = "labels.txt"
[image]
width = 512
height = 512
[detection]
format = "postprocess"
boxes = "Identity_1:0"
classes = "Identity_2:0"
scores = "Identity_4:0"
count = "Identity_5:0"
"""
HAND_LABELS = "background\nopen\nclosed\npinch\npoint\nface\npointtip\npinchtip\n"
MNIST = """task = "image-classification"
[image]
mean = 0
std = 1
[classification]
activation = "softmax"
"""
PAGE = """task = "image-segmentation"
[image]
color = "bgr"
width = 768
height = 384
mean = [123.675, 116.28, 103.53]
std = [58.395, 57.12, 57.375]
[segmentation]
threshold = 0.3
"""
"""The authors applied ImageNet's RGB numbers to BGR, and the expected answer follows
them.
"""
TURNED = """task = "image-classification"
labels = "labels.txt"
[image]
width = 192
height = 48
color = "bgr"
mean = 127.5
std = 127.5
"""


@dataclass(frozen=True)
class Served:
    """A model in a server's folder.

    Attributes:
        source: the asset's path below ``models``.
        files: what its owner adds: ``model.toml``, ``labels.txt``.
        mark: of the framework, as in pyproject.toml; empty for TFLite.
    """

    source: str
    files: dict[str, str] = field(default_factory=dict)
    mark: str = ""


def _with(manifest: str, labels: str = "") -> dict[str, str]:
    return {"model.toml": manifest} | ({"labels.txt": labels} if labels else {})


MODELS = {
    "ssd": Served("tflite/coco_ssd_mobilenet_v1_1.0_quant.tflite"),
    "deeplab": Served("tflite/deeplabv3.tflite"),
    "mobilenet_v1": Served("tflite/mobilenet_v1_0.25_224_quant.tflite"),
    "mobilenet_v1_float": Served("tflite/mobilenet_v1_0.25_224_float_metadata.tflite"),
    "mobilenet_v2": Served("tflite/mobilenet_v2_1.0_224_quant.tflite"),
    "fer_tflite": Served("tflite/fer_emotion_dynrange.tflite", _with(FER, FER_LABELS)),
    "mnist": Served("onnx/mnist.onnx", _with(MNIST), "onnx"),
    "turned": Served(
        "onnx/ppocr_v2_cls.onnx", _with(TURNED, "upright\nturned\n"), "onnx"
    ),
    "page": Served("onnx/ppocr_v4_det.onnx", _with(PAGE), "onnx"),
    "fer_keras": Served("keras/fer_emotion.hdf5", _with(FER, FER_LABELS), "tensorflow"),
    "fer_savedmodel": Served(
        "savedmodel/fer_emotion_derived", _with(FER, FER_LABELS), "tensorflow"
    ),
    "darknet": Served("tfjs/darknet_tiny", {}, "tfjs"),
    "hands": Served("tfjs/handtrack_ssd320_int8", _with(HAND, HAND_LABELS), "tfjs"),
}


def write_models(root: Path, folder: Path, mark: str) -> Path:
    """Write a models folder with every model of a framework's mark."""
    for name, served in MODELS.items():
        if served.mark != mark:
            continue
        source = root / "models" / served.source
        if source.is_dir():
            copy_folder(source, folder / name)
        elif not served.files:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder / f"{name}{source.suffix}")
        else:
            (folder / name).mkdir(parents=True)
            shutil.copy(source, folder / name)
        for file, content in served.files.items():
            (folder / name / file).write_text(content)
    return folder


def as_png(array: Any) -> bytes:
    """Return pixels as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()
