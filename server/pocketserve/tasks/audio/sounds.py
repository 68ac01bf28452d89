"""What a request's sound is, and how it becomes a model's windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import AudioProperties
from pocketserve.tasks import arrays
from pocketserve.tasks.audio.features import Features, features_of
from pocketserve.tasks.audio.options import AudioOptions
from pocketserve.tasks.audio.resampling import resample
from pocketserve.tasks.audio.wav import (
    FLOAT,
    MAX_CHANNELS,
    MAX_FRAMES,
    PCM,
    SampleFormat,
    Sound,
    check_rate,
    decode,
    is_wav,
    read_wav,
)
from pocketserve.tasks.base import Hints, invalid_input, invalid_parameter
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES, strict_json

RAW_FORMATS = {"pcm8": (PCM, 1), "pcm16": (PCM, 2), "pcm24": (PCM, 3), "pcm32": (PCM, 4), "float32": (FLOAT, 4)}
"""What the parameter ``format`` may say of samples without a header; little-endian, channels interleaved."""

RATE_NAMES = ("sr", "rate", "sample_rate", "sampling_rate")
FOREIGN = {b"ID3": "MP3", b"fLaC": "FLAC", b"OggS": "Ogg", b"FORM": "AIFF", b".snd": "AU", b"caff": "CAF"}
MAX_REAL = 4.0
"""Of a real sample in an array: 12 dB above full scale, which mixing may leave. More are 16-bit samples as reals."""

FITTING = "real numbers from -1 to 1 or 16-bit integers, of shape [samples] or [samples, channels]"
MAX_WINDOWS = 100_000
MAX_PREPARED = 1 << 26
"""Samples in all windows of a request together: 256 MiB. Windows that overlap much fill it sooner."""

MAX_FEATURES = 1 << 24
"""Numbers of one spectrogram: an hour of 40 bins, 100 times a second. Working on it takes 8 times 8 bytes for each."""


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a sound as the model takes it.

    Attributes:
        samples: float32 of shape [context + window, channels].
        start: seconds from the sound's beginning.
        seconds: how much of it is sound; the rest is padding.
    """

    samples: Array
    start: float
    seconds: float


