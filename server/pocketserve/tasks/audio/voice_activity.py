"""A sound in, the stretches of speech in it out. The model hears it window by window and remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.audio_classification import rate_array
from pocketserve.tasks.audio.options import AUDIO, AudioOptions
from pocketserve.tasks.audio.sounds import SoundInput, rate_input, sound_input
from pocketserve.tasks.audio.spectrogram_options import SPECTROGRAM
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.classification_options import CLASSIFICATION, ClassificationOptions
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.scores import activate, real_values
from pocketserve.tensors import Array, TensorSpec

NAME = "voice-activity"
HYSTERESIS = 0.15
"""Speech that has begun goes on until the probability is this much below the threshold."""


def fits(facts: ModelFacts) -> bool:
    """Never: a probability per window may be that of anything."""
    return False


def create(facts: ModelFacts) -> VoiceActivity:
    """Set up with the manifest's ``[audio]`` and ``[state]``.

    Raises:
        ModelLoadError: the model's tensors do not fit, or the window or the sampling rate is not known.
    """
    options = facts.manifest.section(AudioOptions).of_version(facts.version.name)
    entrance = sound_input(facts, options, NAME)
    if entrance.window is None or entrance.window < 1:
        raise ModelLoadError(f"model.toml: task {NAME} needs audio.window, the samples that the model takes at a time")
    given = set(facts.manifest.state.feedback.values())
    outputs = [spec for spec in facts.outputs if spec.name == options.output or spec.name not in given]
    output = next((spec for spec in outputs if spec.name == options.output), outputs[0] if outputs else None)
    if output is None or (options.output and output.name != options.output):
        names = ", ".join(spec.name for spec in facts.outputs)
        raise ModelLoadError(f"model.toml: task {NAME}: no output holds the probability; audio.output may be {names}")
    activation = facts.manifest.section(ClassificationOptions).activation
    return VoiceActivity(entrance, rate_input(facts, options), output, options, activation)


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each window starts, in seconds; how long the sound lasts; how far windows are apart."""

    starts: Sequence[float]
    seconds: float
    step: float


class VoiceActivity:
    """Takes a WAV file or raw samples.

    Args:
        entrance: from bytes to windows.
        rate: the input that wants the sampling rate, where there is one.
        output: the probability of speech; its last value where it has several.
    """

    name = NAME

    def __init__(
        self,
        entrance: SoundInput,
        rate: TensorSpec | None,
        output: TensorSpec,
        options: AudioOptions,
        activation: str = "none",
    ) -> None:
        self._entrance = entrance
        self._rate = rate
        self._output = output
        self._options = options
        self._activation = activation

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`. The windows are steps of one sequence."""
        sound = self._entrance.read(body, hints)
        windows = self._entrance.windows(sound)
        fixed = {} if self._rate is None else {self._rate.name: rate_array(self._rate, self._entrance.rate)}
        runs = [{self._entrance.spec.name: self._entrance.tensor(window), **fixed} for window in cancellable(windows)]
        step = windows[1].start - windows[0].start if len(windows) > 1 else sound.seconds
        return Prepared(runs, Timeline([window.start for window in windows], sound.seconds, step), chained=True)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"label": "speech", "start", "end", "score"}`` in order of time, ``score`` the mean probability.

        ``threshold`` is the probability from which a window is speech. ``pool=none`` answers every window's:
        ``{"start", "end", "score"}``.
        """
        values = [real_values(run[self._output.name], self._output) for run in runs]
        scores = np.array([activate(v.astype(np.float64), self._activation).reshape(-1)[-1] for v in values])
        ends = [min(start + context.step, context.seconds) for start in context.starts]
        if options.values.get("pool") == "none":
            return [
                {"start": round(start, 4), "end": round(end, 4), "score": float(score)}
                for start, end, score in zip(context.starts, ends, scores, strict=True)
            ]
        threshold = self._options.threshold if options.threshold is None else options.threshold
        pieces = speech_windows(scores, threshold, self._count(self._options.min_silence, context.step))
        return self._segments(pieces, scores, ends, context)[: options.top_k]

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        answer = "stretches of speech with start and end in seconds; ?pool=none gives each window's probability"
        return {**self._entrance.describe(), "answer": answer}

    @staticmethod
    def _count(seconds: float, step: float) -> int:
        return max(1, round(seconds / step)) if step else 1

    def _segments(
        self, pieces: Sequence[tuple[int, int]], scores: Array, ends: Sequence[float], times: Timeline
    ) -> Answer:
        """Pieces that are long enough, with some room at both ends that neighbours share."""
        kept = [
            (a, b) for a, b in pieces if ends[b - 1] - times.starts[a] >= min(self._options.min_speech, times.seconds)
        ]
        answer: Answer = []
        for number, (first, last) in enumerate(kept):
            before = ends[kept[number - 1][1] - 1] if number else 0.0
            after = times.starts[kept[number + 1][0]] if number + 1 < len(kept) else times.seconds
            start, end = times.starts[first], ends[last - 1]
            pad = self._options.speech_pad
            start -= min(pad, (start - before) / (2 if number else 1))
            end += min(pad, (after - end) / (2 if number + 1 < len(kept) else 1))
            score = float(scores[first:last].mean())
            answer.append({"label": "speech", "start": round(start, 4), "end": round(end, 4), "score": score})
        return answer


def speech_windows(scores: Array, threshold: float, silence: int) -> list[tuple[int, int]]:
    """Runs of windows [first, behind the last) that are speech.

    A run begins at the threshold and ends where the score stays below the threshold less the hysteresis for ``silence``
    windows.
    """
    pieces: list[tuple[int, int]] = []
    first: int | None = None
    quiet = 0
    for number, score in enumerate(scores):
        if score >= threshold:
            first, quiet = (number if first is None else first), 0
        elif first is not None and (quiet or score < threshold - HYSTERESIS):
            quiet += 1
            if quiet >= silence:
                pieces.append((first, number - quiet + 1))
                first, quiet = None, 0
    if first is not None:
        pieces.append((first, len(scores) - quiet))
    return pieces


TASK = TaskDefinition(NAME, fits, create, (AUDIO, SPECTROGRAM, CLASSIFICATION))
