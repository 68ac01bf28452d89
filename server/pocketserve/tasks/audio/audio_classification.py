"""A sound in, the likeliest classes out: over all of it, or window by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.tasks.audio.options import AUDIO, AudioOptions
from pocketserve.tasks.audio.sounds import SoundInput, hears_sound, rate_input, sound_input
from pocketserve.tasks.audio.spectrogram_options import SPECTROGRAM
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.classification_options import CLASSIFICATION
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import Ranking, ranking_of
from pocketserve.tensors import Array, TensorSpec

NAME = "audio-classification"


def fits(facts: ModelFacts) -> bool:
    """A sound in, and one output that has labels: then nothing else can be meant."""
    metadata = facts.metadata
    if metadata is None or len(facts.outputs) != 1 or not metadata.outputs:
        return False
    return hears_sound(facts) and bool(metadata.outputs[0].associated_files)


def create(facts: ModelFacts) -> AudioClassification:
    """Set up with the manifest's ``[audio]`` and the file's metadata.

    Raises:
        ModelLoadError: the model's tensors do not fit, or its sampling rate is not known.
    """
    options = facts.manifest.section(AudioOptions).of_version(facts.version.name)
    ranking = ranking_of(facts, options.output, NAME)
    return AudioClassification(sound_input(facts, options, NAME), rate_input(facts, options), ranking, options.pool)


class AudioClassification:
    """Takes a WAV file or raw samples.

    Args:
        entrance: from bytes to windows.
        rate: the input that wants the sampling rate, where there is one.
        ranking: of the output with the scores, one row a window.
        pool: ``mean`` or ``max`` over windows.
    """

    name = NAME

    def __init__(self, entrance: SoundInput, rate: TensorSpec | None, ranking: Ranking, pool: str) -> None:
        self.labels = ranking.labels.names
        self.problem = ranking.problem
        self._entrance = entrance
        self._rate = rate
        self._ranking = ranking
        self._pool = pool

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`. One run a window."""
        windows = self._entrance.windows(self._entrance.read(body, hints))
        fixed = {} if self._rate is None else {self._rate.name: rate_array(self._rate, self._entrance.rate)}
        runs = [{self._entrance.spec.name: self._entrance.tensor(window), **fixed} for window in cancellable(windows)]
        return Prepared(runs, [(window.start, window.seconds) for window in windows])

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"label", "index", "score"}``, best first; with ``pool=none`` for each window, with ``start`` and ``end``.

        A window counts in the mean by how much of it is sound: the padded rest of a recording weighs little.
        """
        ranking = self._ranking
        per_run = [ranking.rows(run[ranking.spec.name]) for run in runs]
        spans = [span for rows, whole in zip(per_run, context, strict=True) for span in _split(whole, len(rows))]
        rows = np.concatenate(per_run)
        if options.values.get("pool") == "none":
            return [
                entry
                for row, (start, seconds) in zip(rows, spans, strict=True)
                for entry in ranking.best(row, options, start=round(start, 4), end=round(start + seconds, 4))
            ]
        pool = options.values.get("pool", self._pool)
        return ranking.best(_pooled(rows, [seconds for _, seconds in spans], pool), options)

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        answer = f"labels with scores, {self._pool} over the windows; ?pool=none gives each window's"
        return {**self._entrance.describe(), "answer": answer}


def rate_array(spec: TensorSpec, rate: int) -> Array:
    """The sampling rate as the input that asks for it wants it."""
    kind = np.float32 if spec.datatype == "FP32" else np.int32 if spec.datatype == "INT32" else np.int64
    return np.full([1] * len(spec.shape) if not spec.open else [], rate, dtype=kind)


def _split(span: tuple[float, float], rows: int) -> list[tuple[float, float]]:
    """The times of the rows that a model makes of one run."""
    start, seconds = span
    return [(start + seconds * row / rows, seconds / rows) for row in range(rows)]


def _pooled(rows: Array, seconds: Sequence[float], pool: str) -> Array:
    if not len(rows):
        return np.zeros(0)
    if pool == "max":
        return np.asarray(rows.max(axis=0))
    return np.average(rows, axis=0, weights=np.maximum(seconds, 1e-9))


TASK = TaskDefinition(NAME, fits, create, (AUDIO, SPECTROGRAM, CLASSIFICATION))
