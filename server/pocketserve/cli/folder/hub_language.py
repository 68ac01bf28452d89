"""Choose the files of a language model in a repository of the hub."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from pocketserve.formats.gguf_parts import first_part, later_parts
from pocketserve.messages import excerpt
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
SPARE_SHARE: Final = 0.1
"""Memory for a context of a few thousand tokens, as a share of the file."""

SPARE_BYTES: Final = 128 * 2**20
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_OTHER_KINDS: Final = re.compile(r"mmproj|imatrix|-lora|adapter", re.IGNORECASE)
_QUANTISATION: Final = re.compile(
    r"(?:^|[-_.])"
    r"(?:ud[-_])?(?:i1[-_])?"
    r"(?:i?q[1-8](?:_(?:[0-9]{1,2}|k|nl|x{0,2}s|m|x{0,2}l))*"
    r"|tq[12]_0|(?:bf|f|fp)(?:16|32)|mxfp4(?:_moe)?)"
    r"(?=$|[-_.])"
)
"""llama.cpp's names of types of weights, with the prefixes of known publishers."""

MAX_STEMS: Final = 5  # models named in a sentence
MAX_NAME: Final = 200
WEIGHTS_SUFFIX: Final = ".safetensors"


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
        None if the files are not those of language models.
    """
    if not sizes or not all(file.lower().endswith(".gguf") for file in sizes):
        return None
    models = [file for file in sizes if not _OTHER_KINDS.search(file)]
    whole = {file: sizes[file] for file in models}
    if not whole:
        return None
    stems = sorted({_stem(file) for file in models})
    if len(stems) > 1:
        listed = ", ".join(excerpt(stem, 60) for stem in stems[:MAX_STEMS])
        more = ", …" if len(stems) > MAX_STEMS else ""
        text = f"its GGUF files are of {len(stems)} models ({listed}{more}); name one:"
        return GgufChoice("", text)
    return _choose_size(whole, room)


def _stem(file: str) -> str:
    """Return a file's path without quantisation and number of the part.

    Folders count, too: some repositories have files of one name for several models.
    """
    path = _PART.sub("", file.lower()).removesuffix(".gguf")
    stems = []
    for name in path.split("/"):
        stem = _QUANTISATION.sub("", name).strip("-_. ")
        if stem:
            stems.append(stem)
    return "/".join(stems)


def _choose_size(whole: Mapping[str, int], room: int) -> GgufChoice:
    """Return the largest quantisation of one model that fits."""
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


def gguf_parts(names: Collection[str], model: str) -> list[str]:
    """Return the later parts of a GGUF file in a repository.

    Args:
        model: the path of the first part, or of a file without parts.
    """
    path = PurePosixPath(model)
    later = [str(path.with_name(name)) for name in later_parts(path.name)]
    return [name for name in later if name in names]


def without_later_parts(names: Collection[str]) -> list[str]:
    """Leave out files that are later parts of another one."""
    remaining = []
    for name in names:
        first = first_part(PurePosixPath(name).name)
        if first is None or str(PurePosixPath(name).with_name(first)) not in names:
            remaining.append(name)
    return remaining


def folder_files(names: Sequence[str], config: str) -> list[str]:
    """Return the files of a Hugging Face folder that decide which weights it has.

    Args:
        config: the path of its ``config.json``.

    Returns:
        The configuration, the index of its weights, and the tokenizer's files. Nothing
        if the folder has no configuration or no weights in safetensors.
    """
    from pocketserve.runtimes.hugging_face.folder import TOKENIZER_FILES
    from pocketserve.runtimes.hugging_face.weights import WEIGHTS

    inside = set(_names_beside(names, config))
    if config not in names or not inside & {WEIGHTS, INDEX}:
        return []
    start = config.removesuffix(CONFIG)
    files = [config]
    if WEIGHTS not in inside:
        files.append(start + INDEX)
    files += [start + name for name in TOKENIZER_FILES if name in inside]
    return files


def folder_weights(
    names: Sequence[str], config: str, contents: Mapping[str, Path]
) -> list[str]:
    """Check a folder before its weights are downloaded; return the weights' paths.

    The formats decide, from the small files and the names of all others.

    Args:
        config: the path of its ``config.json``.
        contents: its configuration and the index of its weights, downloaded.

    Raises:
        CommandError: the folder can't be served.
    """
    from pocketserve.runtimes.base import ModelLoadError

    start = config.removesuffix(CONFIG)
    with tempfile.TemporaryDirectory(prefix="pocketserve-folder-") as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        for name in _names_beside(names, config):
            (folder / name).touch()
        for path, content in contents.items():
            shutil.copyfile(content, folder / path.removeprefix(start))
        try:
            weights = _read_by_format(folder)
        except ModelLoadError as error:
            reason = str(error).removeprefix(f"{folder.name} ")
            raise CommandError(f"{start or 'it'} is not added: {reason}") from None
    return [start + name for name in weights]


def _read_by_format(folder: Path) -> list[str]:
    """Return the weights of the format that claims a folder.

    Raises:
        ModelLoadError: no format claims it, or its weights can't be served.
    """
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.runtimes.hugging_face.folder import read_architecture
    from pocketserve.runtimes.hugging_face.library import check_architecture
    from pocketserve.runtimes.registry import claiming_format

    kind, architecture = read_architecture(folder / CONFIG)
    for path in sorted(folder.iterdir()):
        format = claiming_format(path)
        if format is None:
            continue
        check_architecture(kind)
        files = [path.name]
        if format.other_files is not None:
            files += format.other_files(path)
        return [name for name in files if name.endswith(WEIGHTS_SUFFIX)]
    raise ModelLoadError(
        f"its {CONFIG} names {architecture}, which is not served from safetensors;"
        " look for an ONNX, TFLite or GGUF export of it"
    )


def _names_beside(names: Sequence[str], config: str) -> list[str]:
    """Return the names of files in the folder of a ``config.json`` that loads read."""
    from pocketserve.runtimes.hugging_face.folder import TOKENIZER_FILES

    start = config.removesuffix(CONFIG)
    inside = []
    for path in names:
        name = path.removeprefix(start)
        if not path.startswith(start) or "/" in name or len(name) > MAX_NAME:
            continue
        if name in TOKENIZER_FILES or name.endswith((WEIGHTS_SUFFIX, ".json")):
            inside.append(name)
    return inside
