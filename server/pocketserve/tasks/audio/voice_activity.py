"""A sound in, the segments of speech in it out. The model takes it window by window and remembers."""

from __future__ import annotations

from typing import Any

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
from pocketserve.tensors import Array

NAME = "voice-activity"
HYSTERESIS = 0.15  # speech that has begun goes on until the probability is this much below the threshold


class VoiceActivity:
    """Takes a WAV file or raw samples; set up with the manifest's ``[audio]`` and ``[state]``."""

    name = NAME
    media = "sound"

    def __init__(self, facts: ModelFacts) -> None:
        self._activation = facts.manifest.section(ClassificationOptions).activation
        self._input = SoundInput(facts, NAME)
        self._options = options = self._input.options
        if self._input.window is None or self._input.window < 1:
            raise ModelLoadError(
                f"model.toml: task {NAME} needs audio.window, the samples that the model takes at a time"
            )
        states, names = (
            facts.manifest.state.feedback.values(),
            [spec.name for spec in facts.outputs],
        )
        fitting = (
            s
            for s in facts.outputs
            if (s.name == options.output if options.output else s.name not in states)
        )
        output = next(fitting, None)
        if output is None:
            raise ModelLoadError(
                f"model.toml: task {NAME}: no output holds the probability; audio.output may be {', '.join(names)}"
            )
        self._output = output  # of speech; its last value where it has several

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return the windows as steps of one sequence; the context is their starts and the sound's end in seconds."""
        sound = self._input.read(body, hints)
        windows = self._input.windows(sound)
        return Prepared(
            self._input.runs(windows),
            ([window.start for window in windows], sound.seconds),
            chained=True,
        )

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label": "speech", "start", "end", "score"}`` in order of time, ``score`` the mean probability.

        ``threshold`` is the probability from which a window is speech. ``pool=none`` answers every window's:
        ``{"start", "end", "score"}``.
        """
        values = [real_values(run[self._output.name], self._output) for run in runs]
        scores = np.array(
            [
                activate(v.astype(np.float64), self._activation).reshape(-1)[-1]
                for v in values
            ]
        )
        starts, seconds = context
        step = starts[1] - starts[0] if len(starts) > 1 else seconds
        ends = [min(start + step, seconds) for start in starts]
        if options.values.get("pool") == "none":
            return [
                {"start": round(start, 4), "end": round(end, 4), "score": float(score)}
                for start, end, score in zip(starts, ends, scores, strict=True)
            ]
        threshold = (
            self._options.threshold if options.threshold is None else options.threshold
        )
        silence = max(1, round(self._options.min_silence / step)) if step else 1
        shortest = min(self._options.min_speech, seconds)
        segments = [
            (starts[first], ends[last - 1], float(scores[first:last].mean()))
            for first, last in speech_windows(scores, threshold, silence)
            if ends[last - 1] - starts[first] >= shortest
        ]
        # Some room at both ends, which neighbours share.
        befores, afters = (
            [0.0, *(end for _, end, _ in segments)],
            [*(start for start, _, _ in segments), seconds],
        )
        rooms = [after - before for before, after in zip(befores, afters, strict=True)]
        rooms[1:-1] = [room / 2 for room in rooms[1:-1]]
        pads = [min(self._options.speech_pad, room) for room in rooms]
        return [
            {
                "label": "speech",
                "start": round(start - before, 4),
                "end": round(end + after, 4),
                "score": score,
            }
            for (start, end, score), before, after in zip(
                segments, pads, pads[1:], strict=False
            )
        ][: options.top_k]

    def form(self) -> Form:
        """Return what the task takes."""
        threshold = parameter("threshold", default=self._options.threshold)
        pool = parameter("pool", choices=("none",), text="none answers each window.")
        return Form(
            ("sound",), (parameter("top_k"), threshold, pool, *self._input.parameters)
        )

    def describe(self) -> dict[str, str]:
        answer = "stretches of speech with start and end in seconds; ?pool=none gives each window's probability"
        return {**self._input.describe(), "answer": answer}


def speech_windows(
    scores: Array, threshold: float, silence: int
) -> list[tuple[int, int]]:
    """Return runs of windows [first, behind the last) that are speech.

    A run begins at the threshold and ends where the score stays below the threshold less the hysteresis for ``silence``
    windows.
    """
    runs: list[tuple[int, int]] = []
    first: int | None = None
    quiet = 0
    for number, score in enumerate(scores):
        if score >= threshold:
            first, quiet = (number if first is None else first), 0
        elif first is not None and (quiet or score < threshold - HYSTERESIS):
            quiet += 1
            if quiet >= silence:
                runs.append((first, number - quiet + 1))
                first, quiet = None, 0
    if first is not None:
        runs.append((first, len(scores) - quiet))
    return runs


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
