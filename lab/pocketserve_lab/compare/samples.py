"""Read the user's data as samples with known truths.

A folder contains one folder per label, or files with a ``labels.csv``, or files named
after their labels (``7.png``, ``7-b.png``). A CSV file lists files, texts or rows of
features; any other file is one sample. ``docs/compare.md`` has examples. Conversions
read their samples here, too, also in environments that have NumPy only.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.messages import excerpt, label_list
from pocketserve.repository.files import sha256_of
from pocketserve.repository.scan import ModelEntry
from pocketserve_wire.files.plain_file import read_plain

LABELS_FILE = "labels.csv"
MAX_FILES = 100_000
MAX_FILE_BYTES = 256 << 20
BOX = ("x", "y", "width", "height")
TRUTHS = ("label", "value", "mask", "answer")
"""Columns of a CSV file that contain the truth; a box also needs :data:`BOX`."""

_OTHER_SUFFIXES = frozenset({".md", ".toml", ".py", ".yaml", ".yml", ".html"})
"""Files in a folder that are not samples."""


class SampleError(ValueError):
    """Data that cannot be used.

    The text is one sentence with the way out.
    """


class DataSample(NamedTuple):
    """A raw input.

    Attributes:
        name: for people: the file's path in the data's folder, or ``row 12``.
        body: its file, or the bytes themselves.
        truth: a class's label, a regression's number, a segmentation's mask file, a
            text, or the list of ``{"label", "x", "y", "width", "height"}`` of a
            picture; None if unknown.
    """

    name: str
    body: Path | bytes
    truth: Any = None

    def read(self) -> bytes:
        """Return the bytes to send.

        OSError for a file that is gone or too large.
        """
        if isinstance(self.body, bytes):
            return self.body
        return read_plain(self.body, MAX_FILE_BYTES)


class Facts(NamedTuple):
    """Facts about a model that decide how data is read.

    A worker reports them.

    Attributes:
        labels: names of its classes, in order; empty if it has none.
        features: names of a table's columns, if the manifest has them.
        target: name of a table's column with the truth, if the manifest has it.
    """

    task: str
    labels: Sequence[str] = ()
    features: Sequence[str] = ()
    target: str = ""


def facts_of(entry: ModelEntry, model: LoadedModel) -> Facts:
    """Return the facts for reading a model's data."""
    labels = getattr(model.task, "labels", ())
    return Facts(
        model.task.name,
        list(labels),
        list(entry.manifest.feature_names),
        entry.manifest.target_name,
    )


def read_samples(data: Path, facts: Facts, limit: int) -> list[DataSample]:
    """Select samples, and check that their truths fit the model's task.

    Raises:
        SampleError: there are none, the CSV file is invalid, or a truth does not fit
            the model's task.
    """
    samples = select_samples(data, facts, limit)
    if facts.task.endswith("-classification"):
        labelled = [sample for sample in samples if sample.truth is not None]
        _check_classes(labelled, facts.labels)
        return samples
    return [_checked(sample, facts) for sample in samples]


def select_samples(data: Path, facts: Facts, limit: int) -> list[DataSample]:
    """Return at most ``limit`` samples, spread evenly over the data.

    Raises:
        SampleError: there are none, or a CSV file is invalid.
    """
    try:
        samples = list(_all_samples(data, facts))
    except OSError as error:
        raise SampleError(f"{error.filename}: {error.strerror}") from None
    # Files are sorted by folder: the first ones might all be of one class.
    step = max(1.0, len(samples) / limit)
    return [samples[int(index * step)] for index in range(min(limit, len(samples)))]


def sample_files(data: Path) -> list[Path]:
    """List a file itself, or the samples below a folder.

    Raises:
        SampleError: there are none, or too many.
    """
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise SampleError(
            f"the samples {str(data)!r} are neither a file nor a folder; name an "
            "existing one"
        )
    files = []
    for path in sorted(data.rglob("*")):
        if path.is_file() and not _is_other(path.relative_to(data)):
            files.append(path)
    if not files:
        raise SampleError(
            f"the folder {str(data)!r} has no samples; docs/compare.md lists what it "
            "may contain"
        )
    if len(files) > MAX_FILES:
        raise SampleError(
            f"{str(data)!r} holds {len(files):,} files; {MAX_FILES:,} are possible"
        )
    return files


