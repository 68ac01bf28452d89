"""Sidecar files of a model, which tell how it is asked: labels, vocabularies, configurations, ``task.py``.

The list is closed: a verdict of a trial holds for just these bytes, so a task that reads one more must name it here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pocketserve.repository.manifest import Manifest
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.model_format import Code
from pocketserve_wire.files.plain_file import lies_in, open_plain

TASK_FILE: Final = "task.py"
LABEL_FILES: Final = (
    *("labels.txt", "labels.json", "labels.csv", "label_map.pbtxt", "labelmap.pbtxt"),
    *(
        "class_names.txt",
        "class_names.json",
        "classes.txt",
        "classes.json",
        "labelmap.txt",
        "label_map.txt",
    ),
)
"""Label files that are read without a manifest, in order of preference."""

NAMES: Final = (
    *LABEL_FILES,
    *("config.json", "preprocessor_config.json", "processor_config.json", TASK_FILE),
    *("metadata.json", "signature.json"),
    *(
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
    *(
        "vocab.txt",
        "spiece.model",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    ),
    *("1_Pooling/config.json", "2_Normalize/config.json", "3_Normalize/config.json"),
    *(
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    ),
)
"""Read where they are there. What a manifest names comes on top."""

_CODE: Final = re.compile(r"\.(py|so(\.[0-9]+)*|dylib|dll|pyd)$")

MAX_BYTES: Final = (
    64 << 20
)  # the largest that any task reads. Of a larger one, which is refused, no byte counts


def names_for(manifest: Manifest) -> tuple[str, ...]:
    """Return names of the files that a task may read, relative to one of :func:`folders_of`."""
    names = (*NAMES, manifest.labels, *manifest.translations.values(), *manifest.files)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def folders_of(entry: ModelEntry, version: VersionEntry) -> Sequence[Path]:
    """Return where sidecar files may lie, the nearest first; nowhere for a bare file, whose neighbours are models."""
    if version.path.is_dir():
        return tuple(dict.fromkeys((version.path.parent, version.path, entry.folder)))
    return (
        tuple(dict.fromkeys((version.path.parent, entry.folder)))
        if entry.folder.name == entry.name
        else ()
    )


def sidecar_files(entry: ModelEntry, version: VersionEntry) -> list[Path]:
    """Return the sidecar files that are there, in a fixed order; no link leads out of the model's folder."""
    names = names_for(entry.manifest)
    paths = (folder / name for folder in folders_of(entry, version) for name in names)
    # Unlike Path's, this isfile is false, not an error, where a folder may not be entered: a listing asks, too.
    files = [
        path for path in paths if os.path.isfile(path) and lies_in(path, entry.folder)
    ]
    code = [path.parent for path in files if path.name == TASK_FILE]
    code += [version.path.parent] if version.format.code is Code.MODULES else []
    return list(
        dict.fromkeys(
            (*files, *(module for folder in code for module in code_files(folder)))
        )
    )


def code_files(folder: Path) -> list[Path]:
    """List the Python files and native libraries below a folder, which code in it may use, in a fixed order."""
    return sorted(
        path
        for path in folder.rglob("*")
        if _CODE.search(path.name) and os.path.isfile(path)
    )


def sidecar_hash(path: Path) -> str:
    """Return the SHA-256 of what a file holds, or a word on why it has none."""
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return "too large"
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable ({error.errno})"  # what needs it says so
