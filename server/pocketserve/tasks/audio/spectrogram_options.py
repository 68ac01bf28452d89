"""What a manifest may say of a spectrogram, for models that take one instead of samples."""

from __future__ import annotations

from typing import Any, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable

MAX_FFT = 1 << 16


class SpectrogramOptions(NamedTuple):
    """How samples become features. Names and defaults are librosa's, or torchaudio's where librosa has none.

    Attributes:
        kind: ``mel``, ``mfcc`` or ``linear`` (all bins of the FFT).
        n_fft, win_length, hop_length: samples of the FFT, of the window and from frame to frame.
        window: ``hann``, ``hamming`` or ``ones``.
        periodic: the window's period is its length; else it is symmetric.
        frame_length: samples of a frame: ``n_fft`` (the window in its middle) or ``win_length`` (zeros behind it).
        center, pad_mode: frames stand around their place, the sound padded by half a frame: ``constant`` or
            ``reflect``.
        preemphasis: share of the sample before that is taken away from each; 0 for none.
        power: of the magnitudes: 1 or 2, or another number.
        n_mels, f_min, f_max: mel bands and where they begin and end, in Hz; f_max None is half the rate.
        mel_scale: ``slaney`` or ``htk``.
        norm: ``slaney`` divides each band by its width; ``none``.
        triangles: bands are triangles over ``hz``, or over ``mel`` (TensorFlow).
        log: ``none``, ``natural``, ``log10`` or ``db``.
        log_offset, log_floor: added before, and the least that the logarithm is taken of.
        ref: ``one``, or ``max``: the largest value becomes 0.
        top_db: what lies more below the largest value is lifted; None lifts nothing.
        n_mfcc: coefficients of the cosine transform (type 2, orthonormal).
        normalize: ``none``; over each window, ``all`` together or ``per-bin``: mean 0, deviation 1.
        mean, std: (x - mean) / std; one number, or one a bin.
        layout: of the input: ``frames-bins`` or ``bins-frames``; None takes what its shape says.
        frames: that the model takes, where its shape leaves it open.
    """

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
    kind = table.choice("kind", ("mel", "mfcc", "linear")) or "mel"
    given = {
        "window": table.choice("window", ("hann", "hamming", "ones")),
        "periodic": table.flag("periodic"),
        "frame_length": table.choice("frame_length", ("n_fft", "win_length")),
        "center": table.flag("center"),
        "pad_mode": table.choice("pad_mode", ("constant", "reflect")),
        "preemphasis": table.number("preemphasis", 0, 1),
        "power": table.number("power", 0.01, 8),
        "n_mels": table.integer("n_mels", 1, 1024),
        "f_min": table.number("f_min", 0, 384_000),
        "f_max": table.number("f_max", 1, 384_000),
        "mel_scale": table.choice("mel_scale", ("slaney", "htk")),
        "norm": table.choice("norm", ("slaney", "none")),
        "triangles": table.choice("triangles", ("hz", "mel")),
        "log": table.choice("log", ("none", "natural", "log10", "db")),
        "log_offset": table.number("log_offset", 0, 1e9),
        "log_floor": table.number("log_floor", 0, 1e9),
        "ref": table.choice("ref", ("one", "max")),
        "top_db": table.number("top_db", 0, 1000),
        "n_mfcc": table.integer("n_mfcc", 1, 1024),
        "normalize": table.choice("normalize", ("none", "all", "per-bin")),
        "mean": table.numbers("mean", each="bin"),
        "std": table.numbers("std", each="bin", nonzero=True),
        "layout": table.choice("layout", ("frames-bins", "bins-frames")),
        "frames": table.integer("frames", 1, 1 << 20),
    }
    keys: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if kind == "mfcc" and "log" not in keys:
        keys["log"] = "db"  # as librosa and torchaudio do
    options = SpectrogramOptions(kind, *_lengths(table), **keys)
    _check(table, options)
    return options


def _lengths(table: TomlTable) -> tuple[int, int, int]:
    """FFT, window and hop; the FFT is the next power of two, or the window all of the FFT."""
    n_fft = table.integer("n_fft", 8, MAX_FFT)
    win_length = table.integer("win_length", 2, MAX_FFT)
    hop_length = table.integer("hop_length", 1, MAX_FFT)
    if hop_length is None:
        raise table.fault("hop_length", "is missing: the samples from one frame to the next")
    if n_fft is None and win_length is None:
        raise table.fault("win_length", "is missing: the samples of a window; or name n_fft")
    length = win_length or n_fft or 0
    return n_fft or max(8, 1 << (length - 1).bit_length()), length, hop_length


def _check(table: TomlTable, options: SpectrogramOptions) -> None:
    """Keys that do not go together."""
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


SPECTROGRAM = Section("spectrogram", SpectrogramOptions, _spectrogram)
