"""A sound in, its words out, with times: speech recognition by Whisper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.speech.interface import SpeechModel
from pocketserve.tasks.audio.sounds import SoundInput, SoundWindow
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    invalid_input,
    invalid_parameter,
)
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.speech.decoding import Prompt, WindowDecoder
from pocketserve.tasks.speech.facts import (
    CONFIG,
    GENERATION_CONFIG,
    TRANSCRIBE,
    TRANSLATE,
    speech_tokens,
)
from pocketserve.tasks.speech.languages import NAMES, language_code
from pocketserve.tasks.speech.options import SpeechOptions
from pocketserve.tasks.speech.transcribe import SoundModel, SpeechSegment, Transcription
from pocketserve.tasks.speech.vocabulary import vocabulary_of
from pocketserve.tensors import Array

if TYPE_CHECKING:
    from pocketserve.tasks.speech.captions import Captions

NAME: Final = "speech-to-text"
MAX_CONTEXT: Final = 223
"""Tokens of a prompt; only the last ones count."""

TIME_DECIMALS: Final = 2
ENGLISH: Final = "en"


@dataclass(frozen=True)
class TranscribeOptions:
    """The options of one request; None leaves one to the manifest."""

    language: str | None = None
    task: str | None = None
    prompt: str | None = None
    temperature: float | None = None


@dataclass
class Transcript:
    """The transcript of one sound.

    Attributes:
        language: code.
        task: ``transcribe`` or ``translate``.
        seconds: length of the sound.
    """

    language: str
    task: str
    seconds: float
    segments: list[SpeechSegment] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text of all segments."""
        return "".join([segment.text for segment in self.segments]).strip()


