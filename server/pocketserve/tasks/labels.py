"""Class names: from the manifest's file, from the model file itself, or from a file beside it."""

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

MAX_LABELS_BYTES = (
    8 * 2**20
)  # of all languages together; 21,000 class names have 600 kB
MAX_SHIFT = 10_000  # classes that ``label_offset`` may put in front of the labels
_TASKS_WITH_NAMELESS_ZERO = ("image-segmentation", "recommendation")
_BOX_COLUMNS = {
    4,
    6,
}  # of boxes, and of boxes with score and class, for any number of classes
_LABEL_BYTES = 65  # that a short text takes, and its entry in a list


class Labels(NamedTuple):
    """Class names in one or several languages."""

    names: Sequence[
        str
    ] = ()  # by index, in the language that the model's author put first
    translations: Mapping[
        str, Sequence[str]
    ] = {}  # the same by language, such as ``de`` or ``en-US``

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameter that chooses a language; none where there is one language."""
        return (
            (parameter("language", examples=tuple(self.translations)),)
            if self.translations
            else ()
        )

    def in_language(self, language: str | None) -> Sequence[str]:
        """Return the names in a language, its nearest relative, or else the first ones."""
        if language is None or not self.translations:
            return self.names
        best = min(self.translations, key=lambda tag: _distance(tag, language))
        return self.translations[best] if _distance(best, language) <= 1 else self.names


def find_labels(facts: ModelFacts, output: int | None = None) -> Labels:
    """Find the class names of an output; None takes the first output that has names.

    They are from the first of these that has any: the manifest, TFLite metadata, ONNX metadata, ``config.json``
    (Hugging Face), a label file with a usual name in the model's own folder.

    Raises:
        ModelLoadError: the manifest's file, or ``config.json``, cannot be read.
    """
    labels: Labels | None = facts.cache.get(("labels", output))
    if labels is None:
        labels = facts.cache["labels", output] = _find(facts, output)
        lists = {
            id(names): names for names in (labels.names, *labels.translations.values())
        }
        weight = sum(
            _LABEL_BYTES * len(names) + sum(map(len, names)) for names in lists.values()
        )
        facts.weights["labels"] = max(weight, facts.weights.get("labels", 0))
    return labels


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
    """Return names from the first usual label file; a file that can't be read is reported and otherwise ignored."""
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
    """Return the names of a file by the model's class numbers.

    TensorFlow's label maps begin at 1, TFLite's detection operator at 0. Source: tensorflow/models,
    research/object_detection/export_tflite_graph_tf2.py.
    """
    count = _class_count(facts)
    names = names_or_lines(parsed, count)
    begins_at_one = len(names) > 0 and not names[0].strip()
    if begins_at_one and name.endswith(".pbtxt"):
        is_operator = facts.version.format.name == "tflite" and len(facts.outputs) == 4
        return names[1:] if is_operator else fit_to_classes(names, count)
    if begins_at_one and count < 1 and not _may_name_no_class_zero(facts, len(names)):
        return names[1:]
    return fit_to_classes(names, count)


def _may_name_no_class_zero(facts: ModelFacts, names: int) -> bool:
    """Return whether class 0 may have no name: it is padding or background, or the names fit the outputs."""
    manifest, outputs = facts.manifest, facts.outputs
    if manifest.task in _TASKS_WITH_NAMELESS_ZERO:
        return True
    for options in manifest.sections.values():
        if getattr(options, "label_offset", 0) or getattr(options, "background", False):
            return True
    if len(outputs) == 1 and (
        len(outputs[0].shape) == 4 or _is_integer_map(outputs[0])
    ):
        return True
    columns = {output.shape[-1] for output in outputs if len(output.shape) == 3}
    # DETR has a last class "no object".
    return not columns.isdisjoint({names, names + 1} - _BOX_COLUMNS)


def _is_integer_map(output: TensorSpec) -> bool:
    return len(output.shape) == 3 and output.datatype.startswith(("INT", "UINT"))


def _class_count(facts: ModelFacts) -> int:
    """Return the number of scores of the only output; 0 if there are several outputs or its size is unknown."""
    if len(facts.outputs) != 1:
        return 0
    shape = facts.outputs[0].shape
    return shape[-1] if len(shape) in (1, 2) else 0


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


