"""Compress a model: read the data, run the recipe, measure, publish.

The accuracy before and after is measured on samples that the recipe never saw.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.repository.files import files_below, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.registry import missing_framework
from pocketserve.tensors import Array
from pocketserve_lab.compress.recipe import Number, Recipe, checked_options, load_labels
from pocketserve_lab.compress.scores import Score, answer_rule, score_answers
from pocketserve_lab.convert.converter import ConversionError, Converter
from pocketserve_lab.convert.environments import Note, Tell
from pocketserve_lab.convert.process import Job, run_job
from pocketserve_lab.convert.run import (
    Conversion,
    ConversionSettings,
    ModelConverter,
    Reference,
)
from pocketserve_lab.convert.sample_run import load_arrays
from pocketserve_lab.convert.verify import Agreement

KIND = "torchscript"
"""The kind of every result: served without consent, and converted further."""

MAX_LOSS = 0.05


@dataclass(frozen=True)
class CompressionSettings:
    """The user's settings of a recipe.

    Attributes:
        data: labelled samples to train on: a folder, CSV or .npz file.
        test: samples to measure on; None uses a quarter of the data.
        options: of the recipe; None stands for its default.
        student: a ``model.py``, for the recipe that trains one.
        max_loss: the accuracy, or share of the error, that may be lost.
    """

    data: Path
    test: Path | None = None
    options: Mapping[str, Number | None] = field(default_factory=dict)
    student: Path | None = None
    max_loss: float = MAX_LOSS


class Compression(NamedTuple):
    """A finished compression.

    Attributes:
        conversion: the new version, as a conversion makes one.
        gzip_bytes: of the original's files and of the result, each compressed by gzip.
        trained: the number of training samples.
    """

    conversion: Conversion
    before: Score
    after: Score
    gzip_bytes: tuple[int, int]
    trained: int


class ModelCompressor(ModelConverter):
    """Run a recipe on a version of one model, as a converter is run.

    The accuracy decides about the result, not the agreement.
    """

    def __init__(
        self,
        entry: ModelEntry,
        recipe: Recipe,
        settings: ConversionSettings,
        wishes: CompressionSettings,
        tell: Tell,
        note: Note,
    ) -> None:
        self._recipe = recipe
        self._wishes = wishes
        self._source = _source_of(entry, recipe, settings.version)
        self._converter = recipe.converter()
        settings = replace(
            settings,
            version=self._source.name,
            name=settings.name or f"{KIND}-{recipe.name}",
            options=_options(recipe, wishes),
        )
        super().__init__(entry, settings, tell, note, [self._converter])
        self._scores: tuple[Score, Score] | None = None

    def _variant_bound(self, agreement: Agreement | None) -> float:
        """Accept any number, but not other sizes.

        A trained result answers differently from the original.
        """
        return sys.float_info.max

    def compress(self) -> Compression:
        """Make the new version and publish it.

        Raises:
            ConversionError: the data or the model cannot be used, or the result loses
                too much; everything is cleaned up.
        """
        self._facts = self._read_data(self._converter)
        train = str(self._sets / "train.npz")
        options = {**self._settings.options, "train": train}
        self._settings = replace(self._settings, options=options)
        before = gzip_size(version_files(self._source))
        conversion = self.convert(KIND)
        assert self._scores is not None
        files = [conversion.path]
        if conversion.path.is_dir():
            files = list(files_below(conversion.path))
        sizes = before, gzip_size(files)
        return Compression(conversion, *self._scores, sizes, self._facts["train"])

    def _read_data(self, converter: Converter) -> Mapping[str, Any]:
        """Read the user's data with the model's own task, in a separate process."""
        python = Path(sys.executable)
        if missing_framework(self._source.format) is not None:
            python = self._python(converter)
        self._sets = self._folder()
        title = "reading the data"
        document = self._data_request()
        job = Job(title, python, "pocketserve_lab.compress.data", document, self._sets)
        return run_job(job, self._settings.limits, lambda: self._tell(title, 0.0))

    def _data_request(self) -> dict[str, Any]:
        """Return the document for the process that reads the data."""
        test = self._wishes.test
        return {
            **self._place_of(self._source),
            "data": str(self._wishes.data.absolute()),
            "test": None if test is None else str(test.absolute()),
            "folder": str(self._sets),
        }

    def _sample_request(self) -> dict[str, Any]:
        return {"arrays": str(self._sets / "test.npz"), "rows": self._facts["rows"]}

    def _judge(
        self, agreement: Agreement, reference: Reference, outputs: Path, nearest: str
    ) -> list[str]:
        labels = load_labels(self._sets / "test.npz")
        original, result = _answers(reference.outputs), _answers(outputs)
        rule = answer_rule(original, labels)
        before = score_answers(original, labels, rule)
        after = score_answers(result, labels, rule)
        self._check_loss(before, after)
        self._scores = before, after
        return []

    def _check_loss(self, before: Score, after: Score) -> None:
        """Reject a result that loses more than the user allows."""
        loss = after.loss_since(before)
        # Written so that NaN is a loss, too.
        if not loss <= self._wishes.max_loss:
            raise ConversionError(
                f"the {after.metric} on {after.samples} test samples went from "
                f"{before} to {after}, a loss of {loss:.1%}, and --max-loss allows "
                f"{self._wishes.max_loss:.1%}",
                nearest=_gentler(self._recipe),
            )

    def _measured(self) -> dict[str, Any]:
        assert self._scores is not None
        before, after = self._scores
        return {
            "quantize": self._recipe.quantize,
            "metric": before.metric,
            "before": float(f"{before.value:.6g}"),
            "after": float(f"{after.value:.6g}"),
            "training_samples": self._facts["train"],
            "data_sha256": self._facts["sha256"],
        }


def _answers(outputs: Path) -> Array:
    """Return the first output of a run of samples."""
    return next(iter(load_arrays(outputs).values()))


def _source_of(entry: ModelEntry, recipe: Recipe, version: str | None) -> VersionEntry:
    """Return the version that a recipe trains.

    It is the named one, else the first of a format that the recipe supports.

    Raises:
        ConversionError: there is none.
    """
    versions = list(entry.versions.values())
    if version is not None:
        versions = [entry.versions[version]]
    for format in recipe.sources:
        for each in versions:
            if each.format.name == format and each.problem is None:
                return each
    wanted_format = "an unconverted PyTorch model"
    if len(recipe.sources) > 1:
        wanted_format += " or TorchScript"
    owner = f"{entry.name} has no such version"
    if version is not None:
        owner = f"{version} is none"
    raise ConversionError(
        f"{recipe.name} takes {wanted_format}, and {owner}; `pocketserve convert` "
        "makes other versions smaller without training"
    )


def _options(recipe: Recipe, wishes: CompressionSettings) -> dict[str, Any]:
    """Return the options for the process of the recipe."""
    return {
        "recipe": recipe.name,
        **checked_options(recipe, wishes.options),
        **_student_options(recipe, wishes),
    }


def _student_options(recipe: Recipe, wishes: CompressionSettings) -> dict[str, Any]:
    student = wishes.student
    if recipe.takes_student and student is None:
        raise ConversionError(
            f"{recipe.name} needs --student FILE, a model.py with build()"
        )
    if student is None:
        return {}
    if not recipe.takes_student:
        raise ConversionError(f"{recipe.name} takes no --student")
    try:
        digest = hashlib.sha256(student.read_bytes()).hexdigest()
    except OSError as error:
        raise ConversionError(
            f"the student {str(student)!r} cannot be read: {error.strerror}"
        ) from None
    return {"student": str(student.absolute()), "student_trusted": [digest]}


def _gentler(recipe: Recipe) -> str:
    """Return the options that lose less."""
    ways = {
        "amount": "less --amount",
        "clusters": "more --clusters",
        "epochs": "more --epochs",
    }
    return ", ".join(way for name, way in ways.items() if name in recipe.defaults)


def gzip_size(files: Sequence[Path]) -> int:
    """Return the bytes of files, each compressed by gzip."""
    return sum(len(gzip.compress(file.read_bytes(), 9, mtime=0)) for file in files)