def hash_samples(samples: Iterable[DataSample]) -> str:
    """Return the SHA-256 over the hashes of all samples, in order.

    Raises:
        OSError: a file is gone.
    """
    total = hashlib.sha256()
    for sample in samples:
        if isinstance(sample.body, Path):
            total.update(bytes.fromhex(sha256_of(sample.body)))
        else:
            total.update(hashlib.sha256(sample.body).digest())
    return total.hexdigest()


def _checked(sample: DataSample, facts: Facts) -> DataSample:
    """Check that a sample's truth fits its task.

    Drop it if the task has no score.
    """
    if sample.truth is None:
        return sample
    if facts.task == "object-detection":
        problem = _box_problem(sample.truth, facts.labels)
    elif facts.task == "tabular-regression":
        problem = _value_problem(sample.truth)
    elif facts.task == "image-segmentation":
        problem = _mask_problem(sample.truth)
    elif facts.task in ("question-answering", "speech-to-text"):
        problem = _answer_problem(sample.truth)
    else:
        return sample._replace(truth=None)
    if problem:
        raise SampleError(f"{sample.name}: {problem}")
    return sample


Classes = frozenset[Any]
"""The index of a true class; several if classes share the label."""


def read_classes(
    truths: Sequence[Any], classes: Iterable[tuple[Any, str]]
) -> list[Classes]:
    """Return the classes that truths name.

    An empty set for an unknown one. All truths are read in the same way: as labels; or,
    if that explains more of them, as labels regardless of case, or as class numbers. So
    a ``0`` among the labels 1 to 9 is not the class that is called 1.

    Args:
        classes: index and label of each.
    """
    labels: dict[str, set[Any]] = {}
    numbers: dict[str, set[Any]] = {}
    for index, label in classes:
        labels.setdefault(label.strip(), set()).add(index)
        numbers.setdefault(str(index), set()).add(index)
    texts = [str(truth).strip() for truth in truths]
    readings = [
        _look_up(texts, labels),
        _look_up(map(str.casefold, texts), _fold(labels)),
        _look_up(texts, numbers),
    ]
    return max(readings, key=_count_named)


def _count_named(classes: Sequence[Classes]) -> int:
    """Return the number of truths that name a class."""
    return sum(map(bool, classes))


def _fold(labels: Mapping[str, set[Any]]) -> dict[str, set[Any]]:
    """Return the labels by their lower case, without ambiguous ones."""
    counts = Counter(map(str.casefold, labels))
    folded = {}
    for label, indices in labels.items():
        if counts[label.casefold()] == 1:
            folded[label.casefold()] = indices
    return folded


def _look_up(texts: Iterable[str], classes: Mapping[str, set[Any]]) -> list[Classes]:
    return [frozenset(classes.get(text, ())) for text in texts]


def _check_classes(samples: Sequence[DataSample], labels: Sequence[str]) -> None:
    """Reject a truth that is not one of the classes."""
    for sample in samples:
        if not isinstance(sample.truth, str):
            raise SampleError(
                f"{sample.name}: boxes are not a class; name one in a column 'label'"
            )
    if not labels:
        return
    classes = read_classes([sample.truth for sample in samples], enumerate(labels))
    for sample, indices in zip(samples, classes, strict=True):
        if not indices:
            raise SampleError(
                f"{sample.name}: the label {sample.truth!r} is none of the model's: "
                f"{_listed(labels)}"
            )


def _box_problem(truth: Any, labels: Sequence[str]) -> str:
    if not isinstance(truth, list):
        return f"it needs the columns {', '.join(BOX)}"
    for box in truth:
        label = box["label"]
        if labels and label not in labels:
            return f"the label {label!r} is none of the model's: {_listed(labels)}"
        is_finite = all(_is_finite(box[key]) for key in BOX)
        if not is_finite or box["width"] < 0 or box["height"] < 0:
            return (
                f"the box of {label!r} needs finite numbers, "
                "and none below 0 for its size"
            )
    return ""


