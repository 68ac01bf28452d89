"""Metadata that Ultralytics' exporter writes into ONNX, TFLite and TorchScript files.

Beside a SavedModel and a TensorFlow.js model, it writes ``metadata.yaml``.

Source: ultralytics 8.4.190, engine/exporter.py (``self.metadata``) and the backends in nn/backends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key
from pocketserve.tasks.model_facts import MAX_JSON_BYTES, ModelFacts

FILE = "metadata.yaml"
_SOURCE = "ultralytics/ultralytics, ultralytics/engine/exporter.py"
TASKS = ("detect", "segment", "pose", "obb", "classify")
"""Its tasks that are supported."""


def is_ultralytics_metadata(content: Mapping[str, Any]) -> bool:
    """Return whether texts in a model file are Ultralytics' metadata."""
    return {"names", "task", "stride"} <= set(content)


def is_yolov5_metadata(content: Mapping[str, Any]) -> bool:
    """Return whether texts in a model file are those of YOLOv5, which has no ``task``.

    Source: ultralytics/yolov5, export.py.
    """
    if "task" in content or "names" not in content:
        return False
    return str(content.get("stride", "")).isdecimal()


TABLE = ForeignFile(
    "the model file's metadata",
    (
        Key(
            "task",
            Effect.UNSUPPORTED,
            f"{_SOURCE}; the neutral values are applied",
            neutral=TASKS,
        ),
        Key("names", Effect.APPLIED, _SOURCE),
        Key("imgsz", Effect.APPLIED, _SOURCE),
        Key("channels", Effect.APPLIED, _SOURCE),
        Key("kpt_shape", Effect.APPLIED, _SOURCE),
        Key("kpt_names", Effect.APPLIED, _SOURCE),
        Key("end2end", Effect.APPLIED, _SOURCE),
        Key("head", Effect.APPLIED, _SOURCE),
        Key(
            "args",
            Effect.HARMLESS,
            f"{_SOURCE}; the shapes of the outputs show the same",
        ),
        Key("batch", Effect.HARMLESS, f"{_SOURCE}; the model's input has this size"),
        Key(
            "stride",
            Effect.HARMLESS,
            f"{_SOURCE}; it rounds sizes of inputs that are free",
        ),
        Key("dla", Effect.HARMLESS, f"{_SOURCE}; a device of TensorRT"),
        Key("description", Effect.HARMLESS, _SOURCE),
        Key("author", Effect.HARMLESS, _SOURCE),
        Key("date", Effect.HARMLESS, _SOURCE),
        Key("version", Effect.HARMLESS, _SOURCE),
        Key("license", Effect.HARMLESS, _SOURCE),
        Key("docs", Effect.HARMLESS, _SOURCE),
    ),
    belongs=is_ultralytics_metadata,
    is_inside=True,
)


def metadata_beside(facts: ModelFacts) -> dict[str, str]:
    """Return the metadata of ``metadata.yaml`` as a model file's properties.

    It is empty if the file is missing or another tool's.
    """
    path = facts.beside(FILE)
    if path is None:
        return {}
    from pocketserve.formats.plain_yaml import read_plain_yaml  # late: few have it

    try:
        text = facts.read_beside(path, MAX_JSON_BYTES).decode("utf-8-sig")
        content = read_plain_yaml(text)
    except (DamagedFileError, UnicodeDecodeError) as error:
        facts.notes.append(f"{FILE} is ignored: {error}")
        return {}
    if not isinstance(content, dict):
        return {}
    properties = {}
    for key, value in content.items():
        properties[str(key)] = value if isinstance(value, str) else repr(value)
    if is_ultralytics_metadata(properties) or is_yolov5_metadata(properties):
        return properties
    return {}
