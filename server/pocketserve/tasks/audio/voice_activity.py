"""Find segments of speech in a sound.

The model takes it window by window and keeps state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.options import AUDIO, SPECTROGRAM
from pocketserve.tasks.audio.sounds import SoundInput
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
)
from pocketserve.tasks.entries import AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.scores import (
    CLASSIFICATION,
    ClassificationOptions,
    activate,
    real_values,
)
from pocketserve.tensors import Array, TensorSpec

NAME = "voice-activity"
# Speech continues until the probability is this much below the threshold.
HYSTERESIS = 0.15


class _Times(NamedTuple):
    """The start of each window, and the length of the sound, in seconds."""

    starts: list[float]
    seconds: float

    def step(self) -> float:
        """Return the time from one window to the next; a single one is the sound."""
        if len(self.starts) > 1:
            return self.starts[1] - self.starts[0]
        return self.seconds


@dataclass
class VoiceSegment:
    """A stretch of speech: times in seconds, and the mean probability."""

    start: float
    end: float
    score: float


class VoiceActivity:
    """Take a WAV file or raw samples, as ``[audio]`` and ``[state]`` describe them."""

    name = NAME
    media = "sound"

    def __init__(self, facts: ModelFacts) -> None:
        self._activation = facts.manifest.section(ClassificationOptions).activation
        self._input = SoundInput(facts, NAME)
        self._options = self._input.options
        if self._input.window is None or self._input.window < 1:
            raise ModelLoadError(
                f"model.toml: task {NAME} needs audio.window, the samples that the model takes at a time"
            )
        # If an output has several values, the last is the probability.
        self._output = _probability_output(facts, self._options.output)

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return the windows as steps of one sequence."""
        sound = self._input.read(body, hints)
        windows = self._input.windows(sound)
        times = _Times([window.start for window in windows], sound.seconds)
        return Prepared(self._input.runs(windows), times, chained=True)

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label": "speech", "start", "end", "score"}``, by time.

        ``score`` is the mean probability. A window is speech if its probability is at
        least ``threshold``. ``pool=none`` returns ``{"start", "end", "score"}`` of each
        window.
        """
        times: _Times = context
        scores = np.array([self._probability(run) for run in runs])
        step = times.step()
        ends = [min(start + step, times.seconds) for start in times.starts]
        entries: Answer = []
        if options.values.get("pool") == "none":
            for start, end, score in zip(times.starts, ends, scores, strict=True):
                entries.append(_times_entry(start, end, float(score)))
            return entries
        silence = 1
        if step:
            silence = max(1, round(self._options.min_silence / step))
        threshold = options.threshold
        if threshold is None:
            threshold = self._options.threshold
        ranges = speech_windows(scores, threshold, silence)
        segments = self._segments(ranges, times, ends, scores)
        for segment in segments[: options.top_k]:
            entry = _times_entry(segment.start, segment.end, segment.score)
            entries.append({"label": "speech", **entry})
        return entries

    def _segments(
        self,
        ranges: Sequence[tuple[int, int]],
        times: _Times,
        ends: Sequence[float],
        scores: Array,
    ) -> list[VoiceSegment]:
        """Return the segments in ranges of windows that are long enough, padded."""
        shortest = min(self._options.min_speech, times.seconds)
        segments = []
        for first, last in ranges:
            start, end = times.starts[first], ends[last - 1]
            if end - start >= shortest:
                score = float(scores[first:last].mean())
                segments.append(VoiceSegment(start, end, score))
        _pad_segments(segments, self._options.speech_pad, times.seconds)
        return segments

    def _probability(self, run: Mapping[str, Array]) -> float:
        values = real_values(run[self._output.name], self._output)
        activated = activate(values.astype(np.float64), self._activation)
        return float(activated.reshape(-1)[-1])

    def form(self) -> Form:
        """Return the task's input and parameters."""
        threshold = parameter("threshold", default=self._options.threshold)
        pool = parameter("pool", choices=("none",), text="none answers each window.")
        return Form(
            ("sound",), (parameter("top_k"), threshold, pool, *self._input.parameters)
        )

    def describe(self) -> dict[str, str]:
        answer = "stretches of speech with start and end in seconds; ?pool=none gives each window's probability"
        return {**self._input.describe(), "answer": answer}


def _probability_output(facts: ModelFacts, declared: str) -> TensorSpec:
    """Return the declared output, else the first that is no state."""
    states = facts.manifest.state.feedback.values()
    for spec in facts.outputs:
        if spec.name == declared or (not declared and spec.name not in states):
            return spec
    names = ", ".join(spec.name for spec in facts.outputs)
    raise ModelLoadError(
        f"model.toml: task {NAME}: no output has the probability; audio.output may be {names}"
    )


def _times_entry(start: float, end: float, score: float) -> dict[str, Any]:
    return {"start": round(start, 4), "end": round(end, 4), "score": score}


def _pad_segments(segments: list[VoiceSegment], pad: float, seconds: float) -> None:
    """Extend segments at both ends; adjacent ones share the gap between them."""
    pads: list[float] = []
    before = 0.0
    for segment in segments:
        gap = segment.start - before
        pads.append(min(pad, gap / 2 if pads else gap))
        before = segment.end
    pads.append(min(pad, seconds - before))
    for number, segment in enumerate(segments):
        segment.start -= pads[number]
        segment.end += pads[number + 1]


def speech_windows(
    scores: Array, threshold: float, silence: int
) -> list[tuple[int, int]]:
    """Return the ranges [first, end) of consecutive windows that are speech.

    A range begins at the threshold. It ends if the score stays below the threshold less
    the hysteresis for ``silence`` windows.
    """
    ranges: list[tuple[int, int]] = []
    first: int | None = None
    quiet = 0
    for number, score in enumerate(scores):
        if score >= threshold:
            if first is None:
                first = number
            quiet = 0
        elif first is not None and (quiet or score < threshold - HYSTERESIS):
            quiet += 1
            if quiet >= silence:
                ranges.append((first, number - quiet + 1))
                first, quiet = None, 0
    if first is not None:
        ranges.append((first, len(scores) - quiet))
    return ranges


FIELDS = (
    AnswerField("start", "real", "seconds from the sound's start to the first speech"),
    AnswerField(
        "end", "real", "seconds from the sound's start to the end of that speech"
    ),
    AnswerField("score", "real", "the mean probability of speech, from 0 to 1"),
)
CALL = TaskCall("detect", "sound", "Stretch", FIELDS)
TASK = TaskDefinition(
    NAME, None, VoiceActivity, (AUDIO, SPECTROGRAM, CLASSIFICATION), calls=(CALL,)
)
