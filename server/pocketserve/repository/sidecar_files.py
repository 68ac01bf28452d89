"""Sidecar files of a model: labels, vocabularies, configurations, ``task.py``.

The list is complete: a trial's verdict covers exactly these files, so a task that reads
another one must add it here.
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
    "labels.txt",
    "labels.json",
    "labels.csv",
    "label_map.pbtxt",
    "labelmap.pbtxt",
    "class_names.txt",
    "class_names.json",
    "classes.txt",
    "classes.json",
    "labelmap.txt",
    "label_map.txt",
)
"""Label files that are read without a manifest, in order of preference."""

NAMES: Final = (
    *LABEL_FILES,
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    TASK_FILE,
    "metadata.json",
    "metadata.yaml",
    "signature.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "2_Normalize/config.json",
    "3_Normalize/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
)
"""Read if they exist, in addition to the files that a manifest names."""

_CODE: Final = r"\.(py|so(\.[0-9]+)*|dylib|dll|pyd)$"

MAX_BYTES: Final = 64 << 20
"""The largest file that any task reads. Larger ones are rejected, and not hashed."""


def names_for(manifest: Manifest) -> tuple[str, ...]:
    """Return the relative names of files that a task may read."""
    names = list(NAMES)
    for labels in (manifest.labels, *manifest.translations.values()):
        if isinstance(labels, str):
            names.append(labels)
    names += manifest.files
    return tuple(dict.fromkeys(names))


def folders_of(entry: ModelEntry, version: VersionEntry) -> Sequence[Path]:
    """Return the folders of sidecar files, the nearest first.

    A bare model file has none, because other models are in its folder.
    """
    if version.path.is_dir():
        return tuple(dict.fromkeys((version.path.parent, version.path, entry.folder)))
    if entry.folder.name != entry.name:
        return ()
    return tuple(dict.fromkeys((version.path.parent, entry.folder)))


def sidecar_files(entry: ModelEntry, version: VersionEntry) -> list[Path]:
    """Return the existing sidecar files in a fixed order."""
    names = names_for(entry.manifest)
    files = []
    for folder in folders_of(entry, version):
        for name in names:
            file = os.path.join(folder, name)
            # Unlike Path.is_file, this returns False for inaccessible folders.
            if not os.path.isfile(file):
                continue
            path = Path(file)
            if lies_in(path, entry.folder):
                files.append(path)
    code = [path.parent for path in files if path.name == TASK_FILE]
    if version.format.code is Code.MODULES:
        code.append(version.path.parent)
    for folder in code:
        files += code_files(folder)
    return list(dict.fromkeys(files))


def code_files(folder: Path) -> list[Path]:
    """List the Python files and native libraries below a folder."""
    files = []
    for path in folder.rglob("*"):
        if re.search(_CODE, path.name) and os.path.isfile(path):
            files.append(path)
    return sorted(files)


def sidecar_hash(path: Path) -> str:
    """Return the SHA-256 of a file, or why it has none."""
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return "too large"
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable ({error.errno})"  # its reader will report the error
