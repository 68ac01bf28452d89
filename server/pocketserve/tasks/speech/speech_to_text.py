"""The task ``speech-to-text``: Whisper, and CTC models such as wav2vec2."""

from __future__ import annotations

from typing import Final

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.options import AUDIO, SPECTROGRAM
from pocketserve.tasks.base import TaskDefinition
from pocketserve.tasks.entries import AnswerField, TaskCall
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.speech.facts import CONFIG
from pocketserve.tasks.speech.options import SPEECH
from pocketserve.tasks.speech.whisper_to_text import NAME, SpeechToText

FORMATS: Final = ("whisper", "whisper-torch")
CTC_TORCH: Final = "ctc-torch"
CTC_FORMATS: Final = ("onnx", CTC_TORCH)
CTC: Final = "ForCTC"
"""The end of the class names of CTC models, such as Wav2Vec2ForCTC."""


def fits(facts: ModelFacts) -> bool:
    """Return whether the files are those of a Whisper model, or of a CTC model."""
    return facts.version.format.name in FORMATS or _is_ctc(facts)


def _is_ctc(facts: ModelFacts) -> bool:
    """Return whether ``config.json`` names a CTC model of speech."""
    if facts.version.format.name not in CTC_FORMATS:
        return False
    try:
        architectures = facts.json_beside(CONFIG).get("architectures")
    except ModelLoadError:
        return False
    names = architectures if isinstance(architectures, list) else []
    return any(isinstance(name, str) and name.endswith(CTC) for name in names)


def create(facts: ModelFacts) -> SpeechToText:
    """Create the task of a Whisper model, or of a CTC model."""
    if facts.version.format.name in FORMATS:
        return SpeechToText(facts)
    # Imported late: few models are of this kind.
    from pocketserve.tasks.speech.ctc_to_text import CtcToText

    return CtcToText(facts)


FIELDS: Final = (
    AnswerField("text", "text", "the words"),
    AnswerField("start", "real", "seconds from the sound's start to the first word"),
    AnswerField("end", "real", "seconds from the sound's start to the last word's end"),
    AnswerField("score", "real", "the mean probability of the words, from 0 to 1"),
)
CALL: Final = TaskCall("transcribe", "sound", "Segment", FIELDS)
TASK: Final = TaskDefinition(
    NAME, fits, create, (AUDIO, SPECTROGRAM, SPEECH), calls=(CALL,)
)
