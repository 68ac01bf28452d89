"""The input of the tasks on sound: a request's sound becomes a model's windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import AudioProperties
from pocketserve.tasks import arrays
from pocketserve.tasks.audio import wav
from pocketserve.tasks.audio.containers import container_of
from pocketserve.tasks.audio.feature_extractor import (
    FeatureExtractor,
    feature_extractor,
)
from pocketserve.tasks.audio.options import AudioOptions, SpectrogramOptions
from pocketserve.tasks.audio.resampling import resample
from pocketserve.tasks.audio.spectrogram import features_of
from pocketserve.tasks.base import Arrays, Hints, invalid_input, invalid_parameter
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.foreign.feature_extractor import MASK_NAMES, describes_samples
from pocketserve.tasks.foreign.processor_file import processor_settings
from pocketserve.tasks.model_facts import (
    MetadataError,
    ModelFacts,
    named_tensor,
)
from pocketserve.tasks.parameters import Parameter, parameter
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES, strict_json

RAW_FORMATS = {
    **{f"pcm{bits}": (wav.PCM, bits // 8) for bits in (8, 16, 24, 32)},
    "float32": (wav.FLOAT, 4),
}
"""The parameter ``format`` of samples without a header; little-endian, channels interleaved."""

RATE_NAMES = ("sr", "rate", "sample_rate", "sampling_rate")
MAX_REAL = 4.0  # of a real sample: 12 dB above full scale, as mixing may leave it; more are 16-bit samples as reals
FITTING = "real numbers from -1 to 1 or 16-bit integers, of shape [samples] or [samples, channels]"
MAX_WINDOWS = 100_000
MAX_PREPARED = (
    1 << 26
)  # samples in all windows of a request: 256 MiB; windows that overlap much fill it sooner
MAX_FEATURES = (
    1 << 24
)  # numbers of a spectrogram: an hour of 40 bins at 100 Hz; work on it takes 64 bytes for each


class Window(NamedTuple):
    """Samples of a window, float32 [context + window, channels]; its start, and how much of it is sound, in seconds."""

    samples: Array
    start: float
    seconds: float


class SoundInput:
    """The way from raw bytes to one model's inputs, set up from the manifest and what the files say.

    Attributes:
        window: samples at a time; None gives the model the whole sound.
    """

    def __init__(self, facts: ModelFacts, task: str) -> None:
        self.options = options = facts.manifest.section(AudioOptions).of_version(
            facts.version.name
        )
        self._spec = spec = _sample_spec(facts, options, task)
        properties = sound_properties(facts)
        extractor = _extractor(facts, spec)
        rate: Any = options.sample_rate or (properties.sample_rate if properties else 0)
        if not rate:
            rate = (
                extractor.rate
                if extractor
                else processor_settings(facts, "sound").get("sampling_rate")
            )
        if type(rate) is not int or not 1000 <= rate <= 768_000:
            raise ModelLoadError(
                f"model.toml: task {task} needs audio.sample_rate; the model's file does not say it"
            )
        self._rate = rate
        self._channels = (
            options.channels or (properties.channels if properties else 0) or 1
        )
        self._normalize = options.normalize or (
            extractor.normalize if extractor else "none"
        )
        self._features = features_of(facts, spec, rate, self._channels, extractor)
        if self._features is None:
            self.window = options.window or _fixed_window(
                spec, self._channels, options.context
            )
        else:
            window = options.window or (extractor.window if extractor else None)
            self.window = self._features.window(window, options.context)
        self._hop = options.hop or self.window or 0
        self._fixed: dict[str, Array] = {}
        rate_names = (options.rate_input,) if options.rate_input else RATE_NAMES
        for spec in [spec for spec in facts.sent_inputs if spec.name in rate_names][:1]:
            kind = {"FP32": np.float32, "INT32": np.int32}.get(spec.datatype, np.int64)
            self._fixed[spec.name] = np.full(
                [] if spec.open else [1] * len(spec.shape), rate, kind
            )
        self._mask = next(
            (spec for spec in facts.sent_inputs if spec.name in MASK_NAMES), None
        )

    def read(self, body: memoryview, hints: Hints) -> wav.Sound:
        """Return a request's sound at the model's rate and with its channels."""
        samples, rate = self._decode(body, hints)
        if samples.shape[1] != self._channels:
            samples = np.repeat(
                samples.mean(axis=1, keepdims=True), self._channels, axis=1
            )
        if len(samples) * self._rate > wav.MAX_FRAMES * rate:
            raise invalid_input(
                "the sound is too long once it has the model's sampling rate; send it in parts"
            )
        samples = resample(samples, rate, self._rate)
        if self._normalize == "zero-mean":
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        elif self._normalize == "peak":
            samples = samples / max(float(np.abs(samples).max()), 1e-7)
        return wav.Sound(samples.astype(np.float32, copy=False), self._rate)

    def windows(self, sound: wav.Sound) -> list[Window]:
        """Return the sound in the model's pieces, in order; at least one."""
        samples, window = sound.samples, self.window
        length = len(samples) if window is None else window + self.options.context
        size = length * self._channels
        if self._features is not None:
            features = self._features.size(length)
            if features > MAX_FEATURES:
                raise invalid_input(
                    "the sound is too long for this model's spectrogram; send it in parts"
                )
            size = max(length, features)
        if window is None:
            return [Window(samples, 0.0, sound.seconds)]
        count = max(1, 1 + -(-(len(samples) - window) // self._hop))
        if (
            self.options.pad == "drop"
            and count > 1
            and (count - 1) * self._hop + window > len(samples)
        ):
            count -= 1
        maximum = min(MAX_WINDOWS, MAX_PREPARED // size)
        if count > maximum:
            raise invalid_input(
                f"the sound has {count} windows, the limit is {maximum}; send it in parts"
            )
        return [
            self._cut(samples, window, number * self._hop) for number in range(count)
        ]

    def _cut(self, samples: Array, window: int, start: int) -> Window:
        context, channels = self.options.context, samples.shape[1]
        head, inside = (
            samples[max(0, start - context) : start],
            samples[start : start + window],
        )
        front = np.zeros((context - len(head), channels), np.float32)
        tail = np.zeros((window - len(inside), channels), np.float32)
        if self.options.pad == "repeat":
            tail = np.resize(inside, tail.shape)
        return Window(
            np.concatenate([front, head, inside, tail]),
            start / self._rate,
            len(inside) / self._rate,
        )

    def runs(self, windows: Sequence[Window]) -> list[Arrays]:
        """Return the input arrays of each window; real numbers where the input is quantised."""
        runs: list[Arrays] = []
        for window in cancellable(windows):
            run = {self._spec.name: self._tensor(window.samples), **self._fixed}
            if self._mask is not None:
                run[self._mask.name] = self._mask_of(window, run[self._spec.name])
            runs.append(run)
        return runs

    def _mask_of(self, window: Window, values: Array) -> Array:
        """Return ones for a window's samples or frames, and zeros for samples that fill it up."""
        assert self._mask is not None
        count = (
            values.shape[-1]
            if self._features is None
            else max(values.shape[1:], default=1)
        )
        kind = "<i8" if self._mask.open else DATATYPES[self._mask.datatype].typestr
        mask = np.ones((1, count), kind)
        if self._features is None:
            mask[:, self.options.context + round(window.seconds * self._rate) :] = 0
        return mask

    def _tensor(self, values: Array) -> Array:
        kind = np.dtype(DATATYPES[self._spec.datatype].typestr)
        integers = kind.kind in "iu" and self._spec.quantization is None
        if self.options.scale == "int16" or (integers and self._features is None):
            values = np.clip(np.rint(values * 32768), -32768, 32767)
        if self._features is None:
            values = values.reshape(self._shape(*values.shape))
        else:
            values = self._features.array(values[:, 0])
            if integers:
                values = np.clip(
                    np.rint(values), np.iinfo(kind).min, np.iinfo(kind).max
                )
        return np.ascontiguousarray(
            values, dtype=kind if integers or kind.kind == "f" else np.float32
        )

    def _shape(self, frames: int, channels: int) -> tuple[int, ...]:
        """Return the input's shape for a window: [n], [1, n], [1, n, channels] or [1, channels, n]."""
        rank = len(self._spec.shape)
        if channels > 1:
            return (
                (1,) * (rank - 2) + (frames, channels)
                if rank >= 2
                else (frames * channels,)
            )
        if self._spec.open:
            return 1, frames
        axis = _length_axis(self._spec)
        return tuple(frames if number == axis else 1 for number in range(rank))

    def describe(self) -> dict[str, str]:
        """Return what happens to a sound, in words, for model cards."""
        length = (
            "any length" if self.window is None else f"windows of {self.window} samples"
        )
        channels = "mono" if self._channels == 1 else f"{self._channels} channels"
        features = "" if self._features is None else f"; {self._features.describe()}"
        return {
            "input": "a sound: WAV, or raw samples with ?format=pcm16&rate=&channels=",
            "preprocessing": f"resampled to {self._rate} Hz, {channels}, {length}{features}",
            "content_type": "audio/wav",
            "example": "sound.wav",
        }

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameters that say what raw samples are."""
        kinds = parameter("format", choices=("wav", *RAW_FORMATS), default="wav")
        return (
            kinds,
            parameter("rate", default=self._rate),
            parameter("channels", default=1),
        )

    def _decode(self, body: memoryview, hints: Hints) -> wav.Sound:
        limit, mono = self.options.max_seconds, self._channels == 1
        name, rate = (
            hints.values.get("format", "wav"),
            hints.values.get("rate", self._rate),
        )
        if not len(body):
            raise invalid_input("the body is empty; send a WAV file")
        if name in RAW_FORMATS:
            code, width = RAW_FORMATS[name]
            form = wav.SampleFormat(code, hints.values.get("channels", 1), rate, width)
            return wav.decode(body, form, limit, mono=mono)
        if name != "wav":
            raise invalid_parameter(
                f"parameter format must be wav or one of {', '.join(RAW_FORMATS)} for sound"
            )
        if wav.is_wav(body):
            return wav.read_wav(body, limit, mono=mono)
        if arrays.is_npy(body):
            reals = _reals(arrays.read_npy(body))
        elif arrays.first_sign(body) == b"[":
            reals = _reals(_listed(body))
        else:
            from pocketserve.tasks.encoded import (
                base64_hint,
            )  # late: only faults need it

            container = container_of(body)
            kind = (
                f"a file of kind {container}, which is not decoded here"
                if container
                else "no WAV file"
            )
            raise invalid_input(
                f"the body is {kind}; send WAV, or raw samples with format=pcm16, rate and channels as parameters"
                f"{base64_hint(body)}"
            )
        channels = 1 if reals.ndim == 1 else max(1, reals.shape[1])
        return wav.decode(
            memoryview(reals.tobytes()),
            wav.SampleFormat(wav.FLOAT, channels, rate, 8),
            limit,
            mono=mono,
        )


def _reals(array: Array) -> Array:
    """Return samples [n] or [n, channels] in little-endian float64; integers are 16-bit samples."""
    shape = array.shape
    if (
        array.dtype.kind not in "fi"
        or array.ndim not in (1, 2)
        or (array.ndim == 2 and shape[1] > wav.MAX_CHANNELS)
    ):
        raise invalid_input(
            f"an array of sound must hold {FITTING}, got {array.dtype} {list(shape)}"
        )
    whole = array.dtype.kind == "i"
    lowest, highest = (-32768, 32767) if whole else (-MAX_REAL, MAX_REAL)
    if array.dtype == np.int8 or (
        array.size and (array.min() < lowest or array.max() > highest)
    ):
        raise invalid_input(
            f"an array of sound must hold {FITTING}, got {array.dtype} with others"
        )
    return np.asarray(array.astype("<f8") / (32768.0 if whole else 1.0))


def _listed(body: memoryview) -> Array:
    """Read samples in JSON: whole numbers are 16-bit samples, unless none is beyond 1."""
    values = strict_json.loads(body)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # the last: an integer beyond FP64
        raise invalid_input(f"a JSON array of sound must hold {FITTING}") from None
    with np.errstate(invalid="ignore"):
        whole = array.size > 0 and bool(
            (array == np.rint(array)).all() and np.abs(array).max() > 1
        )
    return array.astype(np.int64) if whole and np.abs(array).max() < 2**31 else array


def sound_properties(facts: ModelFacts) -> AudioProperties | None:
    """Return what the file itself says of its first input, if that is a sound."""
    content = facts.metadata.inputs[0].content if facts.metadata.inputs else None
    return (
        content.properties
        if content is not None and isinstance(content.properties, AudioProperties)
        else None
    )


def _sample_spec(facts: ModelFacts, options: AudioOptions, task: str) -> TensorSpec:
    if options.input:
        return named_tensor(facts.inputs, "audio.input", options.input)
    filled = {*RATE_NAMES, *MASK_NAMES, options.rate_input}
    fitting = [spec for spec in facts.sent_inputs if spec.name not in filled]
    if len(fitting) != 1:
        names = ", ".join(spec.name for spec in facts.inputs)
        raise ModelLoadError(
            f"model.toml: task {task} needs one input for samples, but the model has {names}; name it in "
            f"audio.input, name inputs that take an output's value back in [state.feedback], and those that always "
            f"have the same value in [fixed_inputs]"
        )
    return fitting[0]


def _extractor(facts: ModelFacts, spec: TensorSpec) -> FeatureExtractor | None:
    """Return the feature extractor; None if there is none, or if the manifest describes the input in its place."""
    try:
        return feature_extractor(facts)
    except MetadataError:
        described = SpectrogramOptions in facts.manifest.sections
        if described or describes_samples(facts, spec):
            return None
        raise


def _length_axis(spec: TensorSpec) -> int:
    """Return the axis of samples: the longest fixed one, else the last open one."""
    axes = range(len(spec.shape))
    fixed = max(axes, key=lambda axis: spec.shape[axis], default=0)
    if spec.shape and spec.shape[fixed] > 1:
        return fixed
    return max(
        (axis for axis in axes if spec.shape[axis] < 0), default=len(spec.shape) - 1
    )


def _fixed_window(spec: TensorSpec, channels: int, context: int) -> int | None:
    """Return the samples of a window where the input's shape fixes them."""
    size = 0 if spec.open or not spec.shape else spec.shape[_length_axis(spec)]
    if size <= 1:
        return None
    return (size // channels if len(spec.shape) < 3 else size) - context
