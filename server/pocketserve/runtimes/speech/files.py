"""Recognise the files of Whisper models in the hub's layouts.

``NAME/config.json`` with ``encoder_model.onnx`` beside it or in ``NAME/onnx/``. The
names of quantised files end in ``_int8``, ``_q4`` and the like.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.hugging_face.weights import INDEX, WEIGHTS, weight_files
from pocketserve.runtimes.onnx.check import check_model
from pocketserve_wire.files.plain_file import read_plain

ENCODER: Final = "encoder_model"
MERGED: Final = "decoder_model_merged"
FIRST: Final = "decoder_model"
NEXT: Final = "decoder_with_past_model"
SUFFIX: Final = ".onnx"
CONFIG: Final = "config.json"
ONNX_FOLDER: Final = "onnx"
CTC_TYPES: Final = ("wav2vec2", "hubert")
CTC: Final = "ForCTC"
"""The end of the class names of CTC models, such as Wav2Vec2ForCTC."""

MAX_CONFIG_BYTES: Final = 1 << 20


def is_whisper_onnx(path: Path) -> bool:
    """Return whether an ONNX file is a part of a Whisper model."""
    if path.suffix != SUFFIX:
        return False
    folders = [path.parent]
    if path.parent.name == ONNX_FOLDER:
        folders.append(path.parent.parent)
    return any(model_type(folder) == "whisper" for folder in folders)


def is_whisper_weights(path: Path) -> bool:
    """Return whether a file stands for an unconverted Whisper model."""
    if not _are_weights(path) or model_type(path.parent) != "whisper":
        return False
    config = read_model_config(path.parent) or {}
    # A classifier of sounds has Whisper's encoder only.
    return "WhisperForAudioClassification" not in str(config.get("architectures"))


def is_ctc_weights(path: Path) -> bool:
    """Return whether a file stands for an unconverted CTC model."""
    if not _are_weights(path) or model_type(path.parent) not in CTC_TYPES:
        return False
    config = read_model_config(path.parent) or {}
    return CTC in str(config.get("architectures"))


def _are_weights(path: Path) -> bool:
    """Return whether a file has all weights, or is the index of their parts."""
    if path.name == INDEX:
        return not (path.parent / WEIGHTS).is_file()
    return path.name == WEIGHTS


def speech_task(path: Path) -> str:
    """Return the task of a claimed file."""
    return "speech-to-text"


def files_of_weights(weights: Path) -> list[str]:
    """Return the names of all files that unconverted weights need beside them.

    Raises:
        ModelLoadError: a part is missing, or the index is damaged.
    """
    if weights.name == WEIGHTS:
        return [CONFIG]
    return [CONFIG, *weight_files(weights.parent)]


def model_type(folder: Path) -> str:
    """Return the ``model_type`` of a folder's ``config.json``; empty if unknown."""
    kind = (read_model_config(folder) or {}).get("model_type")
    if isinstance(kind, str):
        return kind
    return ""


def read_model_config(folder: Path) -> dict[str, Any] | None:
    """Return a folder's ``config.json``; None if it is missing or not a JSON object."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        content: Any = json.loads(read_plain(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(content, dict):
        return content
    return None


def decoder_names(encoder: Path) -> tuple[str, ...]:
    """Return the decoder's files for an encoder: the merged one, or a pair.

    Raises:
        ModelLoadError: a file is missing.
    """
    variant = encoder.name.removeprefix(ENCODER)
    merged = MERGED + variant
    if (encoder.parent / merged).is_file():
        return (merged,)
    pair = (FIRST + variant, NEXT + variant)
    for name in pair:
        if not (encoder.parent / name).is_file():
            raise ModelLoadError(
                f"{name} is missing beside {encoder.name}; copy {merged}, or"
                f" {pair[0]} and {pair[1]}, into the model's folder"
            )
    return pair


def decoder_files(encoder: Path) -> list[str]:
    """Return the names of all files that an encoder needs beside it.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """
    names = list(check_model(encoder, may_change=True).locations)
    for name in decoder_names(encoder):
        names.append(name)
        names += check_model(encoder.parent / name, may_change=True).locations
    return names
