"""Read a Hugging Face folder of a model that tasks serve, without any framework.

Only the files of :func:`files_beside` are copied for a load, so that no code of the
folder is there when the library opens it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.hugging_face.folder import CONFIG, TOKENIZER_FILES
from pocketserve.runtimes.hugging_face.heads import class_of, head_of
from pocketserve.runtimes.hugging_face.weights import (
    holds_weights,
    read_json,
    read_weights,
    refuse_quantised,
    weight_files,
)

MODULES: Final = "modules.json"
"""The list of a sentence-transformers model's parts."""

PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
UNQUANTISED: Final = "add the folder without quantisation"
VALUE_BYTES: Final = 4
"""Bytes of a weight in memory: the network computes in single precision."""


@dataclass(frozen=True)
class TaskFolder:
    """The facts of a folder.

    Attributes:
        class_name: the class of transformers that ``config.json`` names.
        is_embedder: whether it belongs to sentence-transformers.
        kind: the type of most weights, as safetensors names it.
    """

    class_name: str
    is_embedder: bool
    parameters: int
    kind: str

    @property
    def weight_bytes(self) -> int:
        """Return the memory of the weights."""
        return self.parameters * VALUE_BYTES


def is_task_model(path: Path) -> bool:
    """Return whether this is the ``config.json`` of such a model with weights."""
    if path.name != CONFIG:
        return False
    try:
        config = read_json(path)
        names = os.listdir(path.parent)
    except (DamagedFileError, OSError):
        return False
    class_name = class_of(config)
    if class_name is None:
        return False
    if head_of(class_name, is_embedder=MODULES in names) is None:
        return False
    return holds_weights(names)


def files_beside(path: Path) -> list[str]:
    """Return the names of the files beside ``config.json`` that a load reads.

    Raises:
        ModelLoadError: it is quantised, or there are no weights that may be opened.
    """
    folder = path.parent
    try:
        refuse_quantised(read_json(path), UNQUANTISED)
    except DamagedFileError as error:
        raise ModelLoadError(str(error)) from error
    names = []
    for name in (*TOKENIZER_FILES, *PROCESSOR_FILES, MODULES):
        if (folder / name).is_file():
            names.append(name)
    return [*names, *weight_files(folder)]


def read_task_folder(path: Path) -> TaskFolder:
    """Read and check the facts of a folder.

    Args:
        path: its ``config.json``.

    Raises:
        DamagedFileError: a file is damaged.
        ModelLoadError: a file is missing, or of a kind that isn't served.
    """
    config = read_json(path)
    class_name = class_of(config)
    is_embedder = (path.parent / MODULES).is_file()
    if class_name is None or head_of(class_name, is_embedder=is_embedder) is None:
        raise DamagedFileError("config.json names no architecture that is served")
    refuse_quantised(config, UNQUANTISED)
    weights = read_weights(path.parent)
    return TaskFolder(class_name, is_embedder, weights.parameters, weights.kind)


def read_task_facts(path: Path) -> Mapping[str, str]:
    """Return the facts for the model's card, by name."""
    try:
        folder = read_task_folder(path)
    except ModelLoadError as error:
        raise DamagedFileError(str(error)) from error
    return {
        "architecture": folder.class_name,
        "parameters": str(folder.parameters),
        "quantisation": folder.kind,
    }