class SpeechToText:
    """Writes down speech; set up with ``[audio]``, ``[speech]`` and Whisper's files.

    Attributes:
        transcribes: requests are run by :meth:`transcribe`.
    """

    name = NAME
    media = "sound"
    transcribes = True
    normalizes = True
    """Whether the whole sound is normalised; otherwise each window is."""

    def __init__(self, facts: ModelFacts) -> None:
        config = facts.json_beside(CONFIG)
        generation = facts.json_beside(GENERATION_CONFIG)
        for file, keys in ((CONFIG, config), (GENERATION_CONFIG, generation)):
            if not keys:
                raise ModelLoadError(
                    f"{file} is missing beside the model; copy it from the model's"
                    " source"
                )
        self._tokens = speech_tokens(config, generation)
        self._vocabulary = vocabulary_of(facts, self._tokens)
        self._input = SoundInput(facts, NAME)
        if self._input.window is None:
            raise ModelLoadError(
                "preprocessor_config.json is missing beside the model; copy it from the"
                " model's source"
            )
        self._window: int = self._input.window
        self._input_name = facts.inputs[0].name
        self.options = facts.manifest.section(SpeechOptions)
        self._check_manifest()

    def _check_manifest(self) -> None:
        try:
            self.read_options({})
        except Exception as error:
            raise ModelLoadError(f"model.toml: speech: {error}") from None

    @property
    def rate(self) -> int:
        """Return the model's samples per second."""
        return self._input.rate

    @property
    def start_token(self) -> int:
        """Return the token before a text."""
        return self._tokens.start

    @property
    def languages(self) -> tuple[str, ...]:
        """Return the codes of the languages that the model knows."""
        return tuple(self._tokens.languages) or (ENGLISH,)

    def read_options(self, values: Mapping[str, Any]) -> TranscribeOptions:
        """Check a request's options, and complete them by the manifest's.

        Raises:
            ApiError: INVALID_PARAMETER.
        """
        options = self.options
        language = values.get("language", options.language)
        if language:
            language = language_code(language)
            if language not in self.languages:
                text = self._unknown_language(language)
                raise invalid_parameter(text, "language")
        task = values.get("speech_task", options.task)
        if task == TRANSLATE and TRANSLATE not in self._tokens.tasks:
            raise invalid_parameter(
                "this model only transcribes; translating needs a multilingual model",
                "model",
            )
        return TranscribeOptions(
            language=language or None,
            task=task,
            prompt=values.get("prompt", options.prompt),
            temperature=values.get("temperature", options.temperature),
        )

    def _unknown_language(self, language: str) -> str:
        codes = ", ".join(self.languages)
        return f"language must be one of {codes} for this model, not {language!r:.40}"

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Decode a sound; the context is its samples [n] at the model's rate."""
        sound = self._input.read(body, hints, normalizes=self.normalizes)
        return Prepared([], np.ascontiguousarray(sound.samples[:, 0]))

    def transcribe(
        self,
        model: SpeechModel,
        samples: Array,
        options: TranscribeOptions,
        check: Callable[[], None],
        on_segment: Callable[[SpeechSegment], None] | None = None,
    ) -> Transcript:
        """Transcribe a sound.

        Args:
            check: called before each token; raises to give up.
            on_segment: takes each segment as soon as it is decoded.
        """
        rate = self._input.rate
        tokens = self._tokens
        sound = SoundModel(rate, self._window, self.features)
        text_of = self._vocabulary.text
        decoder = WindowDecoder(model, tokens, text_of, check)
        language = options.language
        if not tokens.is_multilingual:
            language = ENGLISH
        transcription = Transcription(
            samples, sound, decoder, tokens, self._prompt(options), language
        )
        task = options.task or TRANSCRIBE
        transcript = Transcript("", task, len(samples) / rate)
        for segment in transcription.segments(text_of):
            transcript.segments.append(segment)
            if on_segment is not None:
                on_segment(segment)
        transcript.language = transcription.language or ""
        return transcript

    def captions(self) -> Captions:
        """Return the captions of a new stream of sound."""
        # Imported late: few clients want live captions.
        from pocketserve.tasks.speech.captions import Captions

        return Captions(self._input.rate)

    def _prompt(self, options: TranscribeOptions) -> Prompt:
        context: list[int] = []
        text = (options.prompt or "").strip()
        if text:
            longest = min(MAX_CONTEXT, max(1, self._tokens.positions // 2 - 1))
            context = self._vocabulary.tokens(f" {text}")[-longest:]
        task = None
        if self._tokens.is_multilingual:
            task = self._tokens.tasks[options.task or TRANSCRIBE]
        return Prompt(
            context=tuple(context),
            task=task,
            temperature=options.temperature or 0.0,
            retries=self.options.retries,
        )

    def features(self, samples: Array) -> Array:
        """Return the features of a window, which silence fills up."""
        filled = np.zeros((self._window, 1), np.float32)
        filled[: len(samples), 0] = samples
        seconds = len(samples) / self._input.rate
        (run,) = self._input.runs([SoundWindow(filled, 0.0, seconds)])
        return run[self._input_name]

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"text", "start", "end", "score"}`` for each segment.

        Args:
            context: the transcript.
        """
        if not isinstance(context, Transcript):
            raise invalid_input("this model takes a sound, not tensors")
        return entries_of(context)

    def form(self) -> Form:
        """Return the task's input and parameters."""
        options = self.options
        return Form(
            ("sound",),
            (
                parameter("language", choices=self.languages, text=_LANGUAGE_TEXT),
                parameter(
                    "speech_task", default=options.task, choices=self._task_names()
                ),
                parameter("prompt", default=options.prompt),
                parameter("temperature", default=options.temperature),
                *self._input.parameters,
            ),
        )

    def _task_names(self) -> tuple[str, ...]:
        return tuple(self._tokens.tasks) or (TRANSCRIBE,)

    def describe(self) -> dict[str, str]:
        """Return facts for the model's card."""
        names = [NAMES.get(code, code) for code in self.languages[:8]]
        more = len(self.languages) - len(names)
        languages = ", ".join(names)
        if more > 0:
            languages = f"{languages} and {more} more"
        answer = f"the words in segments with start and end in seconds: {languages}"
        return {**self._input.describe(), "answer": answer}


_LANGUAGE_TEXT: Final = "Of the speech; without it a multilingual model detects it."


def entries_of(transcript: Transcript) -> Answer:
    """Return a transcript as entries of an answer."""
    entries: Answer = []
    for segment in transcript.segments:
        entries.append(
            {
                "text": segment.text.strip(),
                "start": round(segment.start, TIME_DECIMALS),
                "end": round(segment.end, TIME_DECIMALS),
                "score": segment.score,
            }
        )
    return entries
