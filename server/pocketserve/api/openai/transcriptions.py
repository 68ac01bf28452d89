"""OpenAI's interface to speech models: transcriptions and translations of sounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pocketserve.api.messages import (
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    inference_call,
    json_response,
    refuse_unknown_query,
    waiting_parameters,
)
from pocketserve.api.openai.answers import DONE, EVENT_STREAM, as_event
from pocketserve.api.openai.fields import bad_field
from pocketserve.api.openai.generate import answer_deadline, request_of_model
from pocketserve.api.openai.half_closed import check_whole
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.multipart import read_form
from pocketserve.inference.payload import (
    FormPart,
    RawPayload,
    TranscriptionPayload,
)
from pocketserve.inference.speech.transcription import TimedTranscript
from pocketserve.service import Service
from pocketserve.tasks.parameters import hints_and_options
from pocketserve.tasks.speech.facts import TRANSCRIBE, TRANSLATE
from pocketserve.tasks.speech.languages import name_of
from pocketserve.tasks.speech.options import MAX_PROMPT_CHARACTERS
from pocketserve.tasks.speech.subtitles import SRT, VTT, Cue, subtitles
from pocketserve.tasks.speech.transcribe import SpeechSegment
from pocketserve.tasks.speech.whisper_to_text import Transcript

PLAIN: Final = "text/plain; charset=utf-8"
JSON_FORM: Final = "json"
VERBOSE: Final = "verbose_json"
TEXT_FORM: Final = "text"
RESPONSE_FORMATS: Final = (JSON_FORM, TEXT_FORM, SRT, VERBOSE, VTT)
FILE: Final = "file"
MAX_FIELD_BYTES: Final = 4 * MAX_PROMPT_CHARACTERS
GRANULARITIES: Final = ("timestamp_granularities[]", "timestamp_granularities")
INCLUDES: Final = ("include[]", "include")
IGNORED: Final = ("chunking_strategy", "user")
"""Fields that don't change the transcript of a model that runs here."""

_FLAGS: Final = {"true": True, "false": False}


@dataclass
class AudioForm:
    """The checked fields of a request.

    Attributes:
        options: parameters of the task.
    """

    model: str
    sound: memoryview
    content_type: str
    options: dict[str, Any] = field(default_factory=dict)
    response_format: str = JSON_FORM
    streams: bool = False


def transcription(service: Service, request: ApiRequest) -> InferenceCall:
    """Write down the speech in a sound; with ``stream=true`` piece by piece."""
    return _call(service, request, TRANSCRIBE)


def translation(service: Service, request: ApiRequest) -> InferenceCall:
    """Translate the speech in a sound into English."""
    return _call(service, request, TRANSLATE)


def _call(service: Service, request: ApiRequest, task: str) -> InferenceCall:
    refuse_unknown_query(request, *WAITING_QUERY)
    form = read_audio_form(read_form(request.body, request.content_type))
    form.options["speech_task"] = task
    waiting = waiting_parameters(request)
    hints, options = hints_and_options(form.options, form.content_type)
    answer = AudioAnswer(form.response_format, form.streams)
    check = request.check_parts
    payload = TranscriptionPayload(
        RawPayload(form.sound, options, hints),
        on_segment=partial(_send, request, answer),
        deadline=answer_deadline(request, waiting),
        on_wait=check if form.streams else check_whole(check),
    )
    of_model = request_of_model(request, form.model)
    return inference_call(service, of_model, payload, waiting, answer.respond)


def _send(request: ApiRequest, answer: AudioAnswer, segment: SpeechSegment) -> None:
    """Send a segment of a streamed answer."""
    if request.parts is not None and answer.streams:
        request.parts.send(answer.part(segment))


class AudioAnswer:
    """The answer in one of OpenAI's forms."""

    def __init__(self, response_format: str, streams: bool) -> None:
        self.streams = streams
        self._format = response_format
        self._has_begun = False

    def part(self, segment: SpeechSegment) -> bytes:
        """Return a segment as a server-sent event."""
        text = segment.text if self._has_begun else segment.text.lstrip()
        self._has_begun = True
        # The times are not OpenAI's; its clients ignore them.
        event = {
            "type": "transcript.text.delta",
            "delta": text,
            "start": round(segment.start, 2),
            "end": round(segment.end, 2),
        }
        return as_event(event)

    def respond(self, result: TimedTranscript) -> ApiResponse:
        """Return the whole answer, or the end of a streamed one."""
        transcript = result.transcript
        if self.streams:
            return self._end_of_stream(transcript)
        if self._format == TEXT_FORM:
            return _plain(f"{transcript.text}\n")
        if self._format in (SRT, VTT):
            return _plain(subtitles(_cues(transcript), self._format))
        if self._format == VERBOSE:
            return json_response(_verbose(transcript))
        return json_response({"text": transcript.text})

    def _end_of_stream(self, transcript: Transcript) -> ApiResponse:
        chunks: list[bytes | memoryview] = []
        if not self._has_begun:
            # The transport sends whole answers only.
            for segment in transcript.segments:
                chunks.append(self.part(segment))
        end = {
            "type": "transcript.text.done",
            "text": transcript.text,
            "language": transcript.language,
            "duration": round(transcript.seconds, 2),
        }
        chunks += [as_event(end), DONE]
        return ApiResponse(content_type=EVENT_STREAM, chunks=chunks)


