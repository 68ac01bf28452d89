"""Detect files and folders that cannot be served, and advise.

A file that is ignored silently leaves its owner with an empty list and no reason.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.runtimes.model_files import failed_download
from pocketserve.runtimes.registry import MARKERS, content_of, format_of_name
from pocketserve.runtimes.torch import NOT_MODELS
from pocketserve_wire.files.plain_file import open_plain

if TYPE_CHECKING:
    from pocketserve.repository.scan import VersionEntry

_ARCHIVE = (
    "is an archive: unpack it, so that the model file or the model's folder lies in "
    "the models folder"
)
_UNFINISHED = "is a download that has not finished: fetch the file again"
_OTHER_FORMAT = (
    "is of a format that is not served: export the model it was made from as ONNX or "
    "TFLite"
)
PICKLES = (".pkl", ".pickle", ".joblib")
_ZIP = (0, b"PK")
_SUFFIXES = {
    "holds weights without a model: put it into a folder with a model.py that builds "
    "the model and a model.toml, or export the model as ONNX or TFLite": (
        ".safetensors .ckpt"
    ),
    "is a TensorFlow checkpoint, weights without a model: save the model as "
    "SavedModel": ".data-00000-of-00001",
    "is a frozen TensorFlow graph or a part of a model: convert it to TFLite or ONNX, "
    "or save the model as SavedModel": ".pb",
    _ARCHIVE: ".zip .tar .tar.gz .tgz .7z .rar .gz .bz2 .xz .zst",
    _UNFINISHED: ".part .crdownload .partial",
    "is a pickle, which is code and is never opened: convert the model to ONNX where "
    "it was trained (skl2onnx, onnxmltools)": " ".join(PICKLES),
    "is a language model for an engine of its own, such as llama.cpp, which is not "
    "part of Pocketserve": ".ggml .llamafile .litertlm",
    "is a model of another library's own format: convert it to ONNX with "
    "onnxmltools": ".cbm .ubj .pmml",
    "was compiled by TensorRT for one kind of NVIDIA's cards: serve the ONNX model "
    "that it was made from, there by "
    'providers = ["TensorrtExecutionProvider"]': ".engine .plan .trt",
    "was compiled for one kind of device: serve the ONNX or TFLite model that it was "
    "made from": ".dlc .rknn .hef .om",
    "is a Core ML model, which only Apple's devices run: export the model it was made "
    "from as ONNX or TFLite": ".mlmodel .mlpackage .mlmodelc",
    "is a model for Tract: serve the ONNX model that it was made from": (
        ".nnef .nnef.tgz .nnef.tar"
    ),
    "is an ONNX model in ONNX Runtime's own format: serve the .onnx file that it was "
    "made from": ".ort",
    "is a bundle for MediaPipe: unpack it as a zip and serve the .tflite files in it": (
        ".task"
    ),
    "is an archive for TorchServe: unpack it as a zip and serve the model in it": (
        ".mar"
    ),
    _OTHER_FORMAT: ".mnn .caffemodel .pdmodel .pdiparams .weights",
}
_ENDS = {}
for words, suffixes in _SUFFIXES.items():
    for suffix in suffixes.split():
        _ENDS[suffix] = words
_ADVICE = dict(sorted(_ENDS.items(), key=lambda item: -len(item[0])))
"""By suffix. Longer suffixes come first, as one may end with another."""

_PAIRS = {
    ".xml": (
        "is an OpenVINO model, which is not served: serve the model it was made from",
        ".bin",
    ),
    ".param": (_OTHER_FORMAT, ".bin"),
}
"""Suffixes that are meaningful only beside a file with the other suffix."""

_COMMON = (_ARCHIVE, _UNFINISHED)
"""Advice for files that are also common in folders without models."""


def advice(file_name: str, beside: Set[str] = frozenset()) -> tuple[str, str] | None:
    """Return a model's name and why it cannot be served, or None.

    Args:
        beside: the names of the other files in the folder.
    """
    if file_name in MARKERS:
        return None
    for end, words in _ADVICE.items():
        if file_name.lower().endswith(end):
            return file_name[: -len(end)] or file_name, f"{file_name} {words}"
    for end, (words, other) in _PAIRS.items():
        stem = file_name.removesuffix(end)
        if stem != file_name and stem + other in beside:
            return stem, f"{file_name} {words}"
    return None


def advice_for_content(path: Path) -> str | None:
    """Return why a PyTorch file is not a model, or None."""
    kind = format_of_name(path.name)
    if kind is None or not kind.zipped:
        return None
    words = NOT_MODELS.get(content_of(path) or "")
    if words is None:
        return None
    return f"{path.name} {words}"


def advice_for_folder(folder: str, names: Set[str]) -> str | None:
    """Return why a folder is not a model, or None."""
    reason = advice(folder)
    if reason is not None and folder.endswith((".mlpackage", ".mlmodelc")):
        return reason[1]
    visible = _visible(names)
    for name in (folder, *visible):
        # The folder has no model file, so these are folders.
        kind = format_of_name(name)
        if kind is not None and kind.name != "torch":
            return (
                f"{name} is a folder, where a file is expected: put "
                f"the model file itself there, or rename the folder"
            )
    for name in visible:
        if _is_hugging_face_weights(name):
            return (
                f"{folder} holds weights ({name}) without a model: add a model.py that "
                "builds it and a model.toml, or export it as ONNX or TFLite"
            )
    for name in visible:
        reason = advice(name, names)
        if reason is not None and not reason[1].endswith(_COMMON):
            return f"{folder}/{reason[1]}"
    return None


def _visible(names: Set[str]) -> list[str]:
    visible = []
    for name in sorted(names):
        if not name.startswith("."):
            visible.append(name)
    return visible


def _is_hugging_face_weights(name: str) -> bool:
    if name.endswith(".safetensors"):
        return True
    return name.startswith("pytorch_model") and name.endswith(".bin")


def file_fault(version: VersionEntry) -> str | None:
    """Return why a version's file cannot be served, or None.

    Only its status and first bytes are read. A scan does not cache the result, because
    the file may be fixed at any time.
    """
    path = version.path
    kind = version.format
    if kind.marker is not None and path.is_dir():
        path = path / kind.marker
    if path.name == kind.marker and path.is_symlink():
        return f"{path.name} is a link: copy the file itself into the folder"
    words = failed_download(path)
    if words is not None:
        return words
    try:
        head = _first_bytes(path)
    except OSError as error:
        return (
            f"{path.name} cannot be read ({error.strerror}): put a file there that "
            "this user may read"
        )
    if not head:
        return f"{path.name} is empty: copy or download it again"
    marks = kind.magic
    if kind.zipped:
        marks = (*marks, _ZIP)
    if marks and not any(head[at:].startswith(mark) for at, mark in marks):
        return (
            f"{path.name} is not a valid {kind.name} file: copy or export it again, or "
            "give it "
            "the right ending"
        )
    return None


def _first_bytes(path: Path) -> bytes:
    # False for a link cycle, and for a device without opening it.
    if not os.path.isfile(path):
        raise FileNotFoundError(
            errno.ENOENT, "it is a link that leads nowhere, or not a regular file"
        )
    with open_plain(path) as file:
        return file.read(8)
