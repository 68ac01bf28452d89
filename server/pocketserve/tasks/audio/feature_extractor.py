"""Read ``preprocessor_config.json`` of transformers' audio models.

Sources: huggingface/transformers, ``feature_extraction_*.py`` of wav2vec2,
audio_spectrogram_transformer and whisper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.options import SpectrogramOptions
from pocketserve.tasks.foreign.feature_extractor import (
    AST,
    SUPPORTED,
    WAV2VEC2,
    WHISPER,
    extractor_class,
)
from pocketserve.tasks.foreign.processor_file import processor_settings
from pocketserve.tasks.model_facts import (
    CONFIG,
    PREPROCESSOR,
    MetadataError,
    ModelFacts,
)

INPUT_NAMES = ("input_values", "input_features")


_SAMPLE_MODELS = frozenset(
    (
        *(
            "wav2vec2",
            "wav2vec2-conformer",
            "hubert",
            "wavlm",
            "sew",
            "sew-d",
            "unispeech",
            "unispeech-sat",
        ),
        *("data2vec-audio",),
    )
)
"""Values of ``model_type`` that take samples; their class names may end in ForSequenceClassification."""

_MODELS = {
    **dict.fromkeys(_SAMPLE_MODELS, WAV2VEC2),
    "audio-spectrogram-transformer": AST,
    "whisper": WHISPER,
}


class FeatureExtractor(NamedTuple):
    """A model's input as its files describe it.

    Attributes:
        rate: samples per second.
        normalize: normalisation of the samples, as ``audio.normalize``.
        spectrogram: None for models that take samples.
        frames: a spectrogram is filled or cut to this number; None if the samples are.
        window: a sound is filled to this number of samples; None for any number.
    """

    rate: int
    normalize: str = "none"
    spectrogram: SpectrogramOptions | None = None
    frames: int | None = None
    window: int | None = None


def is_audio_classifier(facts: ModelFacts) -> bool:
    """Return whether transformers' files describe an audio classifier."""
    if not any(spec.name in INPUT_NAMES for spec in facts.inputs):
        return False
    try:
        config = facts.json_beside(CONFIG)
    except ModelLoadError:
        return False
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    if not isinstance(name, str):
        return False
    by_type = config.get("model_type") in _MODELS and name.endswith(
        "ForSequenceClassification"
    )
    return by_type or name.endswith("ForAudioClassification")


def feature_extractor(facts: ModelFacts) -> FeatureExtractor | None:
    """Read the files; return None if they don't describe a sound.

    Raises:
        MetadataError: the feature extractor, or one of its settings, is not supported.
    """
    config = processor_settings(facts, "sound")
    kind = extractor_class(config)
    if kind is None:
        kind = (
            _MODELS.get(str(facts.json_beside(CONFIG).get("model_type")))
            if config
            else None
        )
    if kind is None:
        return None
    if kind not in SUPPORTED:
        new = "audio_processor_type" in config
        key = "audio_processor_type" if new else "feature_extractor_type"
        raise _unsupported(key, kind)
    rate = _integer(config, "sampling_rate", 16_000, 1000, 768_000)
    if kind == WAV2VEC2:
        return FeatureExtractor(
            rate, "zero-mean" if config.get("do_normalize", True) else "none"
        )
    return _ast(config, rate) if kind == AST else _whisper(config, rate)


def _ast(config: Mapping[str, Any], rate: int) -> FeatureExtractor:
    """Return Kaldi's filter bank: frames of 25 ms every 10 ms, zero-filled."""
    length, hop = rate * 25 // 1000, rate // 100
    n_fft = 1 << (length - 1).bit_length()
    bins = _integer(config, "num_mel_bins", 128, 1, 1024)
    mean, std = _number(config, "mean", -4.2677393), _number(config, "std", 4.5689974)
    if not config.get("do_normalize", True):
        mean, std = 0.0, 0.5
    if std == 0:
        raise _unsupported("std", std)
    options = SpectrogramOptions(
        n_fft,
        length,
        hop,
        periodic=False,
        frame_length="win_length",
        center=False,
        preemphasis=0.97,
        kaldi=True,
        n_mels=bins,
        f_min=20.0,
        mel_scale="htk",
        norm="none",
        triangles="mel",
        log_floor=1.192092955078125e-07,
        mean=(mean,),
        std=(2 * std,),
        layout="frames-bins",
    )
    return FeatureExtractor(
        rate,
        spectrogram=options,
        frames=_integer(config, "max_length", 1024, 1, 1 << 16),
    )


def _whisper(config: Mapping[str, Any], rate: int) -> FeatureExtractor:
    """Return Whisper's spectrogram of a sound that is filled to 30 s.

    It has a range of 8 powers of ten below the maximum.
    """
    n_fft = _integer(config, "n_fft", 400, 8, 1 << 16)
    hop = _integer(config, "hop_length", 160, 1, 1 << 16)
    seconds = _integer(config, "chunk_length", 30, 1, 600)
    window = seconds * rate
    options = SpectrogramOptions(
        n_fft,
        n_fft,
        hop,
        pad_mode="reflect",
        n_mels=_integer(config, "feature_size", 80, 1, 1024),
        f_max=8000.0 if rate >= 16_000 else None,
        log="log10",
        top_db=80.0,
        mean=(-4.0,),
        std=(4.0,),
        layout="bins-frames",
        frames=window // hop,
    )
    return FeatureExtractor(rate, spectrogram=options, window=window)


def _integer(
    config: Mapping[str, Any], key: str, default: int, low: int, high: int
) -> int:
    value = config.get(key, default)
    if type(value) is not int or not low <= value <= high:
        raise _unsupported(key, value)
    number: int = value
    return number


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < 1e9
    ):
        raise _unsupported(key, value)
    return float(value)


def _unsupported(key: str, value: object) -> MetadataError:
    return MetadataError(
        f"{PREPROCESSOR}: {key} = {str(value)!r:.80} is not supported for sounds"
    )
