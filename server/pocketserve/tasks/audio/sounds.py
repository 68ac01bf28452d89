"""Turn a request's sound into a model's windows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata_parts import AudioProperties
from pocketserve.tasks import arrays
from pocketserve.tasks.audio import wav
from pocketserve.tasks.audio.containers import CONTAINERS, container_of
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
from pocketserve_wire import DATATYPES, ApiError, strict_json

RAW_FORMATS = {
    **{f"pcm{bits}": (wav.PCM, bits // 8) for bits in (8, 16, 24, 32)},
    "float32": (wav.FLOAT, 4),
}
"""The parameter ``format`` of samples without a header; little-endian, channels interleaved."""

RATE_NAMES = ("sr", "rate", "sample_rate", "sampling_rate")
# The largest real sample: 12 dB above full scale, as after mixing. Larger numbers are
# 16-bit samples written as reals.
MAX_REAL = 4.0
FITTING = "real numbers from -1 to 1 or 16-bit integers, of shape [samples] or [samples, channels]"
MAX_WINDOWS = 100_000
MAX_PREPARED = 1 << 26  # samples in all windows of a request, 256 MiB
# Numbers of a spectrogram: an hour of 40 bins at 100 Hz. Each takes 64 bytes at work.
MAX_FEATURES = 1 << 24
EPSILON = 1e-7  # keeps divisors above 0
INT16_SCALE = 32768.0


class SoundWindow(NamedTuple):
    """A window of a sound.

    Attributes:
        samples: float32 [context + window, channels].
        start: in seconds.
        seconds: length of its sound, without padding.
    """

    samples: Array
    start: float
    seconds: float


class SoundInput:
    """Prepare sounds for one model, as the manifest and its files say.

    Attributes:
        window: samples at a time; None gives the model the whole sound.
    """

    def __init__(self, facts: ModelFacts, task: str) -> None:
        options = facts.manifest.section(AudioOptions).of_version(facts.version.name)
        self.options = options
        self._spec = _sample_spec(facts, options, task)
        properties = sound_properties(facts)
        extractor = _extractor(facts, self._spec)
        self._rate = _sampling_rate(facts, options, properties, extractor, task)
        self._channels = _channel_count(options, properties)
        self._normalize = _normalization(options, extractor)
        self._features = features_of(
            facts,
            self._spec,
            self._rate,
            self._channels,
            extractor,
        )
        self.window = self._window_size(extractor)
        self._hop = options.hop or self.window or 0
        self._fixed = _fixed_arrays(facts, options, self._rate)
        self._mask = _first_named(facts.sent_inputs, MASK_NAMES)

    def _window_size(self, extractor: FeatureExtractor | None) -> int | None:
        options = self.options
        if self._features is None:
            fixed = _fixed_window(self._spec, self._channels, options.context)
            return options.window or fixed
        window = options.window
        if window is None and extractor is not None:
            window = extractor.window
        return self._features.window(window, options.context)

    @property
    def _is_mono(self) -> bool:
        return self._channels == 1

    def read(
        self, body: memoryview, hints: Hints, *, normalizes: bool = True
    ) -> wav.Sound:
        """Return a request's sound at the model's rate and with its channels.

        Args:
            normalizes: False leaves that to :meth:`normalized`, for parts of the sound.
        """
        samples, rate = self._decode(body, hints)
        if samples.shape[1] != self._channels:
            mono = samples.mean(axis=1, keepdims=True)
            samples = np.repeat(mono, self._channels, axis=1)
        if len(samples) * self._rate > wav.MAX_FRAMES * rate:
            raise invalid_input(
                "the sound is too long once it has the model's sampling rate; send it in parts"
            )
        samples = resample(samples, rate, self._rate)
        if normalizes:
            samples = self.normalized(samples)
        return wav.Sound(samples.astype(np.float32, copy=False), self._rate)

    def normalized(self, samples: Array) -> Array:
        """Return samples with the mean and size that the model expects."""
        if self._normalize == "zero-mean":
            deviation = np.sqrt(samples.var() + EPSILON)
            samples = (samples - samples.mean()) / deviation
        elif self._normalize == "peak":
            peak = float(np.abs(samples).max())
            samples = samples / max(peak, EPSILON)
        return samples.astype(np.float32, copy=False)

    def windows(self, sound: wav.Sound) -> list[SoundWindow]:
        """Return the sound in the model's windows, in order; at least one."""
        samples = sound.samples
        window = self.window
        size = self._prepared_size(len(samples))
        if window is None:
            return [SoundWindow(samples, 0.0, sound.seconds)]
        count = self._window_count(len(samples), window)
        maximum = min(MAX_WINDOWS, MAX_PREPARED // size)
        if count > maximum:
            raise invalid_input(
                f"the sound has {count} windows, the limit is {maximum}; send it in parts"
            )
        windows = []
        for number in range(count):
            start = number * self._hop
            windows.append(self._cut(samples, window, start))
        return windows

    def _window_count(self, length: int, window: int) -> int:
        """Return the number of windows, at least 1, of so many samples."""
        hops = math.ceil((length - window) / self._hop)
        count = max(1, 1 + hops)
        last_end = (count - 1) * self._hop + window
        is_last_padded = last_end > length
        if self.options.pad == "drop" and count > 1 and is_last_padded:
            return count - 1
        return count

    def _prepared_size(self, samples: int) -> int:
        """Return the numbers in one window's arrays; raise if they are too many."""
        length = samples
        if self.window is not None:
            length = self.window + self.options.context
        if self._features is None:
            return length * self._channels
        features = self._features.size(length)
        if features > MAX_FEATURES:
            raise invalid_input(
                "the sound is too long for this model's spectrogram; send it in parts"
            )
        return max(length, features)

    def _cut(self, samples: Array, window: int, start: int) -> SoundWindow:
        """Return one window with its context; missing samples are filled in."""
        context = self.options.context
        channels = samples.shape[1]
        head = samples[max(0, start - context) : start]
        inside = samples[start : start + window]
        missing_before = context - len(head)
        missing_after = window - len(inside)
        front = np.zeros((missing_before, channels), np.float32)
        tail = np.zeros((missing_after, channels), np.float32)
        if self.options.pad == "repeat":
            tail = np.resize(inside, tail.shape)
        joined = np.concatenate([front, head, inside, tail])
        return SoundWindow(
            samples=joined,
            start=start / self._rate,
            seconds=len(inside) / self._rate,
        )

    def runs(self, windows: Sequence[SoundWindow]) -> list[Arrays]:
        """Return the input arrays of each window; reals if the input is quantised."""
        runs: list[Arrays] = []
        for window in cancellable(windows):
            values = self._tensor(window.samples)
            run = {self._spec.name: values, **self._fixed}
            if self._mask is not None:
                run[self._mask.name] = self._mask_of(self._mask, window, values)
            runs.append(run)
        return runs

    def _mask_of(self, spec: TensorSpec, window: SoundWindow, values: Array) -> Array:
        """Return 1 for a window's samples or frames, and 0 for padding."""
        kind = "<i8"
        if not spec.open:
            kind = DATATYPES[spec.datatype].typestr
        if self._features is not None:
            longest = max(values.shape[1:], default=1)
            return np.ones((1, longest), kind)
        mask = np.ones((1, values.shape[-1]), kind)
        length = round(window.seconds * self._rate)
        mask[:, self.options.context + length :] = 0
        return mask

    def _tensor(self, values: Array) -> Array:
        """Return a window's samples or features as the input's array."""
        kind = np.dtype(DATATYPES[self._spec.datatype].typestr)
        integers = kind.kind in "iu" and self._spec.quantization is None
        takes_samples = self._features is None
        if self.options.scale == "int16" or (integers and takes_samples):
            values = _rounded(values * INT16_SCALE, -32768, 32767)
        if self._features is None:
            values = values.reshape(self._shape(*values.shape))
        else:
            values = self._features.array(values[:, 0])
            if integers:
                limits = np.iinfo(kind)
                values = _rounded(values, limits.min, limits.max)
        if not integers and kind.kind != "f":
            kind = np.dtype(np.float32)
        return np.ascontiguousarray(values, dtype=kind)

    def _shape(self, frames: int, channels: int) -> tuple[int, ...]:
        """Return a window's shape: [n], [1, n], [1, n, channels] or [1, channels, n]."""
        rank = len(self._spec.shape)
        if channels > 1 and rank < 2:
            return (frames * channels,)
        if channels > 1:
            leading = [1] * (rank - 2)
            return (*leading, frames, channels)
        if self._spec.open:
            return 1, frames
        shape = [1] * rank
        if shape:
            shape[_length_axis(self._spec)] = frames
        return tuple(shape)

    def describe(self) -> dict[str, str]:
        """Describe the preparation of a sound for model cards."""
        length = "any length"
        if self.window is not None:
            length = f"windows of {self.window} samples"
        channels = "mono" if self._channels == 1 else f"{self._channels} channels"
        steps = f"resampled to {self._rate} Hz, {channels}, {length}"
        if self._features is not None:
            steps = f"{steps}; {self._features.describe()}"
        return {
            "input": "a sound: WAV, m4a and others with ffmpeg, or raw samples with"
            " ?format=pcm16&rate=&channels=",
            "preprocessing": steps,
            "content_type": "audio/wav",
            "example": "sound.wav",
        }

    @property
    def rate(self) -> int:
        """Return the model's samples per second."""
        return self._rate

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the request parameters that describe raw samples."""
        kinds = parameter("format", choices=("wav", *RAW_FORMATS), default="wav")
        return (
            kinds,
            parameter("rate", default=self._rate),
            parameter("channels", default=1),
        )

    def _decode(self, body: memoryview, hints: Hints) -> wav.Sound:
        """Decode a body by the parameter ``format``, else by its first bytes."""
        name = hints.values.get("format", "wav")
        if not len(body):
            raise invalid_input("the body is empty; send a WAV file")
        if name in RAW_FORMATS:
            return self._decode_raw(body, name, hints)
        if name != "wav":
            raise invalid_parameter(
                f"parameter format must be wav or one of {', '.join(RAW_FORMATS)} for sound"
            )
        if wav.is_wav(body):
            limit = self.options.max_seconds
            return wav.read_wav(body, limit, mono=self._is_mono)
        if arrays.is_npy(body):
            return self._decode_array(arrays.read_npy(body), hints)
        if arrays.first_sign(body) == b"[":
            return self._decode_array(_listed(body), hints)
        return self._decode_container(body)

    def _decode_raw(self, body: memoryview, name: str, hints: Hints) -> wav.Sound:
        """Decode samples without a header."""
        code, width = RAW_FORMATS[name]
        form = wav.SampleFormat(
            code,
            channels=hints.values.get("channels", 1),
            rate=hints.values.get("rate", self._rate),
            width=width,
        )
        return wav.decode(body, form, self.options.max_seconds, mono=self._is_mono)

    def _decode_array(self, array: Array, hints: Hints) -> wav.Sound:
        """Decode an array of samples [n] or [n, channels]."""
        reals = _reals(array)
        channels = 1
        if reals.ndim == 2:
            channels = max(1, reals.shape[1])
        form = wav.SampleFormat(
            wav.FLOAT,
            channels=channels,
            rate=hints.values.get("rate", self._rate),
            width=8,
        )
        data = memoryview(reals.tobytes())
        return wav.decode(data, form, self.options.max_seconds, mono=self._is_mono)

    def _decode_container(self, body: memoryview) -> wav.Sound:
        """Decode a compressed recording, already at the model's rate."""
        kind = container_of(body)
        if kind not in CONTAINERS:
            raise _unknown_kind(body, kind)
        from pocketserve.tasks.audio.ffmpeg import read_sound  # late: few need it

        return read_sound(
            body, kind, self._rate, self._channels, self.options.max_seconds
        )


def _channel_count(options: AudioOptions, properties: AudioProperties | None) -> int:
    """Return the manifest's number of channels, else the file's, else 1."""
    if options.channels:
        return options.channels
    if properties is not None and properties.channels:
        return properties.channels
    return 1


def _normalization(options: AudioOptions, extractor: FeatureExtractor | None) -> str:
    """Return the manifest's normalization, else the file's, else ``none``."""
    if options.normalize is None and extractor is not None:
        return extractor.normalize
    return options.normalize or "none"


def _fixed_arrays(
    facts: ModelFacts, options: AudioOptions, rate: int
) -> dict[str, Array]:
    """Return the array of the input that takes the sampling rate, if there is one."""
    names: Sequence[str] = RATE_NAMES
    if options.rate_input:
        names = (options.rate_input,)
    spec = _first_named(facts.sent_inputs, names)
    if spec is None:
        return {}
    return {spec.name: _rate_array(spec, rate)}


def _rounded(values: Array, lowest: int, highest: int) -> Array:
    """Return values as whole numbers within limits."""
    return np.asarray(np.clip(np.rint(values), lowest, highest))


def _sampling_rate(
    facts: ModelFacts,
    options: AudioOptions,
    properties: AudioProperties | None,
    extractor: FeatureExtractor | None,
    task: str,
) -> int:
    """Return the manifest's rate, else the metadata's, else that of other files."""
    rate: Any = options.sample_rate
    if not rate and properties is not None:
        rate = properties.sample_rate
    if not rate and extractor is not None:
        rate = extractor.rate
    elif not rate:
        rate = processor_settings(facts, "sound").get("sampling_rate")
    if type(rate) is not int or not 1000 <= rate <= 768_000:
        raise ModelLoadError(
            f"model.toml: task {task} needs audio.sample_rate; the model's file does not say it"
        )
    checked: int = rate
    return checked


def _first_named(
    specs: Sequence[TensorSpec], names: Collection[str]
) -> TensorSpec | None:
    for spec in specs:
        if spec.name in names:
            return spec
    return None


def _rate_array(spec: TensorSpec, rate: int) -> Array:
    """Return the array of an input that takes the sampling rate."""
    kinds = {"FP32": np.float32, "INT32": np.int32}
    kind = kinds.get(spec.datatype, np.int64)
    shape = [1] * len(spec.shape)
    if spec.open:
        shape = []
    return np.full(shape, rate, kind)


def _unknown_kind(body: memoryview, container: str) -> ApiError:
    """Return the error about a body that is not a sound, or of an unsupported kind."""
    from pocketserve.tasks.encoded import base64_hint  # late: only errors need it

    kind = "no WAV file"
    if container:
        kind = f"a file of kind {container}, which can't be decoded"
    return invalid_input(
        f"the body is {kind}; send WAV, or raw samples with format=pcm16, rate and "
        f"channels as parameters{base64_hint(body)}"
    )


def _reals(array: Array) -> Array:
    """Return samples [n] or [n, channels] as little-endian float64.

    Integers are 16-bit samples.
    """
    got = f"an array of sound must hold {FITTING}, got {array.dtype}"
    shape = list(array.shape)
    if array.dtype.kind not in "fi" or array.ndim not in (1, 2):
        raise invalid_input(f"{got} {shape}")
    if array.ndim == 2 and shape[1] > wav.MAX_CHANNELS:
        raise invalid_input(f"{got} {shape}")
    lowest = -MAX_REAL
    highest = MAX_REAL
    scale = 1.0
    if array.dtype.kind == "i":
        lowest = -32768
        highest = 32767
        scale = INT16_SCALE
    is_outside = array.size and (array.min() < lowest or array.max() > highest)
    if array.dtype == np.int8 or is_outside:
        raise invalid_input(f"{got} with others")
    return np.asarray(array.astype("<f8") / scale)


def _listed(body: memoryview) -> Array:
    """Read samples in JSON: integers are 16-bit samples if any is beyond 1."""
    values = strict_json.loads(body)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # the last: an integer beyond FP64
        raise invalid_input(f"a JSON array of sound must hold {FITTING}") from None
    if not array.size:
        return array
    with np.errstate(invalid="ignore"):
        largest = np.abs(array).max()
        are_integers = bool((array == np.rint(array)).all())
    if are_integers and 1 < largest < 2**31:
        return array.astype(np.int64)
    return array


def sound_properties(facts: ModelFacts) -> AudioProperties | None:
    """Return the metadata of the first input if it is a sound."""
    if not facts.metadata.inputs:
        return None
    content = facts.metadata.inputs[0].content
    if content is not None and isinstance(content.properties, AudioProperties):
        return content.properties
    return None


def _sample_spec(facts: ModelFacts, options: AudioOptions, task: str) -> TensorSpec:
    """Return the input that takes samples."""
    if options.input:
        return named_tensor(facts.inputs, "audio.input", options.input)
    filled = {*RATE_NAMES, *MASK_NAMES, options.rate_input}
    fitting = []
    for spec in facts.sent_inputs:
        if spec.name not in filled:
            fitting.append(spec)
    if len(fitting) != 1:
        names = ", ".join(spec.name for spec in facts.inputs)
        raise ModelLoadError(
            f"model.toml: task {task} needs one input for samples, but the model has "
            f"{names}; name it in audio.input, name inputs that take an output's value "
            "back in [state.feedback], and those that always have the same value in "
            "[fixed_inputs]"
        )
    return fitting[0]


def _extractor(facts: ModelFacts, spec: TensorSpec) -> FeatureExtractor | None:
    """Return the feature extractor unless the manifest replaces it."""
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
    for axis in reversed(axes):
        if spec.shape[axis] < 0:
            return axis
    return len(spec.shape) - 1


def _fixed_window(spec: TensorSpec, channels: int, context: int) -> int | None:
    """Return a window's samples if the input's shape fixes them."""
    if spec.open or not spec.shape:
        return None
    size = spec.shape[_length_axis(spec)]
    if size <= 1:
        return None
    if len(spec.shape) < 3:
        size //= channels
    return size - context
