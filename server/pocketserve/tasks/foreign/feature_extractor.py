"""Keys of ``preprocessor_config.json`` of transformers' feature extractors for sounds.

``tasks/audio`` reads them. Files of pictures have a table of their own in ``preprocessor_config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.tasks.audio.options import AudioOptions, SpectrogramOptions
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import TensorSpec

MASK_NAMES = ("attention_mask", "padding_mask")
_SEQUENCE = "huggingface/transformers, feature_extraction_sequence_utils.py"
_WAV2VEC2 = "huggingface/transformers, feature_extraction_wav2vec2.py"
_AST = "huggingface/transformers, feature_extraction_audio_spectrogram_transformer.py"
_WHISPER = "huggingface/transformers, feature_extraction_whisper.py"
_AUDIO = "huggingface/transformers, audio_processing_base.py"
_SOUNDS = ("audio-classification", "voice-activity")
WAV2VEC2, AST, WHISPER = (
    "Wav2Vec2FeatureExtractor",
    "ASTFeatureExtractor",
    "WhisperFeatureExtractor",
)
SUPPORTED = (WAV2VEC2, AST, WHISPER)


_AUDIO_PROCESSORS = {
    "Wav2Vec2AudioProcessor": WAV2VEC2,
    "AudioSpectrogramTransformerAudioProcessor": AST,
    "WhisperAudioProcessor": WHISPER,
}
"""Names that transformers uses from version 5.25 on."""


def is_of_sounds(content: Mapping[str, Any]) -> bool:
    """Return whether a feature extractor for sounds wrote the file.

    Old image processors have a ``feature_extractor_type``, too, but no sampling rate.
    """
    if "image_processor_type" in content:
        return False
    return "sampling_rate" in content or extractor_class(content) in SUPPORTED


def extractor_class(content: Mapping[str, Any]) -> object:
    """Return the class of a feature extractor by its usual name; None if the file names none."""
    name = content.get("audio_processor_type")
    if not isinstance(name, str):
        return content.get("feature_extractor_type")
    return _AUDIO_PROCESSORS.get(name.removesuffix("Numpy"), name)


def describes_samples(facts: ModelFacts, spec: TensorSpec) -> bool:
    """Return whether the manifest has a sampling rate and an input takes samples.

    Such an input has one long dimension; a spectrogram has two.
    """
    options = facts.manifest.section(AudioOptions).of_version(facts.version.name)
    if options.sample_rate is None:
        return False
    short = (1, options.channels or 1)
    inner = [length for length in spec.shape[1:] if length not in short]
    return spec.open or len(inner) <= 1


def _is_described(facts: ModelFacts) -> bool:
    """Return whether the manifest describes the input of sounds."""
    if SpectrogramOptions in facts.manifest.sections:
        return True
    specs = [spec for spec in facts.sent_inputs if spec.name not in MASK_NAMES]
    return bool(specs) and all(describes_samples(facts, spec) for spec in specs)


TABLE = ForeignFile(
    "preprocessor_config.json",
    (
        Key("feature_extractor_type", Effect.APPLIED, _SEQUENCE),
        Key("audio_processor_type", Effect.APPLIED, _AUDIO),
        Key("spectrogram_config", Effect.UNSUPPORTED, _AUDIO, ({},), _SOUNDS),
        Key("return_padding_mask", Effect.HARMLESS, "return_attention_mask, renamed"),
        Key("sampling_rate", Effect.APPLIED, _SEQUENCE),
        Key("feature_size", Effect.APPLIED, _SEQUENCE),
        Key("do_normalize", Effect.APPLIED, _WAV2VEC2),
        Key("num_mel_bins", Effect.APPLIED, _AST),
        Key("max_length", Effect.APPLIED, _AST),
        Key("mean", Effect.APPLIED, _AST),
        Key("std", Effect.APPLIED, _AST),
        Key("n_fft", Effect.APPLIED, _WHISPER),
        Key("hop_length", Effect.APPLIED, _WHISPER),
        Key("chunk_length", Effect.APPLIED, _WHISPER),
        Key("padding_value", Effect.UNSUPPORTED, _SEQUENCE, (0, 0.0), _SOUNDS),
        Key("padding_side", Effect.UNSUPPORTED, _SEQUENCE, ("right",), _SOUNDS),
        Key("dither", Effect.UNSUPPORTED, _WHISPER, (0, 0.0), _SOUNDS),
        Key(
            "return_attention_mask",
            Effect.HARMLESS,
            "a sound that is alone has no padding",
        ),
        Key("n_samples", Effect.HARMLESS, "chunk_length times sampling_rate"),
        Key("nb_max_frames", Effect.HARMLESS, "n_samples by hop_length"),
        Key("processor_class", Effect.HARMLESS, _SEQUENCE),
    ),
    reports_unknown=False,
    belongs=is_of_sounds,
    media="sound",
    is_replaced=_is_described,
)
