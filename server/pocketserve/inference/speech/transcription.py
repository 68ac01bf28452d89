"""Run a speech model: its transcript comes segment by segment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.statistics import Timing
from pocketserve.inference.operations import answer_end, check_client, wrong_model
from pocketserve.inference.payload import (
    NO_TIMING,
    Prediction,
    RawInput,
    RawPayload,
    TranscriptionPayload,
)
from pocketserve.inference.task_operation import TaskOperation, append_values, numbered
from pocketserve.tasks.base import Answer, Arrays
from pocketserve.tasks.cancellation import BytePool
from pocketserve.tasks.speech.whisper_to_text import (
    SpeechToText,
    Transcript,
    entries_of,
)
from pocketserve_wire import ApiError, ErrorCode

DURATION_DECIMALS = 3


class TimedTranscript:
    """A transcript with the request's timing."""

    __slots__ = ("timing", "transcript")

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.timing: Timing = NO_TIMING


class TranscriptionOperation(TaskOperation):
    """A request to a speech model.

    Raises:
        ApiError: INVALID_REQUEST if the model is none; faults of the sound or of the
            parameters.
    """

    decodes_late = True

    def __init__(
        self,
        handle: ModelHandle,
        payload: TranscriptionPayload | RawPayload,
        options: RequestOptions,
        budget: BytePool | None,
    ) -> None:
        task = handle.model.task
        if not isinstance(task, SpeechToText):
            raise wrong_model(handle, "speech model")
        self._task = task
        self._is_whole = isinstance(payload, TranscriptionPayload)
        if isinstance(payload, RawPayload):
            payload = TranscriptionPayload(payload)
        self._speech = payload
        task.read_options(payload.raw.options.values)  # before the sound is decoded
        super().__init__(handle, payload.raw, options, budget)

    def run(self, session: Any, arrays: Arrays | None) -> list[Transcript]:
        """Transcribe each sound."""
        self.prepare_deferred()
        options = self._task.read_options(self._answer_options.values)
        end = answer_end(self._task.options.timeout, self._speech.deadline)
        check = partial(self._check, end)
        transcripts = []
        for item in self._inputs:
            transcripts.append(
                self._task.transcribe(
                    session, item.context, options, check, self._speech.on_segment
                )
            )
        return transcripts

    def _read_sources(self) -> Sequence[RawInput]:
        if self._is_whole:
            return [RawInput(self._payload.body, self._payload.hints)]
        return super()._read_sources()

    def respond(self, result: list[Transcript]) -> TimedTranscript | Prediction:
        """Return the transcript; for raw input as a prediction."""
        if self._is_whole:
            return TimedTranscript(result[0])
        if not self._is_list:
            (transcript,) = result
            entries = entries_of(transcript)
            return self._prediction(entries, _facts(transcript), None, [entries])
        per_input: list[Answer] = []
        extras: dict[str, list[Any]] = {}
        for transcript in result:
            per_input.append(entries_of(transcript))
            append_values(extras, _facts(transcript))
        return self._prediction(numbered(per_input), extras, None, per_input)

    def _check(self, end: float) -> None:
        """Raise if the client has given up or gone, or the time is over."""
        check_client(self._options, self._speech.on_wait)
        if time.monotonic() > end:
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                "the transcript took longer than its time limit; send the sound in"
                " parts",
            )


def _facts(transcript: Transcript) -> Mapping[str, Any]:
    return {
        "text": transcript.text,
        "language": transcript.language,
        "duration": round(transcript.seconds, DURATION_DECIMALS),
    }
