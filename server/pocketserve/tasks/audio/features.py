"""The spectrogram that a model takes instead of samples: a window of sound as its input's array."""

from __future__ import annotations

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.feature_layout import FeatureLayout, feature_layout
from pocketserve.tasks.audio.spectrogram import Spectrogram, mel_bands_are_apart
from pocketserve.tasks.audio.spectrogram_options import SpectrogramOptions
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec


class Features:
    """A spectrogram and its place in the input."""

    def __init__(self, spectrogram: Spectrogram, layout: FeatureLayout) -> None:
        self._spectrogram = spectrogram
        self._layout = layout

    def window(self, said: int | None, context: int) -> int | None:
        """Samples of a window: the fewest that give the model's frames, or what the manifest says.

        Raises:
            ModelLoadError: what it says is too short.
        """
        frames = self._layout.frames
        if frames is None:
            return said
        fewest = self._spectrogram.samples(frames)
        if said is None:
            return max(1, fewest - context)
        if said + context < fewest:
            raise ModelLoadError(
                f"model.toml: the model takes {frames} frames, which are {fewest} samples by [spectrogram]; "
                f"audio.window has {said}"
            )
        return said

    def size(self, samples: int) -> int:
        """Numbers that become of so many samples; of MFCC those that they are made of: there are more mel bands."""
        options = self._spectrogram.options
        return self._spectrogram.count(samples) * max(options.bins, options.n_mels if options.kind == "mfcc" else 0)

    def array(self, samples: Array) -> Array:
        """A window's features, float32 in the input's shape.

        Args:
            samples: of shape [n].
        """
        return self._layout.arrange(self._spectrogram.features(samples))

    def describe(self) -> str:
        """For model cards."""
        options = self._spectrogram.options
        name = {"mel": "mel", "mfcc": "MFCC", "linear": "linear"}[options.kind]
        logarithmic = "log-" if options.log != "none" and options.kind != "mfcc" else ""
        return f"{logarithmic}{name} spectrogram of {options.bins} bins, every {options.hop_length} samples"


def features_of(facts: ModelFacts, spec: TensorSpec, rate: int, channels: int) -> Features | None:
    """By the manifest's ``[spectrogram]``; None where there is none.

    Raises:
        ModelLoadError: it does not go with the model.
    """
    if SpectrogramOptions not in facts.manifest.sections:
        return None
    options = facts.manifest.sections[SpectrogramOptions]
    if channels != 1:
        raise ModelLoadError(f"model.toml: [spectrogram] is of one channel; audio.channels is {channels}")
    if (options.f_max or 0) > rate / 2:
        raise ModelLoadError(f"model.toml: spectrogram.f_max is above half the sampling rate, {rate / 2:g} Hz")
    if options.kind != "linear" and not mel_bands_are_apart(options, rate):
        raise ModelLoadError(
            f"model.toml: spectrogram.f_min leaves no room for {options.n_mels} bands below "
            f"{options.f_max or rate / 2:g} Hz"
        )
    return Features(Spectrogram(options, rate), feature_layout(spec, options))
