"""The user's data: files and rows for the model's own task to read, with the truth where somebody wrote it down.

A folder holds one folder a label, or files with a ``labels.csv`` beside them, or files that are named like their labels
(``7.png``, ``7-b.png``). A CSV file names files, or holds texts, or rows of features; any other file is one sample.
``docs/compare.md`` has examples. Conversions read their samples here, too, also in environments that have NumPy only.
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
"""Columns of a CSV file that hold the truth; a box has those of :data:`BOX` besides."""

_OTHER_SUFFIXES = frozenset({".md", ".toml", ".py", ".yaml", ".yml", ".html"})
"""Of files in a folder that are no samples."""


class SampleError(ValueError):
    """Data that cannot be used; the text is one sentence with the way out."""


class DataSample(NamedTuple):
    """A raw input.

    Attributes:
        name: for people: the file's path in the data's folder, or ``row 12``.
        body: its file, or the bytes themselves.
        truth: a class's label, a regression's number, a segmentation's mask file, a text, or the list of
            ``{"label", "x", "y", "width", "height"}`` of a picture; None where nobody says.
    """

    name: str
    body: Path | bytes
    truth: Any = None

    def read(self) -> bytes:
        """Return the bytes to send; OSError for a file that is gone or too large."""
        return (
            self.body
            if isinstance(self.body, bytes)
            else read_plain(self.body, MAX_FILE_BYTES)
        )


class Facts(NamedTuple):
    """Facts about a model that decide how data is read; a worker tells them.

    Attributes:
        labels: names of its classes, in order; empty where it has none.
        features, target: names of a table's columns, where the manifest gives them.
    """

    task: str
    labels: Sequence[str] = ()
    features: Sequence[str] = ()
    target: str = ""


def facts_of(entry: ModelEntry, model: LoadedModel) -> Facts:
    """Return what decides how data is read for a model."""
    labels = getattr(model.task, "labels", ())
    return Facts(
        model.task.name,
        list(labels),
        list(entry.manifest.feature_names),
        entry.manifest.target_name,
    )


def read_samples(data: Path, facts: Facts, limit: int) -> list[DataSample]:
    """Return samples as :func:`select_samples` does, with truths that the model's task can be judged by.

    Raises:
        SampleError: there are none, the CSV file cannot be understood, or a truth is none of the model's task.
    """
    samples = select_samples(data, facts, limit)
    if facts.task.endswith("-classification"):
        _check_classes(
            [sample for sample in samples if sample.truth is not None], facts.labels
        )
        return samples
    return [_checked(sample, facts) for sample in samples]


def select_samples(data: Path, facts: Facts, limit: int) -> list[DataSample]:
    """Return the samples of a folder or file, ``limit`` at most, spread evenly over all of them.

    Raises:
        SampleError: there are none, or a CSV file cannot be understood.
    """
    try:
        samples = list(_all_samples(data, facts))
    except OSError as error:
        raise SampleError(f"{error.filename}: {error.strerror}") from None
    step = max(
        1.0, len(samples) / limit
    )  # sorted by folders, the first ones might all be of one class
    return [samples[int(index * step)] for index in range(min(limit, len(samples)))]


def sample_files(data: Path) -> list[Path]:
    """List the files of samples: the one that is named, or those below a folder, in the order of their names.

    Raises:
        SampleError: there are none, or too many.
    """
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise SampleError(
            f"the samples {str(data)!r} are no file and no folder; name one that is there"
        )
    files = [
        path
        for path in sorted(data.rglob("*"))
        if path.is_file() and not _is_other(path.relative_to(data))
    ]
    if not files:
        raise SampleError(
            f"the folder {str(data)!r} holds no samples; docs/compare.md says what it may hold"
        )
    if len(files) > MAX_FILES:
        raise SampleError(
            f"{str(data)!r} holds {len(files):,} files; {MAX_FILES:,} are possible"
        )
    return files


def hash_samples(samples: Iterable[DataSample]) -> str:
    """Return the SHA-256 over the hashes of what samples hold, in order; OSError for a file that is gone."""
    total = hashlib.sha256()
    for sample in samples:
        body = sample.body
        total.update(
            bytes.fromhex(sha256_of(body))
            if isinstance(body, Path)
            else hashlib.sha256(body).digest()
        )
    return total.hexdigest()


def _checked(sample: DataSample, facts: Facts) -> DataSample:
    """Return a sample whose truth its task can be judged by; of a task that has no score, without one."""
    if sample.truth is None:
        return sample
    if facts.task == "object-detection":
        problem = _box_problem(sample.truth, facts.labels)
    elif facts.task == "tabular-regression":
        problem = (
            ""
            if _is_finite(sample.truth)
            else f"the true value {sample.truth!r} is no finite number"
        )
    elif facts.task == "image-segmentation":
        problem = _mask_problem(sample.truth)
    elif facts.task == "question-answering":
        problem = "" if isinstance(sample.truth, str) else "it needs a column 'answer'"
    else:
        return sample._replace(truth=None)
    if problem:
        raise SampleError(f"{sample.name}: {problem}")
    return sample


Classes = frozenset[Any]
"""A true class by its index; several ones where a model has classes of the same label."""


def read_classes(
    truths: Sequence[Any], classes: Iterable[tuple[Any, str]]
) -> list[Classes]:
    """Return the classes that truths mean, all of them read in one way; none for a truth that is no class.

    They are read as labels; where that explains more of them, as labels in other letters (capitals), or as the numbers
    of the classes. So a ``0`` among the labels 1 to 9 is not the class that is called 1.

    Args:
        classes: index and label of each.
    """
    labels: dict[str, set[Any]] = {}
    numbers: dict[str, set[Any]] = {}
    for index, label in classes:
        labels.setdefault(label.strip(), set()).add(index)
        numbers.setdefault(str(index), set()).add(index)
    folded = Counter(map(str.casefold, labels))
    letters = {
        label.casefold(): each
        for label, each in labels.items()
        if folded[label.casefold()] == 1
    }
    texts = [str(truth).strip() for truth in truths]
    readings = [
        [frozenset(table.get(text, ())) for text in keys]
        for table, keys in (
            (labels, texts),
            (letters, [text.casefold() for text in texts]),
            (numbers, texts),
        )
    ]
    return max(readings, key=lambda reading: sum(map(bool, reading)))


def _check_classes(samples: Sequence[DataSample], labels: Sequence[str]) -> None:
    """Refuse a truth that is none of the classes, as far as there are labels."""
    for sample in samples:
        if not isinstance(sample.truth, str):
            raise SampleError(
                f"{sample.name}: boxes are no class; name one in a column 'label'"
            )
    classes = read_classes([sample.truth for sample in samples], enumerate(labels))
    wrong = next(
        (sample for sample, each in zip(samples, classes, strict=True) if not each),
        None,
    )
    if labels and wrong is not None:
        raise SampleError(
            f"{wrong.name}: the label {wrong.truth!r} is none of the model's: {_listed(labels)}"
        )


def _box_problem(truth: Any, labels: Sequence[str]) -> str:
    if not isinstance(truth, list):
        return f"it needs the columns {', '.join(BOX)}"
    for box in truth:
        if labels and box["label"] not in labels:
            return (
                f"the label {box['label']!r} is none of the model's: {_listed(labels)}"
            )
        if (
            not all(_is_finite(box[key]) for key in BOX)
            or box["width"] < 0
            or box["height"] < 0
        ):
            return f"the box of {box['label']!r} needs finite numbers, and none below 0 for its size"
    return ""


def _mask_problem(truth: Any) -> str:
    import PIL.Image

    if not isinstance(truth, str):
        return "boxes are no mask; name its file in a column 'mask'"
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
    tables = (
        [listed]
        if listed.is_file()
        else [path for path in files if path.suffix.lower() == ".csv"]
    )
    if listed.is_file() or len(tables) == len(files):
        for table in tables:
            yield from _of_table(table, facts)
    else:
        root = data if data.is_dir() else data.parent
        yield from _of_files(
            [path for path in files if path not in tables], root, facts
        )


def _of_files(files: Sequence[Path], root: Path, facts: Facts) -> Iterator[DataSample]:
    names = [path.relative_to(root) for path in files]
    if not facts.task.endswith("-classification"):  # a name tells no more than a class
        truths: list[str | None] = [None] * len(names)
    elif all(len(name.parts) == 2 for name in names):  # one folder a label
        truths = [name.parts[0] for name in names]
    else:
        truths = [_label_in(name.stem, facts.labels) for name in names]
        if None in truths:
            truths = [None] * len(names)
    yield from (
        DataSample(str(name), path, truth)
        for name, path, truth in zip(names, files, truths, strict=True)
    )


def _is_other(path: Path) -> bool:
    return (
        any(part.startswith(".") for part in path.parts)
        or path.suffix.lower() in _OTHER_SUFFIXES
    )


def _label_in(stem: str, labels: Sequence[str]) -> str | None:
    """Return the label that a file's name is, or begins with before a separator: ``7``, ``7-b``, ``tabby cat_2``."""
    candidates = [
        label
        for label in labels
        if re.fullmatch(rf"{re.escape(label)}([-_. ].*)?", stem, re.IGNORECASE)
    ]
    return max(
        candidates, key=lambda label: (len(label), stem.startswith(label)), default=None
    )