def read_audio_form(parts: Sequence[FormPart]) -> AudioForm:
    """Check the fields of a form.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    form = AudioForm("", memoryview(b""), "")
    names: set[str] = set()
    for part in parts:
        name = part.name
        if name in names and not name.endswith("[]"):
            raise bad_field(name[:64], "is given twice")
        names.add(name)
        if name == FILE:
            if not part.content:
                raise bad_field(FILE, "is empty; send a sound")
            form.sound = part.content
            form.content_type = part.content_type
            continue
        check = _FIELDS.get(name)
        if check is None:
            fields = ", ".join([FILE, *_FIELDS])
            raise bad_field(name[:64], f"is unknown; known are {fields}")
        check(form, name, _text(part))
    for name in ("model", FILE):
        if name not in names:
            raise bad_field(name, "is missing")
    if not form.model:
        raise bad_field("model", "is empty")
    return form


def _text(part: FormPart) -> str:
    if len(part.content) > MAX_FIELD_BYTES:
        raise bad_field(part.name[:64], f"has more than {MAX_FIELD_BYTES} bytes")
    try:
        return bytes(part.content).decode("utf-8")
    except UnicodeDecodeError:
        raise bad_field(part.name[:64], "must be UTF-8") from None


def _read_model(form: AudioForm, name: str, text: str) -> None:
    form.model = text


def _read_option(form: AudioForm, name: str, text: str) -> None:
    if text:
        form.options[name] = text


def _read_prompt(form: AudioForm, name: str, text: str) -> None:
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise bad_field(name, f"has more than {MAX_PROMPT_CHARACTERS} characters")
    form.options[name] = text


def _read_format(form: AudioForm, name: str, text: str) -> None:
    if text not in RESPONSE_FORMATS:
        raise bad_field(
            name, f"must be one of {', '.join(RESPONSE_FORMATS)}, not {text!r:.40}"
        )
    form.response_format = text


def _read_stream(form: AudioForm, name: str, text: str) -> None:
    if text.lower() not in _FLAGS:
        raise bad_field(name, "must be true or false")
    form.streams = _FLAGS[text.lower()]


def _check_granularity(form: AudioForm, name: str, text: str) -> None:
    if text != "segment":
        raise bad_field(
            name,
            f"can't be {text!r:.40}: the model has times of segments only; use segment",
        )


def _check_include(form: AudioForm, name: str, text: str) -> None:
    raise bad_field(name, f"can't be {text!r:.40}: nothing more can be included")


def _ignore(form: AudioForm, name: str, text: str) -> None:
    pass


_FIELDS: Final[Mapping[str, Callable[[AudioForm, str, str], None]]] = {
    "model": _read_model,
    "language": _read_option,
    "prompt": _read_prompt,
    "temperature": _read_option,
    "response_format": _read_format,
    "stream": _read_stream,
    **dict.fromkeys(GRANULARITIES, _check_granularity),
    **dict.fromkeys(INCLUDES, _check_include),
    **dict.fromkeys(IGNORED, _ignore),
}


def _plain(text: str) -> ApiResponse:
    return ApiResponse(content_type=PLAIN, chunks=[text.encode()])


def _cues(transcript: Transcript) -> list[Cue]:
    cues = []
    for segment in transcript.segments:
        cues.append(Cue(segment.start, segment.end, segment.text))
    return cues


def _verbose(transcript: Transcript) -> dict[str, Any]:
    segments = []
    for segment in transcript.segments:
        window = segment.window
        segments.append(
            {
                "id": segment.number,
                "seek": segment.seek,
                "start": round(segment.start, 2),
                "end": round(segment.end, 2),
                "text": segment.text,
                "tokens": list(segment.tokens),
                "temperature": window.temperature,
                "avg_logprob": window.log_probability,
                "compression_ratio": window.compression,
                "no_speech_prob": window.no_speech,
            }
        )
    return {
        "task": transcript.task,
        "language": name_of(transcript.language),
        "duration": round(transcript.seconds, 2),
        "text": transcript.text,
        "segments": segments,
    }
