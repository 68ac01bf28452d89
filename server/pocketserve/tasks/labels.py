"""Find class names in or beside the model."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pocketserve.formats import DamagedFileError
from pocketserve.messages import plural
from pocketserve.repository.manifest import MAX_LANGUAGES
from pocketserve.repository.sidecar_files import LABEL_FILES
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import TensorMetadata
from pocketserve.tasks.foreign.label_files import (
    MAX_LABELS,
    LabelFile,
    check_line_count,
    fit_to_classes,
    names_or_lines,
    parse_labels,
)
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, literal
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tensors import TensorSpec
from pocketserve_wire.files.plain_file import lies_in

MAX_LABELS_BYTES = 8 * 2**20  # all languages together; 21,000 names have 600 kB
MAX_SHIFT = 10_000  # most classes that ``label_offset`` may put before the labels
_TASKS_WITH_NAMELESS_ZERO = ("image-segmentation", "recommendation")
# Columns of boxes, and of boxes with score and class, for any number of classes.
_BOX_COLUMNS = {4, 6}
_LABEL_BYTES = 65  # memory of a short text and its entry in a list


class Labels(NamedTuple):
    """Class names in one or several languages.

    Attributes:
        names: by index, in the language that the model's author listed first.
        translations: names by language, such as ``de`` or ``en-US``.
    """

    names: Sequence[str] = ()
    translations: Mapping[str, Sequence[str]] = {}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameter that chooses a language, if there are several."""
        if not self.translations:
            return ()
        return (parameter("language", examples=tuple(self.translations)),)

    def in_language(self, language: str | None) -> Sequence[str]:
        """Return the names in the closest language.

        That is the language itself, a related one, or that of the first names.
        """
        if language is None or not self.translations:
            return self.names
        best = min(self.translations, key=lambda tag: _distance(tag, language))
        if _distance(best, language) <= 1:
            return self.translations[best]
        return self.names


def find_labels(facts: ModelFacts, output: int | None = None) -> Labels:
    """Find the class names of an output, or of any.

    Without an output, the first one that has names counts. The sources are, in this
    order: the manifest, TFLite metadata, ONNX metadata,
    ``config.json`` (Hugging Face), a label file with a usual name in the model's folder.

    Raises:
        ModelLoadError: the manifest's file or ``config.json`` cannot be read.
    """
    labels: Labels | None = facts.cache.get(("labels", output))
    if labels is None:
        labels = _find(facts, output)
        facts.cache["labels", output] = labels
        weight = _weight(labels)
        facts.weights["labels"] = max(weight, facts.weights.get("labels", 0))
    return labels


def _weight(labels: Labels) -> int:
    """Estimate the memory of labels.

    Translations may share a list.
    """
    lists = [labels.names, *labels.translations.values()]
    weight = 0
    for names in {id(names): names for names in lists}.values():
        weight += _LABEL_BYTES * len(names) + sum(len(name) for name in names)
    return weight


def _find(facts: ModelFacts, output: int | None) -> Labels:
    manifest = facts.manifest
    if manifest.labels is not None:
        sources = (manifest.labels, *manifest.translations.values())
        files = _read_labels(
            facts,
            facts.entry.folder,
            [source for source in sources if isinstance(source, str)],
        )
        names, *translated = [
            files[source] if isinstance(source, str) else source for source in sources
        ]
        return Labels(names, dict(zip(manifest.translations, translated, strict=True)))
    labels = _of_metadata(facts, output)
    if labels.names:
        return labels
    # Ultralytics writes {0: 'person', ...} into its properties, YOLOv5 ['person', ...].
    names = names_of(literal(facts.properties.get("names", ""))) or _of_config(facts)
    return Labels(names or _of_file_beside(facts))


def _of_file_beside(facts: ModelFacts) -> Sequence[str]:
    """Return names from the first usual label file.

    A file that can't be read is reported and otherwise ignored.
    """
    for name in LABEL_FILES:
        path = facts.beside(name)
        if path is None:
            continue
        try:
            parsed = parse_labels(
                name, _checked(facts.read_tried(path, MAX_LABELS_BYTES))
            )
        except DamagedFileError as error:
            _add_note(facts, f"the model has no class names: {name} {error}")
        except OSError as error:
            _add_note(facts, f"the model has no class names: {name} {_reason(error)}")
        else:
            if parsed.note:
                _add_note(facts, f"{name} {parsed.note}")
            return _fitted(facts, name, parsed)
    return ()