def _of_table(path: Path, facts: Facts) -> Iterator[DataSample]:
    """Read a CSV file with a line of names; its column ``file``, ``text`` or else the features are the input."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [
            line
            for line in csv.reader(text.splitlines())
            if any(cell.strip() for cell in line)
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise SampleError(f"{path.name} is no CSV file in UTF-8: {error}") from None
    if lines and all(map(_is_finite, lines[0])):  # rows without a line of names
        lines = [[str(number) for number in range(1, len(lines[0]) + 1)], *lines]
    if len(lines) < 2:
        raise SampleError(
            f"{path.name} needs a line of column names and a line for each sample"
        )
    head = [cell.strip() for cell in lines[0]]
    uneven = next(
        (number for number, line in enumerate(lines, 1) if len(line) != len(head)), None
    )
    if uneven is not None:
        raise SampleError(
            f"{path.name}: line {uneven} has {len(lines[uneven - 1])} cells, the first {len(head)}"
        )
    rows = [dict(zip(head, map(str.strip, line), strict=True)) for line in lines[1:]]
    if "file" in head:
        yield from _of_listed_files(path, rows)
    elif "text" in head or "question" in head:
        for number, row in enumerate(rows, 2):
            body = (
                json.dumps({key: row[key] for key in ("question", "context")})
                if "question" in head
                else row["text"]
            )
            yield DataSample(f"line {number}", body.encode(), _truth(row, path.parent))
    else:
        yield from _of_features(path, rows, head, facts)


def _of_listed_files(
    path: Path, rows: Sequence[Mapping[str, str]]
) -> Iterator[DataSample]:
    """Yield one sample a file; several lines of a file are several boxes on its picture."""
    grouped: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        grouped.setdefault(row["file"], []).append(row)
    for name, lines in grouped.items():
        if not (path.parent / name).is_file():
            raise SampleError(f"{path.name} names {name!r}, which is not beside it")
        if set(BOX) <= lines[0].keys():
            boxes = [
                {
                    "label": line["label"],
                    **{key: _number(path, line[key]) for key in BOX},
                }
                for line in lines
            ]
            yield DataSample(
                name, path.parent / name, [box for box in boxes if box["label"]]
            )
        else:
            yield DataSample(name, path.parent / name, _truth(lines[0], path.parent))


def _of_features(
    path: Path, rows: Sequence[Mapping[str, str]], head: list[str], facts: Facts
) -> Iterator[DataSample]:
    """Yield one sample a row; the truth is in the column named like the target, ``label`` or ``value``, or follows."""
    names = [name for name in facts.features if name in head]
    inputs = names if facts.features and len(names) == len(facts.features) else []
    target = next(
        (name for name in (facts.target, *TRUTHS) if name and name in head), None
    )
    if target is None and len(facts.features) == len(head) - 1:
        target = (
            next(name for name in head if name not in names) if inputs else head[-1]
        )
    inputs = inputs or [name for name in head if name != target]
    if facts.features and len(inputs) != len(facts.features):
        raise SampleError(
            f"{path.name} has {len(inputs)} columns for the {len(facts.features)} features "
            f"{', '.join(facts.features[:20])}; name its columns like them"
        )
    for number, row in enumerate(rows, 2):
        body = json.dumps([_number(path, row[name]) for name in inputs])
        yield DataSample(
            f"line {number}", body.encode(), (row[target] or None) if target else None
        )


def _truth(row: Mapping[str, str], folder: Path) -> Any:
    name = next((name for name in TRUTHS if row.get(name)), None)
    if name is None:
        return None
    return str(folder / row[name]) if name == "mask" else row[name]


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SampleError(f"{path.name}: {text!r} is no number") from None