class SoundInput:
    """The way from raw bytes to one model's input.

    Args:
        spec: the input that takes the samples.
        rate: the model's samples per second.
        window: samples at a time; None gives the model the whole sound.
        channels: that the model hears.
        features: what the model takes instead of samples.
    """

    def __init__(
        self,
        spec: TensorSpec,
        rate: int,
        window: int | None,
        channels: int,
        options: AudioOptions,
        features: Features | None = None,
    ) -> None:
        self.spec = spec
        self.rate = rate
        self.window = window
        self._channels = channels
        self._options = options
        self._hop = options.hop or window or 0
        self._features = features

    def read(self, body: memoryview, hints: Hints) -> Sound:
        """A request's sound at the model's rate and with its channels.

        Raises:
            ApiError: INVALID_INPUT, INVALID_PARAMETER.
        """
        mono = self._channels == 1
        sound = self._decode(body, hints, mono=mono)
        samples = sound.samples
        if samples.shape[1] != self._channels:
            samples = np.repeat(samples.mean(axis=1, keepdims=True), self._channels, axis=1)
        if len(samples) * self.rate > MAX_FRAMES * sound.rate:
            raise invalid_input("the sound is too long once it has the model's sampling rate; send it in parts")
        return Sound(_normalize(resample(samples, sound.rate, self.rate), self._options.normalize), self.rate)

    def windows(self, sound: Sound) -> list[Window]:
        """The sound in the model's pieces, in order; at least one.

        Raises:
            ApiError: INVALID_INPUT when there are too many.
        """
        samples = sound.samples
        length = len(samples) if self.window is None else self.window + self._options.context
        if self._features is not None and self._features.size(length) > MAX_FEATURES:
            raise invalid_input("the sound is too long for this model's spectrogram; send it in parts")
        if self.window is None:
            return [Window(samples, 0.0, sound.seconds)]
        count = max(1, 1 + -(-(len(samples) - self.window) // self._hop))
        if self._options.pad == "drop" and count > 1 and (count - 1) * self._hop + self.window > len(samples):
            count -= 1
        maximum = min(MAX_WINDOWS, MAX_PREPARED // self._size(self.window + self._options.context))
        if count > maximum:
            raise invalid_input(f"the sound has {count} windows, the limit is {maximum}; send it in parts")
        return [self._cut(samples, number * self._hop) for number in range(count)]

    def tensor(self, window: Window) -> Array:
        """A window as the input's array; real numbers where the input is quantised."""
        values = window.samples
        kind = np.dtype(DATATYPES[self.spec.datatype].typestr)
        integers = kind.kind in "iu" and self.spec.quantization is None
        if self._options.scale == "int16" or (integers and self._features is None):
            values = np.clip(np.rint(values * 32768), -32768, 32767)
        if self._features is not None:
            values = self._features.array(values[:, 0])
            if integers:
                values = np.clip(np.rint(values), np.iinfo(kind).min, np.iinfo(kind).max)
        else:
            values = values.reshape(self._shape(values.shape))
        return np.ascontiguousarray(values, dtype=kind if integers or kind.kind == "f" else np.float32)

    def describe(self) -> dict[str, str]:
        """For model cards."""
        length = "any length" if self.window is None else f"windows of {self.window} samples"
        heard = "mono" if self._channels == 1 else f"{self._channels} channels"
        made = "" if self._features is None else f"; {self._features.describe()}"
        return {
            "input": "a sound: WAV, or raw samples with ?format=pcm16&rate=&channels=",
            "preprocessing": f"resampled to {self.rate} Hz, {heard}, {length}{made}",
            "content_type": "audio/wav",
            "example": "sound.wav",
        }

    def _size(self, samples: int) -> int:
        """Numbers that go into the model for so many samples, or that are worked on if these are more."""
        return samples * self._channels if self._features is None else max(samples, self._features.size(samples))

    def _shape(self, samples: tuple[int, ...]) -> tuple[int, ...]:
        """The input's shape with the window's length in it: [n], [1, n], [1, n, channels] or [1, channels, n]."""
        frames, channels = samples
        rank = len(self.spec.shape)
        if channels == 1 and not self.spec.open:
            shape = [1] * rank
            shape[_length_axis(self.spec)] = frames
            return tuple(shape)
        if channels == 1:
            return (1, frames)
        return (1,) * (rank - 2) + (frames, channels) if rank >= 2 else (frames * channels,)

    def _cut(self, samples: Array, start: int) -> Window:
        assert self.window is not None
        context = self._options.context
        inside = samples[start : start + self.window]
        missing = self.window - len(inside)
        tail = np.zeros((missing, samples.shape[1]), np.float32)
        if self._options.pad == "repeat" and missing:
            tail = np.resize(inside, tail.shape)
        head = samples[max(0, start - context) : start]
        front = np.zeros((context - len(head), samples.shape[1]), np.float32)
        return Window(np.concatenate([front, head, inside, tail]), start / self.rate, len(inside) / self.rate)

    def _decode(self, body: memoryview, hints: Hints, *, mono: bool) -> Sound:
        limit = self._options.max_seconds
        form = hints.values.get("format")
        if not len(body):
            raise invalid_input("the body is empty; send a WAV file")
        if form is not None and form != "wav":
            return decode(body, self._raw_format(form, hints), limit, mono=mono)
        if is_wav(body):
            return read_wav(body, limit, mono=mono)
        if arrays.is_npy(body):
            return self._of_array(arrays.read_npy(body), hints, mono=mono)
        if arrays.looks_like_json(body) and bytes(body[:256]).lstrip()[:1] == b"[":
            return self._of_array(_listed(body), hints, mono=mono)
        foreign = next((name for magic, name in FOREIGN.items() if bytes(body[:4]).startswith(magic)), None)
        found = f"a file of kind {foreign}" if foreign else "no WAV file"
        raise invalid_input(
            f"the body is {found}; send WAV, or raw samples with format=pcm16, rate and channels as parameters"
        )

    def _raw_format(self, name: str, hints: Hints) -> SampleFormat:
        if name not in RAW_FORMATS:
            raise invalid_parameter(f"parameter format must be wav or one of {', '.join(RAW_FORMATS)} for sound")
        rate, channels = hints.values.get("rate", self.rate), hints.values.get("channels", 1)
        check_rate(rate)
        code, width = RAW_FORMATS[name]
        return SampleFormat(code, channels, rate, width)

    def _of_array(self, array: Array, hints: Hints, *, mono: bool) -> Sound:
        """Samples as numbers: [n] or [n, channels]; integers are 16-bit samples."""
        rate = hints.values.get("rate", self.rate)
        shape = array.shape
        if array.dtype.kind not in "fi" or array.ndim not in (1, 2) or (array.ndim == 2 and shape[1] > MAX_CHANNELS):
            raise invalid_input(f"an array of sound must hold {FITTING}, got {array.dtype} {list(shape)}")
        whole = array.dtype.kind == "i"
        lowest, highest = (-32768, 32767) if whole else (-MAX_REAL, MAX_REAL)
        if array.dtype == np.int8 or (array.size and (array.min() < lowest or array.max() > highest)):
            raise invalid_input(f"an array of sound must hold {FITTING}, got {array.dtype} with others")
        reals = array.astype("<f8") / (32768.0 if whole else 1.0)
        channels = 1 if array.ndim == 1 else array.shape[1]
        form = SampleFormat(FLOAT, max(1, channels), rate, 8)
        return decode(memoryview(reals.tobytes()), form, self._options.max_seconds, mono=mono)


def sound_input(facts: ModelFacts, options: AudioOptions, task: str) -> SoundInput:
    """Set up the way in, from the manifest and what the file says.

    Raises:
        ModelLoadError: no input takes a sound, or its sampling rate is not known.
    """
    spec = _sample_spec(facts, options, task)
    said = _properties(facts)
    config = facts.json_beside("preprocessor_config.json")
    rate = options.sample_rate or (said.sample_rate if said else 0) or config.get("sampling_rate")
    if type(rate) is not int or not 1000 <= rate <= 768_000:
        raise ModelLoadError(f"model.toml: task {task} needs audio.sample_rate; the model's file does not say it")
    channels = options.channels or (said.channels if said else 0) or 1
    features = features_of(facts, spec, rate, channels)
    if features is None:
        window = options.window or _fixed_window(spec, channels, options.context)
    else:
        window = features.window(options.window, options.context)
    return SoundInput(spec, rate, window, channels, options, features)


def rate_input(facts: ModelFacts, options: AudioOptions) -> TensorSpec | None:
    """The input that wants to know the sampling rate, where there is one."""
    if options.rate_input:
        return next((spec for spec in facts.inputs if spec.name == options.rate_input), None)
    return next((spec for spec in facts.inputs if spec.name in RATE_NAMES), None)


def hears_sound(facts: ModelFacts) -> bool:
    """Return whether the file itself says that its only input is a sound."""
    return len(facts.inputs) == 1 and _properties(facts) is not None


def _properties(facts: ModelFacts) -> AudioProperties | None:
    if facts.metadata is None or not facts.metadata.inputs:
        return None
    content = facts.metadata.inputs[0].content
    found = content.properties if content is not None else None
    return found if isinstance(found, AudioProperties) else None


def _sample_spec(facts: ModelFacts, options: AudioOptions, task: str) -> TensorSpec:
    names = [spec.name for spec in facts.inputs]
    if options.input and options.input not in names:
        raise ModelLoadError(f"model.toml: audio.input is {options.input!r}; the model has {', '.join(names)}")
    others = {*facts.manifest.state.feedback, *RATE_NAMES, options.rate_input}
    fitting = [s for s in facts.inputs if s.name == options.input or (not options.input and s.name not in others)]
    if len(fitting) != 1:
        raise ModelLoadError(
            f"model.toml: task {task} needs one input for samples, but the model has {', '.join(names)}; name it in "
            f"audio.input, and name inputs that take an output's value back in [state.feedback]"
        )
    return fitting[0]


def _length_axis(spec: TensorSpec) -> int:
    """The axis of samples: the longest fixed one, else the last open one."""
    fixed = max(range(len(spec.shape)), key=lambda axis: spec.shape[axis], default=0)
    if spec.shape and spec.shape[fixed] > 1:
        return fixed
    return max((axis for axis, size in enumerate(spec.shape) if size < 0), default=len(spec.shape) - 1)


def _fixed_window(spec: TensorSpec, channels: int, context: int) -> int | None:
    if spec.open or not spec.shape:
        return None
    size = spec.shape[_length_axis(spec)]
    if size <= 1:
        return None
    return (size // channels if len(spec.shape) < 3 else size) - context


def _normalize(samples: Array, how: str) -> Array:
    if how == "zero-mean":
        samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    elif how == "peak":
        samples = samples / max(float(np.abs(samples).max()), 1e-7)
    return samples.astype(np.float32, copy=False)


def _listed(body: memoryview) -> Array:
    """Samples in JSON: whole numbers are 16-bit samples, unless none is beyond 1."""
    values = strict_json.loads(body)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # the last: an integer beyond FP64
        raise invalid_input(f"a JSON array of sound must hold {FITTING}") from None
    with np.errstate(invalid="ignore"):
        whole = array.size > 0 and bool((array == np.rint(array)).all() and np.abs(array).max() > 1)
    return array.astype(np.int64) if whole and np.abs(array).max() < 2**31 else array
