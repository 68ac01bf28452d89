"""Choose the files of a language model in a repository of the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pocketserve.messages import excerpt
from pocketserve.terminal.output import human_bytes

CONFIG: Final = "config.json"
SPARE_SHARE: Final = 0.1
"""Memory for a context of a few thousand tokens, as a share of the file."""

SPARE_BYTES: Final = 128 * 2**20
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_OTHER_KINDS: Final = re.compile(r"mmproj|imatrix|-lora|adapter", re.IGNORECASE)
_WEIGHTS: Final = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


class GgufChoice(NamedTuple):
    """A GGUF file that fits a device, and why.

    Attributes:
        file: empty if none fits.
        reason: a sentence for the user.
    """

    file: str
    reason: str


def choose_gguf(sizes: Mapping[str, int], room: int) -> GgufChoice | None:
    """Return the largest file that fits into the memory for models.

    A larger file of one model has finer weights, and so better answers.

    Args:
        sizes: of all models of the repository, by file.
        room: bytes of memory that models may take.

    Returns:
        None if the files are not quantisations of one language model.
    """
    if not sizes or not all(file.lower().endswith(".gguf") for file in sizes):
        return None
    whole = {}
    for file, size in sizes.items():
        if not _PART.search(file) and not _OTHER_KINDS.search(file):
            whole[file] = size
    if not whole:
        return None
    fitting = [file for file, size in whole.items() if _memory_of(size) <= room]
    if not fitting:
        smallest = min(whole, key=lambda file: (whole[file], file))
        text = (
            f"none of its {len(whole)} GGUF files fits into the memory for models"
            f" ({human_bytes(room)}): the smallest needs about"
            f" {human_bytes(_memory_of(whole[smallest]))}; name one to add it anyway:"
        )
        return GgufChoice("", text)
    best = max(fitting, key=lambda file: (whole[file], file))
    text = (
        f"taking {excerpt(best)} ({human_bytes(whole[best])}): of {len(whole)} GGUF"
        f" files it is the largest that fits into the memory for models"
        f" ({human_bytes(room)})"
    )
    return GgufChoice(best, text)


def _memory_of(size: int) -> int:
    return int(size * (1 + SPARE_SHARE)) + SPARE_BYTES


def folder_files(names: Sequence[str], config: str) -> list[str]:
    """Return the files of a Hugging Face folder that a load reads.

    Args:
        config: the path of its ``config.json``.

    Returns:
        Nothing if the folder has no configuration or no weights in safetensors.
    """
    from pocketserve.runtimes.hugging_face.folder import TOKENIZER_FILES

    start = config.removesuffix(CONFIG)
    files = []
    weights = []
    for name in names:
        beside = name.removeprefix(start)
        if not name.startswith(start):
            continue
        if _WEIGHTS.fullmatch(beside):
            weights.append(name)
        elif beside in TOKENIZER_FILES:
            files.append(name)
    return [config, *files, *weights] if config in names and weights else []
