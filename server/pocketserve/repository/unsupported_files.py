"""Files and folders that cannot be served as a model, known without opening one, and what helps.

A file that is passed over in silence leaves its owner with an empty list of models and no reason.
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

_ARCHIVE = "is an archive: unpack it, so that the model file or the model's folder lies in the models folder"
_UNFINISHED = "is a download that has not finished: fetch the file again"
_OTHER_FORMAT = "is of a format that is not served: export the model it was made from as ONNX or TFLite"
PICKLES = (".pkl", ".pickle", ".joblib")
_ZIP = (0, b"PK")
_SUFFIXES = {
    "holds weights without a model: put it into a folder with a model.py that builds the model and a model.toml, or "
    "export the model as ONNX or TFLite": ".safetensors .ckpt",
    "is a TensorFlow checkpoint, weights without a model: save the model as SavedModel": ".data-00000-of-00001",
    "is a frozen TensorFlow graph or a part of a model: convert it to TFLite or ONNX, or save the model as "
    "SavedModel": ".pb",
    _ARCHIVE: ".zip .tar .tar.gz .tgz .7z .rar .gz .bz2 .xz .zst",
    _UNFINISHED: ".part .crdownload .partial",
    "is a pickle, which is code and is never opened: convert the model to ONNX where it was trained (skl2onnx, "
    "onnxmltools)": " ".join(PICKLES),
    "is a language model for an engine of its own, such as llama.cpp, which is not part of Pocketserve": (
        ".ggml .llamafile .litertlm"
    ),
    "is a model of another library's own format: convert it to ONNX with onnxmltools": ".cbm .ubj .pmml",
    "was compiled by TensorRT for one kind of NVIDIA's cards: serve the ONNX model that it was made from, there by "
    'providers = ["TensorrtExecutionProvider"]': ".engine .plan .trt",
    "was compiled for one kind of device: serve the ONNX or TFLite model that it was made from": ".dlc .rknn .hef .om",
    "is a Core ML model, which only Apple's devices run: export the model it was made from as ONNX or TFLite": (
        ".mlmodel .mlpackage .mlmodelc"
    ),
    "is a model for Tract: serve the ONNX model that it was made from": ".nnef .nnef.tgz .nnef.tar",
    "is an ONNX model in ONNX Runtime's own format: serve the .onnx file that it was made from": ".ort",
    "is a bundle for MediaPipe: unpack it as a zip and serve the .tflite files in it": ".task",
    "is an archive for TorchServe: unpack it as a zip and serve the model in it": ".mar",
    _OTHER_FORMAT: ".mnn .caffemodel .pdmodel .pdiparams .weights",
}
_ENDS = {
    suffix: words
    for words, suffixes in _SUFFIXES.items()
    for suffix in suffixes.split()
}
_ADVICE = dict(sorted(_ENDS.items(), key=lambda item: -len(item[0])))
"""By the ends of names. Longer ends come first, as one may end on another."""

_PAIRS = {
    ".xml": (
        "is an OpenVINO model, which is not served: serve the model it was made from",
        ".bin",
    ),
    ".param": (_OTHER_FORMAT, ".bin"),
}
"""Ends that mean something only beside a file of the same name with the other end."""

_COMMON = (
    _ARCHIVE,
    _UNFINISHED,
)  # advice for what lies in many a folder that has nothing to do with models


def advice(file_name: str, beside: Set[str] = frozenset()) -> tuple[str, str] | None:
    """Return a model's name for what cannot be served, by its own name and those beside it, and why; else None."""
    if file_name in MARKERS:
        return None
    end = next((end for end in _ADVICE if file_name.lower().endswith(end)), None)
    if end is not None:
        return file_name[: -len(end)] or file_name, f"{file_name} {_ADVICE[end]}"
    for end, (words, other) in _PAIRS.items():
        stem = file_name.removesuffix(end)
        if stem != file_name and stem + other in beside:
            return stem, f"{file_name} {words}"
    return None


def advice_for_content(path: Path) -> str | None:
    """Return why a PyTorch file is no model, by a few bytes or a zip's directory; None for other files."""
    kind = format_of_name(path.name)
    words = (
        NOT_MODELS.get(content_of(path) or "")
        if kind is not None and kind.zipped
        else None
    )
    return None if words is None else f"{path.name} {words}"


def advice_for_folder(folder: str, names: Set[str]) -> str | None:
    """Return why a folder without any model file in it is no model, if it looks as if it was meant to be one."""
    reason = advice(folder)
    if reason is not None and folder.endswith((".mlpackage", ".mlmodelc")):
        return reason[1]
    visible = [name for name in sorted(names) if not name.startswith(".")]
    for name in (folder, *visible):
        kind = format_of_name(
            name
        )  # a folder without any model file has none of these as files
        if kind is not None and kind.name != "torch":
            return (
                f"{name} is a folder, where a file is expected: put "
                f"the model file itself there, or rename the folder"
            )
    for name in visible:  # what Hugging Face's folders hold
        if name.endswith(".safetensors") or (
            name.startswith("pytorch_model") and name.endswith(".bin")
        ):
            return (
                f"{folder} holds weights ({name}) without a model: add a model.py that builds it and a model.toml, or "
                "export it as ONNX or TFLite"
            )
    reasons = (
        reason[1] for name in visible if (reason := advice(name, names)) is not None
    )
    text = next((text for text in reasons if not text.endswith(_COMMON)), None)
    return None if text is None else f"{folder}/{text}"


def file_fault(version: VersionEntry) -> str | None:
    """Return why a version's file, or the one that marks its folder, cannot be served; None where nothing shows.

    Only its status and its first bytes are read; a scan keeps no fault, as the file may be mended at any time.
    """
    path, kind = version.path, version.format
    if kind.marker is not None and path.is_dir():
        path = path / kind.marker
    if path.name == kind.marker and path.is_symlink():
        return f"{path.name} is a link: copy the file itself into the folder"
    if (words := failed_download(path)) is not None:
        return words
    try:
        if not os.path.isfile(
            path
        ):  # false for a link that leads to itself; a device is not even opened
            raise FileNotFoundError(
                errno.ENOENT, "it is a link that leads nowhere, or no regular file"
            )
        with open_plain(path) as file:
            head = file.read(8)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror}): put a file there that this user may read"
    if not head:
        return f"{path.name} is empty: copy or download it again"
    marks = (*kind.magic, _ZIP) if kind.zipped else kind.magic
    if marks and not any(head[at:].startswith(mark) for at, mark in marks):
        return f"{path.name} is no {kind.name} file: copy or export it again, or rename it after what it is"
    return None
