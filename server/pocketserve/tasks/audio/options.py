"""What a manifest may say of the tasks on sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable

MAX_SAMPLES = 1 << 25


class AudioOptions(NamedTuple):
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
    versions: Mapping[str, Mapping[str, Any]] = {}

    def of_version(self, name: str) -> AudioOptions:
        """The options as they are for one version."""
        return self._replace(**self.versions.get(name, {}))


def _audio(table: TomlTable) -> AudioOptions:
    versions = {}
    for name, inner in table.named_tables("versions").items():
        versions[name] = _audio_keys(inner)
        inner.refuse_rest()
    return AudioOptions(**_audio_keys(table), versions=versions)


def _audio_keys(table: TomlTable) -> dict[str, Any]:
    """The keys that are there."""
    keys: dict[str, Any] = {
        "sample_rate": table.integer("sample_rate", 1000, 768_000),
        "channels": table.integer("channels", 1, 64),
        "window": table.integer("window", 1, MAX_SAMPLES),
        "hop": table.integer("hop", 1, MAX_SAMPLES),
        "context": table.integer("context", 0, MAX_SAMPLES),
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


AUDIO = Section("audio", AudioOptions, _audio)