def _value_problem(truth: Any) -> str:
    if _is_finite(truth):
        return ""
    return f"the true value {truth!r} is not a finite number"


def _answer_problem(truth: Any) -> str:
    if isinstance(truth, str):
        return ""
    return "it needs a column 'answer'"


def _mask_problem(truth: Any) -> str:
    import PIL.Image

    if not isinstance(truth, str):
        return "boxes are not a mask; name its file in a column 'mask'"
    try:
        with PIL.Image.open(truth) as picture:
            picture.load()
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):
        return f"the mask {truth!r} cannot be opened as a picture"
    return ""


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _listed(labels: Sequence[str]) -> str:
    return excerpt(label_list(labels), 200)


def _all_samples(data: Path, facts: Facts) -> Iterator[DataSample]:
    files = sample_files(data)
    listed = data / LABELS_FILE
    if listed.is_file():
        yield from _of_table(listed, facts)
        return
    tables = [path for path in files if path.suffix.lower() == ".csv"]
    if len(tables) == len(files):
        for table in tables:
            yield from _of_table(table, facts)
        return
    root = data if data.is_dir() else data.parent
    samples = [path for path in files if path not in tables]
    yield from _of_files(samples, root, facts)


def _of_files(files: Sequence[Path], root: Path, facts: Facts) -> Iterator[DataSample]:
    names = [path.relative_to(root) for path in files]
    truths = _truths_in(names, facts)
    for name, path, truth in zip(names, files, truths, strict=True):
        yield DataSample(str(name), path, truth)


def _truths_in(names: Sequence[Path], facts: Facts) -> Sequence[str | None]:
    """Return the labels in names of files or folders, or None."""
    unknown = [None] * len(names)
    # A name can give a class only.
    if not facts.task.endswith("-classification"):
        return unknown
    if all(len(name.parts) == 2 for name in names):
        return [name.parts[0] for name in names]
    truths = [_label_in(name.stem, facts.labels) for name in names]
    if None in truths:
        return unknown
    return truths


def _is_other(path: Path) -> bool:
    if path.suffix.lower() in _OTHER_SUFFIXES:
        return True
    return any(part.startswith(".") for part in path.parts)


def _label_in(stem: str, labels: Sequence[str]) -> str | None:
    """Return the label at the start of a file's name.

    Such as ``7``, ``7-b``, ``tabby cat_2``.
    """
    candidates = []
    for label in labels:
        pattern = rf"{re.escape(label)}([-_. ].*)?"
        if re.fullmatch(pattern, stem, re.IGNORECASE):
            candidates.append(label)
    return max(
        candidates, key=lambda label: (len(label), stem.startswith(label)), default=None
    )


def _of_table(path: Path, facts: Facts) -> Iterator[DataSample]:
    """Read a CSV file with a header.

    The input is its column ``file``, ``text`` or ``question``, or else the features.
    """
    lines = _read_lines(path)
    head = list(map(str.strip, lines[0]))
    rows = _read_rows(path, head, lines[1:])
    if "file" in head:
        yield from _of_listed_files(path, rows)
    elif "text" in head or "question" in head:
        yield from _of_texts(path, rows)
    else:
        yield from _of_features(path, rows, head, facts)


def _read_rows(
    path: Path, head: Sequence[str], lines: Sequence[Sequence[str]]
) -> list[dict[str, str]]:
    """Return the cells of each line by the names of the columns."""
    rows = []
    for number, line in enumerate(lines, 2):
        if len(line) != len(head):
            raise SampleError(
                f"{path.name}: line {number} has {len(line)} cells, "
                f"the first {len(head)}"
            )
        rows.append(dict(zip(head, map(str.strip, line), strict=True)))
    return rows


def _read_lines(path: Path) -> list[list[str]]:
    """Return the lines of a CSV file, a header first.

    Numbers if it has none.
    """
    lines = _parse_csv(path)
    if lines and all(map(_is_finite, lines[0])):
        header = list(map(str, range(1, len(lines[0]) + 1)))
        lines.insert(0, header)
    if len(lines) < 2:
        raise SampleError(
            f"{path.name} needs a line of column names and a line for each sample"
        )
    return lines


