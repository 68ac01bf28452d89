"""Find and measure the weights of a Hugging Face folder, without any framework."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve_wire import ApiError, strict_json
from pocketserve_wire.files.plain_file import read_plain

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
TENSORFLOW_WEIGHTS: Final = "tf_model.h5"
MAX_JSON_BYTES: Final = 4 << 20
MAX_SHARDS: Final = 1024

_PICKLED: Final = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_SHARD: Final = re.compile(r"[\w.-]{1,120}\.safetensors")
DTYPES: Final[Mapping[str, tuple[str, int]]] = {
    "F64": ("float32", 4),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
}
"""The library's name for a type of weights, and the bytes of a value in memory."""

PICKLED: Final = (
    "its weights are pickles (pytorch_model.bin), which are code and are never opened:"
    " load the model on a desktop with transformers, save it with"
    " model.save_pretrained(FOLDER), and add that folder; a language model's GGUF file"
    " works, too"
)


def is_weight_file(name: str) -> bool:
    """Return whether a file has weights, an index of them, or pickled ones."""
    return name in (WEIGHTS, INDEX) or _PICKLED.fullmatch(name) is not None


def holds_weights(names: Sequence[str]) -> bool:
    """Return whether files make a folder a model of transformers.

    Pickles can only be refused, so they do so only without a file that can be served.

    Args:
        names: of the files in the folder.
    """
    if WEIGHTS in names or INDEX in names:
        return True
    if not any(map(is_weight_file, names)):
        return False
    return not any(map(_is_served, names))


def _is_served(name: str) -> bool:
    """Return whether a file is a model by itself."""
    from pocketserve.runtimes.registry import format_of_name

    # TensorFlow's weights have no model, and code of the folder is no model.
    is_part = name == TENSORFLOW_WEIGHTS or name.endswith(".py")
    return not is_part and format_of_name(name) is not None


@dataclass(frozen=True)
class Weights:
    """The weights of all files.

    Attributes:
        kind: the type of most of them, as safetensors names it.
    """

    parameters: int
    kind: str


def read_weights(folder: Path) -> Weights:
    """Return the weights of a folder, from their headers.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """
    from pocketserve.runtimes.torch.safetensors import read_safetensors

    counts: dict[str, int] = {}
    for name in weight_files(folder):
        if not name.endswith(".safetensors"):
            continue
        try:
            tensors = read_safetensors(folder / name)
        except OSError as error:
            raise ModelLoadError(f"{name} cannot be read: {error.strerror}") from error
        for kind, array in tensors.values():
            counts[kind] = counts.get(kind, 0) + array.size
    usable = {kind: count for kind, count in counts.items() if kind in DTYPES}
    if not usable:
        raise ModelLoadError(
            "its weights are of no kind that is served (float, bfloat)"
        )
    return Weights(sum(counts.values()), max(usable, key=lambda kind: usable[kind]))


def refuse_quantised(config: Mapping[str, Any], way_out: str) -> None:
    """Raise ModelLoadError if a configuration says that its weights are quantised.

    Args:
        way_out: the end of the sentence.
    """
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        method = quantised.get("quant_method", "unknown")
        raise ModelLoadError(
            f"its weights are quantised ({method!s:.40}) for other hardware; {way_out}"
        )


def weight_files(folder: Path) -> list[str]:
    """Return the weights' names, with the index of several files.

    Raises:
        ModelLoadError: there are none, a part is missing, or they are pickles.
    """
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (folder / INDEX).is_file():
        if any(_PICKLED.fullmatch(name) for name in os.listdir(folder)):
            raise ModelLoadError(f"{folder.name} can't be served: {PICKLED}")
        raise ModelLoadError(f"{folder.name} has no {WEIGHTS}; download it")
    shards = _shards(folder / INDEX)
    for shard in shards:
        if not (folder / shard).is_file():
            raise ModelLoadError(
                f"{folder.name} has no {shard}, which {INDEX} names; download it"
            )
    return [INDEX, *shards]


def _shards(index: Path) -> list[str]:
    try:
        content = read_json(index)
    except DamagedFileError as error:
        raise ModelLoadError(str(error)) from error
    places = content.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelLoadError(f"{INDEX} has no weight_map; download it again")
    shards: list[str] = []
    for name in dict.fromkeys(map(str, places.values())):
        if not _SHARD.fullmatch(name):
            raise ModelLoadError(
                f"{INDEX} names {name!r:.80}, which is not a weights file"
            )
        shards.append(name)
    if len(shards) > MAX_SHARDS:
        raise ModelLoadError(f"{INDEX} names {len(shards)} files, over {MAX_SHARDS}")
    return sorted(shards)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        DamagedFileError: it is missing, too large or no object.
    """
    try:
        return strict_json.loads_object(read_bytes(path, MAX_JSON_BYTES))
    except ApiError as error:
        raise DamagedFileError(f"{path.name} is not a JSON object: {error}") from error


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a file of a limited size.

    Raises:
        DamagedFileError: it can't be read.
    """
    try:
        return read_plain(path, limit)
    except OSError as error:
        raise DamagedFileError(
            f"{path.name} cannot be read: {error.strerror}"
        ) from error