def _read_labels(
    facts: ModelFacts, folder: Path, names: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Read label files that the manifest names; each is read once.

    Raises:
        ModelLoadError: a file can't be read.
    """
    contents: dict[str, bytes] = {}
    for name in dict.fromkeys(names):
        path = folder / name
        if not lies_in(path, folder):
            raise ModelLoadError(
                f"model.toml: labels names {name}, a link that leaves the model's folder"
            )
        try:
            contents[name] = facts.read_tried(
                path, MAX_LABELS_BYTES - sum(map(len, contents.values()))
            )
        except OSError as error:
            large = f"has, with the others, more than {MAX_LABELS_BYTES} bytes"
            reason = large if error.errno == errno.EFBIG else _reason(error)
            raise ModelLoadError(
                f"model.toml: labels names {name}, which {reason}"
            ) from None
    try:
        check_line_count(list(contents.values()))
    except DamagedFileError as error:
        raise ModelLoadError(f"model.toml: {error}") from None
    labels: dict[str, Sequence[str]] = {}
    for name, content in contents.items():
        try:
            parsed = parse_labels(name, content)
        except DamagedFileError as error:
            raise ModelLoadError(
                f"model.toml: labels names {name}, which {error}"
            ) from None
        if parsed.note:
            _add_note(facts, f"{name} {parsed.note}")
        labels[name] = _fitted(facts, name, parsed)
    return labels


def label_of(labels: Sequence[str], index: int) -> str:
    """Return a class's name, or its number where no name is known."""
    return (labels[index].strip() if 0 <= index < len(labels) else "") or str(index)


def answer_labels(names: Sequence[str], offset: int = 0) -> list[str]:
    """Return class names by the index of answers; empty where there are none."""
    if not names or offset < -MAX_SHIFT:
        return []
    return [
        label_of(names, index + offset) for index in range(max(0, len(names) - offset))
    ]


def mismatch(labels: Labels, classes: int, offset: int = 0) -> str:
    """Return the fault of labels that are not as many as the classes; empty where they are, or nothing is known.

    One class tells nothing, since one score may stand for two classes. ``offset`` leads from classes to labels.
    """
    count = max(
        (number for number, name in enumerate(labels.names, 1) if name.strip()),
        default=0,
    )
    # Blank labels at the end may be classes without a name, or none.
    if classes + offset in (len(labels.names), count) or not count or classes <= 1:
        return ""
    shifted = f" with label_offset = {offset}" if offset else ""
    return (
        f"the model has {plural(count, 'label')} for {classes:,} classes{shifted}, so that names are missing or stand "
        "for other classes: complete the labels, or set [classification] label_offset in model.toml"
    )


def _of_metadata(facts: ModelFacts, output: int | None) -> Labels:
    tensors = (
        facts.metadata.outputs if output is None else (facts.output_metadata(output),)
    )
    try:
        by_tensor = (
            labels_of_tensor(tensor, facts.associated_files) for tensor in tensors
        )
        return next((labels for labels in by_tensor if labels.names), Labels())
    except DamagedFileError:
        return (
            Labels()
        )  # the model runs without them; `inspect` says what is wrong with the file


def labels_of_tensor(
    tensor: TensorMetadata, read: Callable[[Sequence[str], int], list[bytes]]
) -> Labels:
    """Return the labels that a tensor's metadata names; ``read`` returns associated files within a size.

    Raises:
        DamagedFileError: a file cannot be read, or there are too many.
    """
    files = tensor.label_files
    if not files:
        return Labels()
    by_language = {file.locale: file.name for file in reversed(files) if file.locale}
    if len(by_language) > MAX_LANGUAGES:
        raise DamagedFileError(f"it has labels in more than {MAX_LANGUAGES} languages")
    by_language = dict(sorted(by_language.items())) if len(by_language) > 1 else {}
    first = min(files, key=lambda file: _distance(file.locale, None)).name
    names = list(dict.fromkeys((first, *by_language.values())))
    contents = read(names, MAX_LABELS_BYTES)
    check_line_count(contents)
    lines: dict[str, list[str]] = {}
    for name, content in zip(names, contents, strict=True):
        text = content.decode(
            "utf-8-sig", errors="replace"
        )  # an empty line is the label of its index
        lines[name] = (
            [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
            if text
            else []
        )
    return Labels(lines[first], {tag: lines[name] for tag, name in by_language.items()})


def _distance(locale: str, language: str | None) -> int:
    """Return 0 for a file in a language, more for worse ones."""
    have, want = (tag.replace("_", "-").casefold() for tag in (locale, language or ""))
    if have == want:
        return 0
    if want and have.split("-")[0] == want.split("-")[0]:
        return 1
    return 3 if have else 2


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
    """Return names that are a list, or a map by number; empty for anything else."""
    if not isinstance(names, list | tuple):
        return _by_number(names)
    if not all(isinstance(name, str) for name in names) or len(names) > MAX_LABELS:
        return []
    return list(names)


def _by_number(names: object) -> list[str]:
    """Return a mapping from numbers to names as a list, gaps empty; nothing for anything else."""
    try:
        numbered = (
            {int(number): str(name) for number, name in names.items()}
            if isinstance(names, dict)
            else {}
        )
    except (TypeError, ValueError):
        return []
    if (
        not numbered
        or min(numbered) < 0
        or max(numbered) >= min(MAX_LABELS, 10 * len(numbered) + 100)
    ):
        return []
    return [numbered.get(index, "") for index in range(max(numbered) + 1)]
