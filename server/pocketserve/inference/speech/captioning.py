"""Live captions: each step of a sequence brings sound, and returns new words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pocketserve.inference.operations import answer_end
from pocketserve.inference.payload import Prediction, RawInput
from pocketserve.inference.speech.transcription import TranscriptionOperation
from pocketserve.inference.task_operation import PreparedInput
from pocketserve.tasks.base import Arrays
from pocketserve.tasks.speech.captions import (
    Captions,
    CaptionStep,
    caption_entries,
    caption_facts,
)
from pocketserve.tasks.speech.whisper_to_text import Transcript
from pocketserve_wire import ApiError, ErrorCode


class CaptionOperation(TranscriptionOperation):
    """A piece of the sound of a sequence."""

    def _prepare_inputs(self, sources: Sequence[RawInput]) -> list[PreparedInput]:
        if len(sources) != 1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "a step of live captions takes one sound, not several",
            )
        is_last = self.step is not None and self.step.end
        if is_last and not len(sources[0].body) and not sources[0].tensors:
            return []
        return super()._prepare_inputs(sources)

    def _check_chain(self) -> None:
        """Accept any sound: it is added to that of the sequence."""

    def run(self, session: Any, arrays: Arrays | None) -> CaptionStep:  # type: ignore[override]
        """Add the sound, and transcribe all since the last cut if that is due."""
        assert self.sequence is not None
        assert self.step is not None
        captions = self.sequence.task_state
        if captions is None:
            captions = self.sequence.task_state = self._task.captions()
        assert isinstance(captions, Captions)
        # The end of a sequence may have no sound.
        sound = self._inputs[0].context if self._inputs else np.zeros(0, np.float32)
        options = self._task.read_options(self._answer_options.values)
        end = answer_end(self._task.options.timeout, self._speech.deadline)
        check = partial(self._check, end)

        def transcribe(samples: Any) -> Transcript:
            language = options.language or captions.language
            return self._task.transcribe(
                session, samples, replace(options, language=language), check
            )

        # A step that waits already has more sound: it transcribes both.
        is_newest = len(self.sequence.steps) <= 1
        return captions.step(sound, transcribe, is_end=self.step.end, may_run=is_newest)

    def respond(self, result: CaptionStep) -> Prediction:  # type: ignore[override]
        """Return the words that are final, and the open ones."""
        entries = caption_entries(result)
        return self._prediction(entries, caption_facts(result), None, [entries])