def _parse_csv(path: Path) -> list[list[str]]:
    """Return the lines of a CSV file that are not empty."""
    lines = []
    try:
        text = path.read_text(encoding="utf-8-sig")
        for line in csv.reader(text.splitlines()):
            if any(map(str.strip, line)):
                lines.append(line)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SampleError(f"{path.name} is not a CSV file in UTF-8: {error}") from None
    return lines


def _of_texts(path: Path, rows: Sequence[Mapping[str, str]]) -> Iterator[DataSample]:
    """Yield one sample for each text, or question with its context."""
    for number, row in enumerate(rows, 2):
        if "question" in row:
            question = {key: row[key] for key in ("question", "context")}
            body = json.dumps(question)
        else:
            body = row["text"]
        yield DataSample(f"line {number}", body.encode(), _truth(row, path.parent))


def _of_listed_files(
    path: Path, rows: Sequence[Mapping[str, str]]
) -> Iterator[DataSample]:
    """Yield one sample per file.

    Several lines are several boxes on its picture.
    """
    for name, lines in _by_file(rows).items():
        file = path.parent / name
        if not file.is_file():
            raise SampleError(f"{path.name} names {name!r}, which is not beside it")
        if set(BOX) <= lines[0].keys():
            yield DataSample(name, file, _read_boxes(path, lines))
        else:
            yield DataSample(name, file, _truth(lines[0], path.parent))


def _by_file(
    rows: Sequence[Mapping[str, str]],
) -> dict[str, list[Mapping[str, str]]]:
    grouped: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        grouped.setdefault(row["file"], []).append(row)
    return grouped


def _read_boxes(path: Path, lines: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the true boxes; a line without a label has none."""
    boxes = []
    for line in lines:
        box: dict[str, Any] = {"label": line["label"]}
        for key in BOX:
            box[key] = _number(path, line[key])
        if box["label"]:
            boxes.append(box)
    return boxes


def _of_features(
    path: Path, rows: Sequence[Mapping[str, str]], head: list[str], facts: Facts
) -> Iterator[DataSample]:
    """Yield one sample per row."""
    columns, target = _choose_columns(head, facts)
    if facts.features and len(columns) != len(facts.features):
        raise _wrong_columns(path, len(columns), facts)
    for number, row in enumerate(rows, 2):
        numbers = [_number(path, row[name]) for name in columns]
        truth = row[target] or None if target else None
        yield DataSample(f"line {number}", json.dumps(numbers).encode(), truth)


def _wrong_columns(path: Path, number: int, facts: Facts) -> SampleError:
    features = ", ".join(facts.features[:20])
    return SampleError(
        f"{path.name} has {number} columns for the {len(facts.features)} "
        f"features {features}; name its columns like them"
    )


def _choose_columns(head: list[str], facts: Facts) -> tuple[list[str], str | None]:
    """Return the columns of the features and of the truth.

    The truth is in the column named like the target, ``label`` or ``value``; else in
    the one column that is not a feature, or the last one.
    """
    features = [name for name in facts.features if name in head]
    has_names = bool(features) and len(features) == len(facts.features)
    target = _named_target(head, facts)
    extra_columns = len(head) - len(facts.features)
    if not has_names:
        if target is None and extra_columns == 1:
            target = head[-1]
        return [name for name in head if name != target], target
    if target is None and extra_columns == 1:
        target = next(name for name in head if name not in features)
    return features, target


def _named_target(head: Sequence[str], facts: Facts) -> str | None:
    """Return the column with the name of a truth."""
    for name in (facts.target, *TRUTHS):
        if name and name in head:
            return name
    return None


def _truth(row: Mapping[str, str], folder: Path) -> Any:
    for name in TRUTHS:
        if row.get(name):
            if name == "mask":
                return str(folder / row[name])
            return row[name]
    return None


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SampleError(f"{path.name}: {text!r} is not a number") from None
