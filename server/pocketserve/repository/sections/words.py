"""Sections and names of the tasks on sound, text and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pocketserve.repository.sections.base import Section
from pocketserve.repository.toml_table import Table
from pocketserve_wire.records import dataclass

TASKS: tuple[str, ...] = (
    "audio-classification",
    "voice-activity",
    "text-classification",
    "question-answering",
    "text-embedding",
    "tabular-regression",
    "tabular-classification",
    "recommendation",
)
MOST_SAMPLES = 1 << 25


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """How a sound becomes input tensors. Lengths are in samples at the model's rate, times in seconds.

    Attributes:
        sample_rate: what the model was trained on; None leaves it to the file.
        channels: that the model hears; a sound of another number is mixed down to one first.
        window: samples that the model takes at a time; None takes what the input's shape says.
        hop: samples from the start of one window to the next; None is the window.
        context: samples of the window before that are put in front of each window.
        pad: what fills the last window: ``zeros``, ``repeat``; or ``drop`` it, if it is not the only one.
        scale: ``unit`` for samples from -1 to 1, ``int16`` for -32768 to 32767.
        normalize: ``zero-mean`` takes the mean away and divides by the standard deviation; ``peak`` scales to 1.
        pool: what becomes of the windows' scores: ``mean`` or ``max``.
        input, rate_input, output: names where the model has several.
        max_seconds: longer sounds are refused.
        threshold: voice activity: probability from which a window counts as speech.
        min_speech, min_silence: voice activity: shorter pieces are passed over.
        speech_pad: voice activity: seconds added to both ends of a segment.
        versions: keys that are otherwise for one version, by its name.
    """

    sample_rate: int | None = None
    channels: int | None = None
    window: int | None = None
    hop: int | None = None
    context: int = 0
    pad: str = "zeros"
    scale: str = "unit"
    normalize: str = "none"
    pool: str = "mean"
    input: str = ""
    rate_input: str = ""
    output: str = ""
    max_seconds: float = 600.0
    threshold: float = 0.5
    min_speech: float = 0.25
    min_silence: float = 0.1
    speech_pad: float = 0.03
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of_version(self, name: str) -> AudioOptions:
        """The options as they are for one version."""
        return dataclasses.replace(self, **self.versions.get(name, {}))


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How a text becomes token numbers, and what the outputs mean.

    Attributes:
        tokenizer: ``wordpiece``, ``regex``, ``sentencepiece`` or ``huggingface``; None takes what lies in or beside the
            model.
        vocabulary: a file beside the model, one token per line.
        delimiter: ``regex``: what stands between words.
        lower_case: None follows the files beside the model, else the vocabulary.
        add_bos, add_eos: ``sentencepiece``: put its pieces for the beginning and the end around a text.
        max_length: tokens at most; None takes what the input's shape says.
        ids, mask, types: names of inputs that their names do not explain.
        output: name of the output, where the model has several.
        start_output, end_output: question answering: the logits of where the answer starts and ends.
        pooling: embedding: ``mean``, ``cls`` or ``max`` over a text's tokens.
        normalize: embedding: scale to length 1.
        stride: question answering: tokens that neighbouring windows of a long context share.
        max_answer: question answering: tokens of an answer at most.
        max_chars: longer texts are refused.
    """

    tokenizer: str | None = None
    vocabulary: str | None = None
    delimiter: str = ""
    lower_case: bool | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    max_length: int | None = None
    ids: str = ""
    mask: str = ""
    types: str = ""
    output: str = ""
    start_output: str = ""
    end_output: str = ""
    pooling: str | None = None
    normalize: bool | None = None
    stride: int = 128
    max_answer: int = 30
    max_chars: int = 200_000


@dataclass(frozen=True, slots=True)
class ItemsOptions:
    """Recommendation: how lists of items become input tensors.

    Attributes:
        input, user_input: names where the model has several inputs.
        output: scores by item; ``ids_output`` where the model ranks by itself and gives items and scores.
        padding: fills up lists that are shorter than the model's input; it is never recommended.
        pad: the side that is filled: ``right`` or ``left``.
        exclude_seen: leave out what is in the request.
    """

    input: str = ""
    user_input: str = ""
    output: str = ""
    ids_output: str = ""
    padding: int | None = None
    pad: str = "right"
    exclude_seen: bool = True


def _given(defaults: Any, **values: Any) -> Any:
    return dataclasses.replace(defaults, **{key: value for key, value in values.items() if value not in (None, "")})


def _audio(table: Table) -> AudioOptions:
    versions = {}
    for name, inner in table.named_tables("versions").items():
        versions[name] = _audio_keys(inner)
        inner.refuse_rest()
    return AudioOptions(**_audio_keys(table), versions=versions)


def _audio_keys(table: Table) -> dict[str, Any]:
    """The keys that are there."""
    keys: dict[str, Any] = {
        "sample_rate": table.integer("sample_rate", 1000, 768_000),
        "channels": table.integer("channels", 1, 64),
        "window": table.integer("window", 1, MOST_SAMPLES),
        "hop": table.integer("hop", 1, MOST_SAMPLES),
        "context": table.integer("context", 0, MOST_SAMPLES),
        "pad": table.choice("pad", ("zeros", "repeat", "drop")),
        "scale": table.choice("scale", ("unit", "int16")),
        "normalize": table.choice("normalize", ("none", "zero-mean", "peak")),
        "pool": table.choice("pool", ("mean", "max")),
        "max_seconds": table.number("max_seconds", 0.001, 86_400),
        "threshold": table.number("threshold", 0, 1),
        "min_speech": table.number("min_speech", 0, 60),
        "min_silence": table.number("min_silence", 0, 60),
        "speech_pad": table.number("speech_pad", 0, 60),
        **{name: table.text(name) or None for name in ("input", "rate_input", "output")},
    }
    return {key: value for key, value in keys.items() if value is not None}


def _text(table: Table) -> TextOptions:
    names = ("delimiter", "ids", "mask", "types", "output", "start_output", "end_output")
    options: TextOptions = _given(
        TextOptions(),
        tokenizer=table.choice("tokenizer", ("wordpiece", "regex", "sentencepiece", "huggingface")),
        vocabulary=table.relative_path("vocabulary"),
        lower_case=table.flag("lower_case"),
        add_bos=table.flag("add_bos"),
        add_eos=table.flag("add_eos"),
        max_length=table.integer("max_length", 2, 1 << 16),
        pooling=table.choice("pooling", ("mean", "cls", "max")),
        normalize=table.flag("normalize"),
        stride=table.integer("stride", 0, 1 << 14),
        max_answer=table.integer("max_answer", 1, 1000),
        max_chars=table.integer("max_chars", 1, 10_000_000),
        **{name: table.text(name) for name in names},
    )
    return options


def _items(table: Table) -> ItemsOptions:
    names = ("input", "user_input", "output", "ids_output")
    options: ItemsOptions = _given(
        ItemsOptions(),
        padding=table.integer("padding", -(2**31), 2**31 - 1),
        pad=table.choice("pad", ("right", "left")),
        exclude_seen=table.flag("exclude_seen"),
        **{name: table.text(name) for name in names},
    )
    return options


SECTIONS: Mapping[str, Section] = {
    "audio": Section(AudioOptions, _audio),
    "text": Section(TextOptions, _text),
    "items": Section(ItemsOptions, _items),
}
