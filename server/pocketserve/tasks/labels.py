"""Class names: from the manifest's file, from the model file itself, or from a file beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.flatbuffer import DamagedFileError
from pocketserve.runtimes.tflite_archive import labels_of, strangeness
from pocketserve.runtimes.tflite_metadata import FileType, TensorMetadata
from pocketserve.tasks.facts import ModelFacts
from pocketserve.tasks.preprocessing import CONFIG, literal
from pocketserve.wording import counted
from pocketserve_wire.records import dataclass

MAX_LABELS_BYTES = 8 * 2**20
MAX_LABELS = 1 << 20
FILE_NAME = "labels.txt"
LABEL_FILES = (FileType.TENSOR_AXIS_LABELS, FileType.TENSOR_VALUE_LABELS)


@dataclass(frozen=True, slots=True)
class Labels:
    """Class names in one or several languages.

    Attributes:
        names: by index, in the language that the model's author put first.
        translations: the same by language, such as ``de`` or ``en-US``.
    """

    names: Sequence[str] = ()
    translations: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def in_language(self, language: str | None) -> Sequence[str]:
        """The names in a language, its nearest relative, or else the first ones."""
        if language is None or not self.translations:
            return self.names
        best = min(self.translations, key=lambda tag: strangeness(tag, language))
        return self.translations[best] if strangeness(best, language) <= 1 else self.names


def find_labels(facts: ModelFacts, output: int | None = None) -> Labels:
    """The class names of an output, from the first of these that has any: the manifest, TFLite metadata, ONNX metadata,
    ``config.json`` (Hugging Face), ``labels.txt`` in the model's own folder.

    Args:
        output: its position; None takes the first output that has names.

    Raises:
        ModelLoadError: the manifest's file, or a file beside the model, cannot be read.
    """
    manifest = facts.manifest
    if manifest.labels is not None:
        translated = {tag: read_labels(facts.entry.folder, name) for tag, name in manifest.translations.items()}
        return Labels(read_labels(facts.entry.folder, manifest.labels), translated)
    found = _of_tflite(facts, output)
    if found.names:
        return found
    names = _of_onnx(facts) or _of_config(facts)
    beside = facts.beside(FILE_NAME)
    if not names and beside is not None:
        names = read_labels(beside.parent, FILE_NAME)
    return Labels(names)


def read_labels(folder: Path, name: str) -> list[str]:
    """One label per line, in the order of the classes.

    Raises:
        ModelLoadError: the file cannot be read.
    """
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ModelLoadError(f"model.toml: labels names {name}, a link that leaves the model's folder")
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise ModelLoadError(f"model.toml: labels names {name}, which is larger than {MAX_LABELS_BYTES} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"model.toml: labels names {name}, which cannot be read: {error}") from None


def label_of(labels: Sequence[str], index: int) -> str:
    """The class's name, or its number where no name is known."""
    return (labels[index].strip() if 0 <= index < len(labels) else "") or str(index)


def mismatch(labels: Labels, classes: int, offset: int = 0) -> str:
    """What to say of labels that are not as many as the classes; empty where they are, or nothing is known.

    Args:
        classes: how many the model has; what is not above 1 tells nothing, since one score may stand for two classes.
        offset: what is added to a class's number to find its label.
    """
    names = len(labels.names)
    if names == classes + offset:
        return ""  # blank ones at the end are classes without a name
    while names and not labels.names[names - 1].strip():
        names -= 1
    if not names or classes <= 1 or names == classes + offset:
        return ""
    shifted = f" with label_offset = {offset}" if offset else ""
    return (
        f"the model has {counted(names, 'label')} for {classes:,} classes{shifted}, so that names are missing or stand "
        "for other classes: complete the labels, or set [classification] label_offset in model.toml"
    )


def _of_tflite(facts: ModelFacts, output: int | None) -> Labels:
    metadata = facts.metadata
    tensors = metadata.outputs if metadata is not None else ()
    chosen = [*tensors] if output is None else [*tensors[output : output + 1]]
    try:
        found = (_of_tensor(facts.file, tensor) for tensor in chosen)
        return next((labels for labels in found if labels.names), Labels())
    except DamagedFileError:
        return Labels()  # the model runs without them; `inspect` says what is wrong with the file


def _of_tensor(path: Path, tensor: TensorMetadata) -> Labels:
    locales = {file.locale for file in tensor.associated_files if file.type in LABEL_FILES and file.locale}
    names = labels_of(path, tensor) or []
    if len(locales) < 2:
        return Labels(names)
    return Labels(names, {tag: labels_of(path, tensor, tag) or [] for tag in sorted(locales)})


def _of_onnx(facts: ModelFacts) -> list[str]:
    """Ultralytics writes ``{0: 'person', ...}``."""
    return _by_number(literal(facts.properties.get("names", "")))


def _of_config(facts: ModelFacts) -> list[str]:
    """Hugging Face's ``id2label``, timm's ``label_names``."""
    config = facts.json_beside(CONFIG)
    names = config.get("label_names")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    return _by_number(config.get("id2label"))


def _by_number(names: object) -> list[str]:
    """A mapping from numbers to names as a list; gaps are empty. Nothing if it is no such mapping."""
    if not isinstance(names, dict):
        return []
    try:
        numbered = {int(number): str(name) for number, name in names.items()}
    except (TypeError, ValueError):
        return []
    if not numbered or min(numbered) < 0 or max(numbered) >= min(MAX_LABELS, 10 * len(numbered) + 100):
        return []
    return [numbered.get(index, "") for index in range(max(numbered) + 1)]
