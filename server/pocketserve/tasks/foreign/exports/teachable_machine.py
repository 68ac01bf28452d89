"""Projects of Teachable Machine: its ``metadata.json``, and the file names of its converted exports.

Its TensorFlow.js download has ``metadata.json`` beside ``model.json``. Its converter writes the model under a fixed
name and ``labels.txt`` with a line ``0 Class 1`` for each class, and leaves the metadata out. Source of both:
googlecreativelab/teachablemachine-community, libraries/image/src/custom-mobilenet.ts and
snippets/converter/image/api.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key
from pocketserve.tasks.model_facts import (
    CONVERTED_LABELS,
    CONVERTED_MODELS,
    ModelFacts,
)

FILE = "metadata.json"
MAX_LABELS_BYTES = 1 << 20
PACKAGE = "@teachablemachine/"
SOUND_KEY = "tfjsSpeechCommandsVersion"
QUANTISED = "model.tflite"

_IMAGE = "googlecreativelab/teachablemachine-community, libraries/image/src/custom-mobilenet.ts"
_POSE = (
    "googlecreativelab/teachablemachine-community, libraries/pose/src/custom-posenet.ts"
)
_SOUND = "tensorflow/tfjs-models, speech-commands/src/types.ts"


class Project(NamedTuple):
    """The settings of a project.

    Attributes:
        kind: ``image``, ``pose`` or ``sound``.
        labels: class names; empty where a file beside the model has them.
        is_grey: whether pictures lose their colours.
        middle: the pixel value that becomes 0. Its page computes ``pixel / 127 - 1``, its Python examples
            ``pixel / 127.5 - 1``.
        resample: the filter for resizing; empty for the default.
    """

    kind: str
    labels: tuple[str, ...] = ()
    is_grey: bool = False
    middle: float = 127.5
    resample: str = ""


def _is_metadata(content: Mapping[str, Any]) -> bool:
    """Return whether a ``metadata.json`` is Teachable Machine's."""
    return (
        str(content.get("packageName", "")).startswith(PACKAGE) or SOUND_KEY in content
    )


TABLE = ForeignFile(
    FILE,
    (
        Key("packageName", Effect.APPLIED, _IMAGE),
        Key(SOUND_KEY, Effect.APPLIED, _SOUND),
        Key("labels", Effect.APPLIED, _IMAGE),
        Key("imageSize", Effect.HARMLESS, f"{_IMAGE}; the model's input has this size"),
        Key("grayscale", Effect.APPLIED, _IMAGE),
        Key(
            "wordLabels", Effect.HARMLESS, f"{_SOUND}; sound projects answer as tensors"
        ),
        Key(
            "modelSettings",
            Effect.HARMLESS,
            f"{_POSE}; pose projects answer as tensors",
        ),
        Key("tfjsVersion", Effect.HARMLESS, _IMAGE),
        Key("tmVersion", Effect.HARMLESS, _IMAGE),
        Key("packageVersion", Effect.HARMLESS, _IMAGE),
        Key("timeStamp", Effect.HARMLESS, _IMAGE),
        Key("userMetadata", Effect.HARMLESS, _IMAGE),
        Key("modelName", Effect.HARMLESS, _IMAGE),
    ),
    belongs=_is_metadata,
)


def project_of(facts: ModelFacts) -> Project | None:
    """Return the project that a model was exported from; None for models of other tools."""
    if "teachable machine" not in facts.cache:
        facts.cache["teachable machine"] = _from_metadata(facts) or _from_names(facts)
    project: Project | None = facts.cache["teachable machine"]
    return project


def _from_metadata(facts: ModelFacts) -> Project | None:
    try:
        content = facts.json_beside(FILE)
    except ModelLoadError:
        return None
    if not _is_metadata(content):
        return None
    if SOUND_KEY in content:
        return Project("sound", _texts(content.get("wordLabels")))
    kind = str(content.get("packageName")).removeprefix(PACKAGE)
    if kind != "image":
        return Project("pose", _texts(content.get("labels")))
    return Project(
        "image",
        _texts(content.get("labels")),
        content.get("grayscale") is True,
        middle=127.0,
    )


def _from_names(facts: ModelFacts) -> Project | None:
    """Recognise a converted export: a fixed name beside labels that all begin with their own number."""
    name = facts.version.path.name.lower()
    path = facts.beside(CONVERTED_LABELS)
    if path is None or name not in CONVERTED_MODELS:
        return None
    if name == QUANTISED and not _takes_bytes(facts):
        return None
    try:
        lines = (
            facts.read_beside(path, MAX_LABELS_BYTES).decode("utf-8-sig").splitlines()
        )
    except (ModelLoadError, UnicodeDecodeError):
        return None
    numbered = [
        line.split(" ", 1)[0] == str(number) and " " in line
        for number, line in enumerate(lines)
    ]
    if not lines or not all(numbered):
        return None
    # The published Python example resizes with Pillow's LANCZOS; apps with a .tflite file use bilinear resizing.
    return Project("image", resample="" if name.endswith(".tflite") else "lanczos")


def _takes_bytes(facts: ModelFacts) -> bool:
    """Return whether all inputs are UINT8, as those of the quantised export are."""
    datatypes = {spec.datatype for spec in facts.inputs}
    return datatypes == {"UINT8"}


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return ()
    return tuple(value)