def _fitted(facts: ModelFacts, name: str, parsed: LabelFile) -> Sequence[str]:
    """Return a file's names by the model's class numbers.

    TensorFlow's label maps begin at 1, TFLite's detection operator at 0. Source:
    tensorflow/models, research/object_detection/export_tflite_graph_tf2.py.
    """
    count = _class_count(facts)
    names = names_or_lines(parsed, count)
    begins_at_one = len(names) > 0 and not names[0].strip()
    if begins_at_one and name.endswith(".pbtxt"):
        is_operator = facts.version.format.name == "tflite" and len(facts.outputs) == 4
        if is_operator:
            return names[1:]
        return fit_to_classes(names, count)
    if begins_at_one and count < 1 and not _may_name_no_class_zero(facts, len(names)):
        return names[1:]
    return fit_to_classes(names, count)


def _may_name_no_class_zero(facts: ModelFacts, names: int) -> bool:
    """Return whether class 0 may be nameless.

    It may be padding or background, or the names fit the outputs.
    """
    manifest = facts.manifest
    outputs = facts.outputs
    if manifest.task in _TASKS_WITH_NAMELESS_ZERO:
        return True
    for options in manifest.sections.values():
        if getattr(options, "label_offset", 0) or getattr(options, "background", False):
            return True
    if len(outputs) == 1 and (
        len(outputs[0].shape) == 4 or _is_integer_map(outputs[0])
    ):
        return True
    columns = set()
    for output in outputs:
        if len(output.shape) == 3:
            columns.add(output.shape[-1])
    # DETR has a last class "no object".
    return not columns.isdisjoint({names, names + 1} - _BOX_COLUMNS)


def _is_integer_map(output: TensorSpec) -> bool:
    return len(output.shape) == 3 and output.datatype.startswith(("INT", "UINT"))


def _class_count(facts: ModelFacts) -> int:
    """Return the only output's number of scores; 0 if unknown."""
    if len(facts.outputs) != 1:
        return 0
    shape = facts.outputs[0].shape
    if len(shape) in (1, 2):
        return shape[-1]
    return 0


def _checked(content: bytes) -> bytes:
    check_line_count([content])
    return content


def _add_note(facts: ModelFacts, note: str) -> None:
    if note not in facts.notes:
        facts.notes.append(note)


def _reason(error: OSError) -> str:
    if error.errno == errno.EFBIG:
        return f"has more than {MAX_LABELS_BYTES} bytes"
    return f"cannot be read: {error.strerror}"


def _labels_key(folder: Path) -> str:
    """Return the file and key that name the labels, for messages."""
    is_tritons = (folder / "config.pbtxt").is_file()
    if is_tritons and not (folder / "model.toml").is_file():
        return "config.pbtxt: label_filename"
    return "model.toml: labels"


