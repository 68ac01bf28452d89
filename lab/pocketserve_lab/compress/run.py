"""Compress a model: read the data, run the recipe, measure before and after on samples that it never saw, publish."""

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
from pocketserve_lab.compress.recipe import Number, Recipe, checked_options, load_labels
from pocketserve_lab.compress.scores import Score, score_answers
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
"""Of every result: it is served without consent, and converted further like any version."""

MAX_LOSS = 0.05


@dataclass(frozen=True)
class CompressionSettings:
    """The user's wishes for a recipe.

    Attributes:
        data: labelled samples to train on: a folder, CSV or .npz file.
        test: those to measure on; None takes a quarter of the data.
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
        trained: the number of samples that the recipe was given.
    """

    conversion: Conversion
    before: Score
    after: Score
    gzip_bytes: tuple[int, int]
    trained: int


class ModelCompressor(ModelConverter):
    """Runs a recipe on a version of one model as a converter is run; the accuracy decides, not the agreement."""

    def __init__(
        self,
        entry: ModelEntry,
        recipe: Recipe,
        settings: ConversionSettings,
        wishes: CompressionSettings,
        tell: Tell,
        note: Note,
    ) -> None:
        self._recipe, self._wishes = recipe, wishes
        self._source, self._converter = (
            _source_of(entry, recipe, settings.version),
            recipe.converter(),
        )
        settings = replace(
            settings,
            version=self._source.name,
            name=settings.name or f"{KIND}-{recipe.name}",
            options={
                "recipe": recipe.name,
                **checked_options(recipe, wishes.options),
                **_student_options(recipe, wishes),
            },
        )
        super().__init__(entry, settings, tell, note, [self._converter])
        self._scores: tuple[Score, Score] | None = None

    def compress(self) -> Compression:
        """Make the new version and publish it.

        Raises:
            ConversionError: the data or the model cannot be used, or the result loses too much; nothing is left behind.
        """
        self._facts = self._read_data(self._converter)
        train = str(self._sets / "train.npz")
        self._settings = replace(
            self._settings, options={**self._settings.options, "train": train}
        )
        before = gzip_size(version_files(self._source))
        conversion = self.convert(KIND)
        assert self._scores is not None
        after = gzip_size(
            files_below(conversion.path)
            if conversion.path.is_dir()
            else [conversion.path]
        )
        return Compression(
            conversion, *self._scores, (before, after), self._facts["train"]
        )

    def _read_data(self, converter: Converter) -> Mapping[str, Any]:
        """Have the user's data read by the model's own task, in a process as the samples of a conversion are."""
        missing = missing_framework(self._source.format)
        python = Path(sys.executable) if missing is None else self._python(converter)
        self._sets = self._folder()
        paths = {"data": self._wishes.data, "test": self._wishes.test}
        absolute = {
            name: None if path is None else str(path.absolute())
            for name, path in paths.items()
        }
        document = {
            **self._place_of(self._source),
            **absolute,
            "folder": str(self._sets),
        }
        job = Job(
            "reading the data",
            python,
            "pocketserve_lab.compress.data",
            document,
            self._sets,
        )
        return run_job(
            job, self._settings.limits, lambda: self._tell("reading the data", 0.0)
        )

    def _sample_request(self) -> dict[str, Any]:
        return {"arrays": str(self._sets / "test.npz"), "rows": self._facts["rows"]}

    def _judge(
        self, agreement: Agreement, reference: Reference, outputs: Path, nearest: str
    ) -> list[str]:
        labels = load_labels(self._sets / "test.npz")
        before, after = (
            score_answers(next(iter(load_arrays(path).values())), labels)
            for path in (reference.outputs, outputs)
        )
        loss = after.loss_since(before)
        if not loss <= self._wishes.max_loss:
            raise ConversionError(
                f"the {after.metric} on {after.samples} test samples went from {before} to {after}, a loss of "
                f"{loss:.1%}, and --max-loss allows {self._wishes.max_loss:.1%}",
                nearest=_gentler(self._recipe),
            )
        self._scores = before, after
        return []

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


def _source_of(entry: ModelEntry, recipe: Recipe, version: str | None) -> VersionEntry:
    """Return the version that a recipe takes: the named one, else the first of a format that it trains.

    Raises:
        ConversionError: there is none.
    """
    versions = entry.versions.values() if version is None else [entry.versions[version]]
    fits = (
        each
        for each in versions
        if each.format.name in recipe.sources and each.problem is None
    )
    source = next(
        iter(sorted(fits, key=lambda each: recipe.sources.index(each.format.name))),
        None,
    )
    if source is None:
        owner = (
            f"{entry.name} has no such version"
            if version is None
            else f"{version} is none"
        )
        raise ConversionError(
            f"{recipe.name} takes an unconverted PyTorch model{' or TorchScript' if len(recipe.sources) > 1 else ''}, "
            f"and {owner}; `pocketserve convert` makes what is there smaller without training"
        )
    return source


def _student_options(recipe: Recipe, wishes: CompressionSettings) -> dict[str, Any]:
    if recipe.takes_student != (wishes.student is not None):
        fault = (
            "needs --student FILE, a model.py with build()"
            if recipe.takes_student
            else "takes no --student"
        )
        raise ConversionError(f"{recipe.name} {fault}")
    if wishes.student is None:
        return {}
    try:
        digest = hashlib.sha256(wishes.student.read_bytes()).hexdigest()
    except OSError as error:
        raise ConversionError(
            f"the student {str(wishes.student)!r} cannot be read: {error.strerror}"
        ) from None
    return {"student": str(wishes.student.absolute()), "student_trusted": [digest]}


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
