"""The tables ``[audio]`` and ``[spectrogram]`` of a manifest; see ``docs/sound.md``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, declared_values

MAX_SAMPLES = 1 << 25
MAX_FFT = 1 << 16


class AudioOptions(NamedTuple):
    """The preparation of a sound as input tensors.

    Lengths are in samples at the model's rate, times in seconds. None and empty leave a key
    to the file, to its tensors or, for ``hop``, to the window. ``versions`` has keys that
    differ for one version, by its name.
    """

    sample_rate: Annotated[int | None, TomlTable.integer, 1000, 768_000] = None
    channels: Annotated[int | None, TomlTable.integer, 1, 64] = None
    window: Annotated[int | None, TomlTable.integer, 1, MAX_SAMPLES] = None
    hop: Annotated[int | None, TomlTable.integer, 1, MAX_SAMPLES] = None
    context: Annotated[int, TomlTable.integer, 0, MAX_SAMPLES] = 0
    pad: Annotated[str, TomlTable.choice, ("zeros", "repeat", "drop")] = "zeros"
    scale: Annotated[str, TomlTable.choice, ("unit", "int16")] = "unit"
    normalize: Annotated[
        str | None, TomlTable.choice, ("none", "zero-mean", "peak")
    ] = None
    pool: Annotated[str, TomlTable.choice, ("mean", "max")] = "mean"
    input: Annotated[str, TomlTable.text] = ""
    rate_input: Annotated[str, TomlTable.text] = ""
    output: Annotated[str, TomlTable.text] = ""
    max_seconds: Annotated[float, TomlTable.number, 0.001, 86_400] = 600.0
    threshold: Annotated[float, TomlTable.number, 0, 1] = 0.5
    min_speech: Annotated[float, TomlTable.number, 0, 60] = 0.25
    min_silence: Annotated[float, TomlTable.number, 0, 60] = 0.1
    speech_pad: Annotated[float, TomlTable.number, 0, 60] = 0.03
    versions: Mapping[str, Mapping[str, Any]] = {}

    def of_version(self, name: str) -> AudioOptions:
        """Return the options of one version."""
        return self._replace(**self.versions.get(name, {}))


def _audio(table: TomlTable) -> AudioOptions:
    versions = {}
    for name, inner in table.named_tables("versions").items():
        versions[name] = declared_values(AudioOptions, inner)
        inner.refuse_rest()
    return AudioOptions(**declared_values(AudioOptions, table), versions=versions)


class SpectrogramOptions(NamedTuple):
    """The computation of features from samples.

    Names and defaults are librosa's, or torchaudio's for keys that librosa lacks.
    """

    n_fft: int
    win_length: int
    hop_length: int
    kind: Annotated[str, TomlTable.choice, ("mel", "mfcc", "linear")] = "mel"
    window: Annotated[str, TomlTable.choice, ("hann", "hamming", "ones")] = "hann"
    periodic: Annotated[bool, TomlTable.flag] = True
    frame_length: Annotated[str, TomlTable.choice, ("n_fft", "win_length")] = "n_fft"
    center: Annotated[bool, TomlTable.flag] = True
    pad_mode: Annotated[str, TomlTable.choice, ("constant", "reflect")] = "constant"
    preemphasis: Annotated[float, TomlTable.number, 0, 1] = 0.0
    kaldi: Annotated[bool, TomlTable.flag] = False
    power: Annotated[float, TomlTable.number, 0.01, 8] = 2.0
    n_mels: Annotated[int, TomlTable.integer, 1, 1024] = 128
    f_min: Annotated[float, TomlTable.number, 0, 384_000] = 0.0
    f_max: Annotated[float | None, TomlTable.number, 1, 384_000] = None
    mel_scale: Annotated[str, TomlTable.choice, ("slaney", "htk")] = "slaney"
    norm: Annotated[str, TomlTable.choice, ("slaney", "none")] = "slaney"
    triangles: Annotated[str, TomlTable.choice, ("hz", "mel")] = "hz"
    log: Annotated[str, TomlTable.choice, ("none", "natural", "log10", "db")] = (
        "natural"
    )
    log_offset: Annotated[float, TomlTable.number, 0, 1e9] = 0.0
    log_floor: Annotated[float, TomlTable.number, 0, 1e9] = 1e-10
    ref: Annotated[str, TomlTable.choice, ("one", "max")] = "one"
    top_db: Annotated[float | None, TomlTable.number, 0, 1000] = None
    n_mfcc: Annotated[int, TomlTable.integer, 1, 1024] = 20
    normalize: Annotated[str, TomlTable.choice, ("none", "all", "per-bin")] = "none"
    mean: Annotated[tuple[float, ...], partial(TomlTable.numbers, each="bin")] = (0.0,)
    std: Annotated[
        tuple[float, ...], partial(TomlTable.numbers, each="bin", nonzero=True)
    ] = (1.0,)
    layout: Annotated[str | None, TomlTable.choice, ("frames-bins", "bins-frames")] = (
        None
    )
    frames: Annotated[int | None, TomlTable.integer, 1, 1 << 20] = None

    @property
    def bins(self) -> int:
        """Return the number of features per frame."""
        if self.kind == "mel":
            return self.n_mels
        if self.kind == "mfcc":
            return self.n_mfcc
        return self.n_fft // 2 + 1


def _spectrogram(table: TomlTable) -> SpectrogramOptions:
    n_fft = table.integer("n_fft", 8, MAX_FFT)
    win_length = table.integer("win_length", 2, MAX_FFT)
    hop_length = table.integer("hop_length", 1, MAX_FFT)
    keys = declared_values(SpectrogramOptions, table)
    if keys.get("kind") == "mfcc":
        keys.setdefault("log", "db")  # the default of librosa and torchaudio
    if hop_length is None:
        raise table.fault(
            "hop_length", "is missing: the samples from one frame to the next"
        )
    length = win_length or n_fft
    if length is None:
        raise table.fault(
            "win_length", "is missing: the samples of a window; or name n_fft"
        )
    if n_fft is None:
        n_fft = max(8, 1 << (length - 1).bit_length())  # the next power of two
    options = SpectrogramOptions(n_fft, length, hop_length, **keys)
    _check_spectrogram(table, options)
    return options


def _check_spectrogram(table: TomlTable, options: SpectrogramOptions) -> None:
    if options.win_length > options.n_fft:
        raise table.fault(
            "n_fft", f"is {options.n_fft}, less than win_length, {options.win_length}"
        )
    if options.f_max is not None and options.f_max <= options.f_min:
        raise table.fault("f_max", f"must be above f_min, {options.f_min:g}")
    if options.kind == "mfcc" and options.n_mfcc > options.n_mels:
        raise table.fault(
            "n_mfcc", f"is {options.n_mfcc}, more than n_mels, {options.n_mels}"
        )
    if options.log != "none" and not options.log_floor and not options.log_offset:
        raise table.fault(
            "log_floor", "must be above 0, or log_offset: silence has no logarithm"
        )
    for key, values in (("mean", options.mean), ("std", options.std)):
        if len(values) not in (1, options.bins):
            raise table.fault(
                key,
                f"has {len(values)} numbers; give one, or one for each of {options.bins} bins",
            )


AUDIO = Section("audio", AudioOptions, _audio)
SPECTROGRAM = Section("spectrogram", SpectrogramOptions, _spectrogram)
