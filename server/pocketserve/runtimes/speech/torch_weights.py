"""Load the unconverted weights of speech models for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.hugging_face.weights import INDEX, weight_files
from pocketserve.runtimes.speech.files import CONFIG, read_model_config
from pocketserve.runtimes.torch.safetensors import StoredTensor, read_safetensors
from pocketserve.tensors import Array

Shapes = dict[str, tuple[int, ...]]
FLOATS: Final = ("F32", "F16", "BF16")


def required_config(folder: Path) -> Mapping[str, Any]:
    """Return a folder's ``config.json``.

    Raises:
        ModelLoadError: it is missing or not a JSON object.
    """
    content = read_model_config(folder)
    if content is None:
        raise ModelLoadError(
            f"{CONFIG} beside the model is missing or not a JSON object; copy it from the"
            " model's source"
        )
    return content


def config_fault(fault: str) -> ModelLoadError:
    """Return the error for a key of ``config.json``."""
    return ModelLoadError(
        f"{CONFIG} beside the model: {fault}; copy the file from the model's source"
    )


def stored_weights(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a weights file, or of all parts that an index names.

    Raises:
        ModelLoadError: a part is missing or damaged, or two have the same tensor.
    """
    if path.name != INDEX:
        return read_safetensors(path)
    tensors: dict[str, StoredTensor] = {}
    for name in weight_files(path.parent):
        if name == INDEX:
            continue
        part = read_safetensors(path.parent / name)
        twice = sorted(part.keys() & tensors.keys())
        if twice:
            raise ModelLoadError(
                f"{name} and an earlier part both have {twice[0]!r:.100}; download all"
                " parts from the same source"
            )
        tensors.update(part)
    return tensors


def shaped_weights(
    torch: Any, stored: Mapping[str, StoredTensor], shapes: Shapes
) -> dict[str, Any]:
    """Return the named weights in single precision; float32 stays mapped.

    Raises:
        ModelLoadError: one is missing, or not as ``config.json`` says.
    """
    weights = {}
    for name, expected in shapes.items():
        weights[name] = _load_weight(torch, name, stored.get(name), expected)
    return weights


def _load_weight(
    torch: Any, name: str, stored: StoredTensor | None, expected: tuple[int, ...]
) -> Any:
    stored = _checked_weight(name, stored, expected)
    tensor = torch.from_numpy(np.require(stored.array, requirements="W"))
    if stored.dtype_name == "BF16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(torch.float32)


def array_of(
    name: str, stored: StoredTensor | None, expected: tuple[int, ...]
) -> Array:
    """Return a weight in single precision, without PyTorch.

    Raises:
        ModelLoadError: it is missing, or not as ``config.json`` says.
    """
    stored = _checked_weight(name, stored, expected)
    if stored.dtype_name == "BF16":
        # The upper half of a float32.
        return (stored.array.astype(np.uint32) << 16).view(np.float32)
    return stored.array.astype(np.float32, copy=False)


def _checked_weight(
    name: str, stored: StoredTensor | None, expected: tuple[int, ...]
) -> StoredTensor:
    if stored is None or stored.array.shape != expected:
        state = "is missing" if stored is None else f"is {list(stored.array.shape)}"
        raise ModelLoadError(
            f"the weight {name} {state}, but {CONFIG} says {list(expected)}; copy both"
            " files from the same source"
        )
    if stored.dtype_name not in FLOATS:
        raise ModelLoadError(
            f"the weight {name} has the type {stored.dtype_name}; {', '.join(FLOATS)}"
            " can be read"
        )
    return stored
