"""A sound in, the likeliest classes out: over all of it, or window by window."""

from __future__ import annotations

from typing import Any

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

NAME = "audio-classification"


def fits(facts: ModelFacts) -> bool:
    """Return whether a sound goes in and the one output has labels, by the metadata or transformers' files."""
    if is_audio_classifier(facts):
        return True
    labelled = bool(facts.output_metadata(0).associated_files)
    return (
        len(facts.inputs) == len(facts.outputs) == 1
        and labelled
        and sound_properties(facts) is not None
    )


class AudioClassification:
    """Takes a WAV file or raw samples; set up with the manifest's ``[audio]`` and the file's metadata."""

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
        """Return a run a window; the context is (start, seconds) of each."""
        windows = self._input.windows(self._input.read(body, hints))
        return Prepared(
            self._input.runs(windows),
            [(window.start, window.seconds) for window in windows],
        )

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first; with ``pool=none`` per window, with its times.

        A window counts in the mean by how much of it is sound: the padded rest of a recording weighs little.
        """
        ranking, pool = self._ranking, options.values.get("pool", self._pool)
        per_run = [ranking.rows(run[ranking.spec.name]) for run in runs]
        rows = np.concatenate(per_run)
        spans = [  # a model may answer several rows for one run
            (start + seconds * row / len(answers), seconds / len(answers))
            for answers, (start, seconds) in zip(per_run, context, strict=True)
            for row in range(len(answers))
        ]
        if pool == "none":
            return [
                entry
                for row, (start, seconds) in zip(rows, spans, strict=True)
                for entry in ranking.best(
                    row, options, start=round(start, 4), end=round(start + seconds, 4)
                )
            ]
        if not len(rows):
            return []
        weights = np.maximum([seconds for _, seconds in spans], 1e-9)
        return ranking.best(
            rows.max(axis=0)
            if pool == "max"
            else np.average(rows, axis=0, weights=weights),
            options,
        )

    def form(self) -> Form:
        """Return what the task takes."""
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