def _read_labels(
    facts: ModelFacts, folder: Path, names: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Read the label files that the manifest names, each once.

    Raises:
        ModelLoadError: a file can't be read.
    """
    key = _labels_key(folder)
    contents = _read_contents(facts, folder, names)
    try:
        check_line_count(list(contents.values()))
    except DamagedFileError as error:
        raise ModelLoadError(f"model.toml: {error}") from None
    labels: dict[str, Sequence[str]] = {}
    for name, content in contents.items():
        try:
            parsed = parse_labels(name, content)
        except DamagedFileError as error:
            raise ModelLoadError(f"{key} names {name}, which {error}") from None
        if parsed.note:
            _add_note(facts, f"{name} {parsed.note}")
        labels[name] = _fitted(facts, name, parsed)
    return labels


def _read_contents(
    facts: ModelFacts, folder: Path, names: Sequence[str]
) -> dict[str, bytes]:
    """Read files of a model's folder, up to a total size."""
    key = _labels_key(folder)
    contents: dict[str, bytes] = {}
    left = MAX_LABELS_BYTES
    for name in dict.fromkeys(names):
        path = folder / name
        if not lies_in(path, folder):
            raise ModelLoadError(
                f"{key} names {name}, a link that leaves the model's folder"
            )
        try:
            contents[name] = facts.read_tried(path, left)
        except OSError as error:
            reason = _reason(error)
            if error.errno == errno.EFBIG:
                reason = f"has, with the others, more than {MAX_LABELS_BYTES} bytes"
            raise ModelLoadError(f"{key} names {name}, which {reason}") from None
        left -= len(contents[name])
    return contents


def label_of(labels: Sequence[str], index: int) -> str:
    """Return a class's name, or its number without a name."""
    name = ""
    if 0 <= index < len(labels):
        name = labels[index].strip()
    return name or str(index)


def answer_labels(names: Sequence[str], offset: int = 0) -> list[str]:
    """Return class names by index; empty without names."""
    if not names or offset < -MAX_SHIFT:
        return []
    return [
        label_of(names, index + offset) for index in range(max(0, len(names) - offset))
    ]


def mismatch(labels: Labels, classes: int, offset: int = 0) -> str:
    """Describe a wrong number of labels, or return "".

    One class is never reported, as one score may stand for two classes.

    Args:
        offset: the shift from classes to labels.
    """
    count = 0
    for number, name in enumerate(labels.names, 1):
        if name.strip():
            count = number
    # Blank labels at the end may be classes without a name, or none.
    if classes + offset in (len(labels.names), count) or not count or classes <= 1:
        return ""
    shifted = ""
    if offset:
        shifted = f" with label_offset = {offset}"
    return (
        f"the model has {plural(count, 'label')} for {classes:,} classes{shifted}, so that names are missing or stand "
        "for other classes: complete the labels, or set [classification] label_offset in model.toml"
    )


def _of_metadata(facts: ModelFacts, output: int | None) -> Labels:
    tensors: Sequence[TensorMetadata] = facts.metadata.outputs
    if output is not None:
        tensors = (facts.output_metadata(output),)
    try:
        for tensor in tensors:
            labels = labels_of_tensor(tensor, facts.associated_files)
            if labels.names:
                return labels
    except DamagedFileError:
        pass  # the model runs without them; `inspect` reports the fault
    return Labels()


def labels_of_tensor(
    tensor: TensorMetadata, read: Callable[[Sequence[str], int], list[bytes]]
) -> Labels:
    """Return the labels in a tensor's metadata.

    Args:
        read: returns associated files within a size.

    Raises:
        DamagedFileError: a file cannot be read, or there are too many.
    """
    files = tensor.label_files
    if not files:
        return Labels()
    by_language = {file.locale: file.name for file in reversed(files) if file.locale}
    if len(by_language) > MAX_LANGUAGES:
        raise DamagedFileError(f"it has labels in more than {MAX_LANGUAGES} languages")
    if len(by_language) == 1:
        by_language = {}
    first = min(files, key=lambda file: _distance(file.locale, None)).name
    names = list(dict.fromkeys((first, *by_language.values())))
    contents = read(names, MAX_LABELS_BYTES)
    check_line_count(contents)
    lines = {}
    for name, content in zip(names, contents, strict=True):
        lines[name] = _lines_of(content)
    translations = {tag: lines[by_language[tag]] for tag in sorted(by_language)}
    return Labels(lines[first], translations)


def _lines_of(content: bytes) -> list[str]:
    """Return a label per line.

    An empty line is the label of its index, too.
    """
    text = content.decode("utf-8-sig", errors="replace")
    if not text:
        return []
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def _distance(locale: str, language: str | None) -> int:
    """Return 0 for a file in a language, more for others."""
    have, want = (tag.replace("_", "-").casefold() for tag in (locale, language or ""))
    if have == want:
        return 0
    if want and have.split("-")[0] == want.split("-")[0]:
        return 1
    if have:
        return 3
    return 2


def _of_config(facts: ModelFacts) -> list[str]:
    """Return Hugging Face's ``id2label`` or timm's names of the classes."""
    config = facts.json_beside(CONFIG)
    if not config:
        return []
    from pocketserve.tasks.foreign.timm_config import (
        timm_labels,  # late: few models have the file
    )

    return names_of(timm_labels(config)) or names_of(config.get("id2label"))


def names_of(names: object) -> list[str]:
    """Return the names in a list or mapping."""
    if not isinstance(names, list | tuple):
        return _by_number(names)
    if not all(isinstance(name, str) for name in names) or len(names) > MAX_LABELS:
        return []
    return list(names)


def _by_number(names: object) -> list[str]:
    """Convert a mapping by number to a list.

    Gaps are empty. Anything else becomes [].
    """
    if not isinstance(names, dict):
        return []
    try:
        numbered = {int(number): str(name) for number, name in names.items()}
    except (TypeError, ValueError):
        return []
    if not numbered or min(numbered) < 0:
        return []
    last = max(numbered)
    if last >= min(MAX_LABELS, 10 * len(numbered) + 100):
        return []
    return [numbered.get(index, "") for index in range(last + 1)]
