"""Classify a sound, as a whole or window by window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.tasks.audio.feature_extractor import is_audio_classifier
from pocketserve.tasks.audio.options import AUDIO, SPECTROGRAM
from pocketserve.tasks.audio.sounds import SoundInput, sound_properties
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
)
from pocketserve.tasks.entries import RANKED, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import answer_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.ranking import ranking_of
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tensors import Array

NAME = "audio-classification"


def fits(facts: ModelFacts) -> bool:
    """Return whether metadata or transformers' files describe a sound classifier."""
    if is_audio_classifier(facts):
        return True
    if len(facts.inputs) != 1 or len(facts.outputs) != 1:
        return False
    labelled = bool(facts.output_metadata(0).associated_files)
    return labelled and sound_properties(facts) is not None


class TimeSpan(NamedTuple):
    """The start and length of a window, in seconds."""

    start: float
    seconds: float


def _split_span(span: TimeSpan, count: int) -> list[TimeSpan]:
    """Divide a span evenly: a model may answer several rows for one run."""
    length = span.seconds / max(1, count)
    parts = []
    for row in range(count):
        start = span.start + span.seconds * row / count
        parts.append(TimeSpan(start, length))
    return parts


class AudioClassification:
    """Take a WAV file or raw samples, as ``[audio]`` or the metadata describe them."""

    name = NAME
    media = "sound"

    def __init__(self, facts: ModelFacts) -> None:
        self._input = SoundInput(facts, NAME)
        self._ranking = ranking_of(facts, self._input.options.output, NAME)
        self._pool = self._input.options.pool
        self.labels = self._ranking.labels.names
        self.problem = self._ranking.problem

    def structure(self) -> dict[str, Any]:
        return {
            "labels": answer_labels(self.labels, self._ranking.options.label_offset)
        }

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return a run for each window."""
        windows = self._input.windows(self._input.read(body, hints))
        spans = [TimeSpan(window.start, window.seconds) for window in windows]
        return Prepared(self._input.runs(windows), spans)

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first.

        With ``pool=none``, each window is answered, with its times. In the mean, a window's
        weight is the length of its sound, so the padded end of a recording weighs little.
        """
        ranking = self._ranking
        per_run = [ranking.rows(run[ranking.spec.name]) for run in runs]
        spans = []
        for answers, span in zip(per_run, context, strict=True):
            spans += _split_span(span, len(answers))
        rows = np.concatenate(per_run)
        pool = options.values.get("pool", self._pool)
        if pool == "none":
            return self._timed_entries(rows, spans, options)
        if not len(rows):
            return []
        if pool == "max":
            return ranking.best(rows.max(axis=0), options)
        seconds = [span.seconds for span in spans]
        weights = np.maximum(seconds, 1e-9)
        mean = np.average(rows, axis=0, weights=weights)
        return ranking.best(mean, options)

    def _timed_entries(
        self, rows: Array, spans: Sequence[TimeSpan], options: AnswerOptions
    ) -> Answer:
        """Return the best classes of each window, with its times."""
        entries: Answer = []
        for row, span in zip(rows, spans, strict=True):
            end = span.start + span.seconds
            entries += self._ranking.best(
                row,
                options,
                start=round(span.start, 4),
                end=round(end, 4),
            )
        return entries

    def form(self) -> Form:
        """Return the task's input and parameters."""
        pool = parameter("pool", default=self._pool)
        return Form(
            ("sound",), (*self._ranking.parameters, pool, *self._input.parameters)
        )

    def describe(self) -> dict[str, str]:
        answer = f"labels with scores, {self._pool} over the windows; ?pool=none gives each window's"
        return {**self._input.describe(), "answer": answer}


FIELDS = (
    *RANKED,
    AnswerField(
        "start",
        "real",
        "seconds from the sound's start to the window's, where each window is answered",
    ),
    AnswerField(
        "end",
        "real",
        "seconds from the sound's start to the window's end, where each is answered",
    ),
)
CALL = TaskCall("classify", "sound", "Classification", FIELDS)
TASK = TaskDefinition(
    NAME, fits, AudioClassification, (AUDIO, SPECTROGRAM, CLASSIFICATION), calls=(CALL,)
)
