"""The tables ``[audio]`` and ``[spectrogram]`` of a manifest; see ``docs/tasks.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, with_defaults

MAX_SAMPLES = 1 << 25
MAX_FFT = 1 << 16


class AudioOptions(NamedTuple):
    """The way from a sound to input tensors. Lengths are in samples at the model's rate, times in seconds.

    None and empty leave a key to the file, to its tensors, or, of ``hop``, to the window.

    Attributes:
        context: samples of the window before that are put in front of each window.
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
        """Return the options of one version."""
        return self._replace(**self.versions.get(name, {}))


def _audio(table: TomlTable) -> AudioOptions:
    versions = {}
    for name, inner in table.named_tables("versions").items():
        versions[name] = _audio_keys(inner)
        inner.refuse_rest()
    return AudioOptions(**_audio_keys(table), versions=versions)


def _audio_keys(table: TomlTable) -> dict[str, Any]:
    """Return the keys that are there."""
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
        **{name: table.number(name, 0, 60) for name in ("min_speech", "min_silence", "speech_pad")},
        **{name: table.text(name) or None for name in ("input", "rate_input", "output")},
    }
    return {key: value for key, value in keys.items() if value is not None}


class SpectrogramOptions(NamedTuple):
    """The way from samples to features. Names and defaults are librosa's, or torchaudio's where librosa has none."""

    kind: str
    n_fft: int
    win_length: int
    hop_length: int
    window: str = "hann"
    periodic: bool = True
    frame_length: str = "n_fft"
    center: bool = True
    pad_mode: str = "constant"
    preemphasis: float = 0.0
    power: float = 2.0
    n_mels: int = 128
    f_min: float = 0.0
    f_max: float | None = None
    mel_scale: str = "slaney"
    norm: str = "slaney"
    triangles: str = "hz"
    log: str = "natural"
    log_offset: float = 0.0
    log_floor: float = 1e-10
    ref: str = "one"
    top_db: float | None = None
    n_mfcc: int = 20
    normalize: str = "none"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str | None = None
    frames: int | None = None

    @property
    def bins(self) -> int:
        """Features of a frame."""
        return {"mel": self.n_mels, "mfcc": self.n_mfcc}.get(self.kind, self.n_fft // 2 + 1)


def _spectrogram(table: TomlTable) -> SpectrogramOptions:
    n_fft = table.integer("n_fft", 8, MAX_FFT)
    win_length = table.integer("win_length", 2, MAX_FFT)
    hop_length = table.integer("hop_length", 1, MAX_FFT)
    length = win_length or n_fft or 0
    kind = table.choice("kind", ("mel", "mfcc", "linear")) or "mel"
    options = with_defaults(
        SpectrogramOptions,
        kind=kind,
        n_fft=n_fft or max(8, 1 << (length - 1).bit_length()),  # the next power of two
        win_length=length,
        hop_length=hop_length or 0,
        window=table.choice("window", ("hann", "hamming", "ones")),
        periodic=table.flag("periodic"),
        frame_length=table.choice("frame_length", ("n_fft", "win_length")),
        center=table.flag("center"),
        pad_mode=table.choice("pad_mode", ("constant", "reflect")),
        preemphasis=table.number("preemphasis", 0, 1),
        power=table.number("power", 0.01, 8),
        n_mels=table.integer("n_mels", 1, 1024),
        f_min=table.number("f_min", 0, 384_000),
        f_max=table.number("f_max", 1, 384_000),
        mel_scale=table.choice("mel_scale", ("slaney", "htk")),
        norm=table.choice("norm", ("slaney", "none")),
        triangles=table.choice("triangles", ("hz", "mel")),
        # The default for MFCC is that of librosa and torchaudio.
        log=table.choice("log", ("none", "natural", "log10", "db")) or ("db" if kind == "mfcc" else None),
        log_offset=table.number("log_offset", 0, 1e9),
        log_floor=table.number("log_floor", 0, 1e9),
        ref=table.choice("ref", ("one", "max")),
        top_db=table.number("top_db", 0, 1000),
        n_mfcc=table.integer("n_mfcc", 1, 1024),
        normalize=table.choice("normalize", ("none", "all", "per-bin")),
        mean=table.numbers("mean", each="bin"),
        std=table.numbers("std", each="bin", nonzero=True),
        layout=table.choice("layout", ("frames-bins", "bins-frames")),
        frames=table.integer("frames", 1, 1 << 20),
    )
    if hop_length is None:
        raise table.fault("hop_length", "is missing: the samples from one frame to the next")
    if n_fft is None and win_length is None:
        raise table.fault("win_length", "is missing: the samples of a window; or name n_fft")
    if options.win_length > options.n_fft:
        raise table.fault("n_fft", f"is {options.n_fft}, less than win_length, {options.win_length}")
    if options.f_max is not None and options.f_max <= options.f_min:
        raise table.fault("f_max", f"must be above f_min, {options.f_min:g}")
    if options.kind == "mfcc" and options.n_mfcc > options.n_mels:
        raise table.fault("n_mfcc", f"is {options.n_mfcc}, more than n_mels, {options.n_mels}")
    if options.log != "none" and not options.log_floor and not options.log_offset:
        raise table.fault("log_floor", "must be above 0, or log_offset: silence has no logarithm")
    for key, values in (("mean", options.mean), ("std", options.std)):
        if len(values) not in (1, options.bins):
            raise table.fault(key, f"has {len(values)} numbers; give one, or one for each of {options.bins} bins")
    return options


AUDIO = Section("audio", AudioOptions, _audio)
SPECTROGRAM = Section("spectrogram", SpectrogramOptions, _spectrogram)
