"""Spectrograms equal those of other libraries and fit into a model's input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.repository.manifest import ManifestError, parse_manifest
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio import sounds as module
from pocketserve.tasks.audio.options import SpectrogramOptions
from pocketserve.tasks.audio.spectrogram import (
    Spectrogram,
    cosines,
    feature_layout,
    mel_filters,
)
from pocketserve.tasks.base import Hints
from pocketserve.tensors import Quantization, TensorSpec
from pocketserve_wire import ApiError
from sounds import RATE, tone, wav
from tasks.spectrogram_vectors import CASES, DATA, signal
from text_models import task_of

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
)
SMALL: dict[str, Any] = {
    "n_fft": 256,
    "hop_length": 128,
    "n_mels": 20,
}
VECTORS = [(library, name) for library, cases in CASES.items() for name in cases]
TOLERANCE = {"librosa": 1e-6, "tensorflow": 2e-4}
"""Relative to the largest value.

TensorFlow computes mel weights in single precision.
"""


def options(table: dict[str, Any]) -> SpectrogramOptions:
    """Return the options of a manifest with this table."""
    return parse_manifest({"spectrogram": table}).section(SpectrogramOptions)


def spectrogram(rate: int = RATE, **table: Any) -> Spectrogram:
    """Compute a spectrogram with a manifest's keys."""
    return Spectrogram(options(table), rate)


@pytest.mark.parametrize(("library", "name"), VECTORS)
def test_spectrograms_equal_those_of_other_libraries(library: str, name: str) -> None:
    """The vectors' file names the libraries' versions."""
    with np.load(DATA / f"spectrogram_{library}.npz") as data:
        wanted = data[name]
    found = spectrogram(**CASES[library][name]).features(signal())
    assert found.dtype == np.float32
    assert found.shape == wanted.shape
    np.testing.assert_allclose(
        found, wanted, rtol=0, atol=TOLERANCE[library] * np.abs(wanted).max()
    )


# Properties


@given(
    st.integers(1, 700),
    st.integers(8, 300),
    st.integers(0, 100),
    st.integers(1, 400),
    st.booleans(),
    st.sampled_from(["constant", "reflect"]),
    st.sampled_from(["n_fft", "win_length"]),
)
@SETTINGS
def test_any_length(
    samples: int, n_fft: int, less: int, hop: int, center: bool, pad: str, frame: str
) -> None:
    """Frames are finite and as many as computed, for silence too.

    The minimum of samples is exact.
    """
    made = spectrogram(
        n_fft=n_fft, win_length=max(2, n_fft - less), hop_length=hop, center=center, pad_mode=pad, frame_length=frame,
        kind="linear",
    )  # fmt: skip
    found = made.features(np.sin(np.arange(samples, dtype=np.float32)))
    assert found.shape == (made.count(samples), n_fft // 2 + 1)
    assert np.isfinite(found).all()
    for silence in (0, samples):
        assert np.isfinite(made.features(np.zeros(silence, np.float32))).all()
    fewest = made.samples(found.shape[0])
    assert made.count(fewest) == found.shape[0]
    assert found.shape[0] == 1 or (
        fewest <= samples and made.count(fewest - 1) < found.shape[0]
    )


@given(st.floats(0.01, 8))
@SETTINGS
def test_loudness(gain: float) -> None:
    """A louder sound scales powers by the square and shifts decibels by a constant."""
    for table, expected in (
        ({"log": "none"}, lambda x: x * gain**2),
        ({"log": "none", "power": 1}, lambda x: x * gain),
        ({"log": "db", "log_floor": 1e-30}, lambda x: x + 20 * np.log10(gain)),
        (
            {"log": "db", "log_floor": 1e-30, "power": 1},
            lambda x: x + 20 * np.log10(gain),
        ),
    ):
        made = spectrogram(**SMALL, **table)
        sound = signal()[:2000]
        wanted = expected(made.features(sound))
        # The product is rounded to single precision, which matters in the quietest
        # bands.
        found = made.features(sound * np.float32(gain))
        np.testing.assert_allclose(
            found, wanted, rtol=1e-4, atol=1e-3 * np.abs(wanted).max()
        )


@given(
    st.integers(1, 100),
    st.floats(0, 3000),
    st.floats(500, 5000),
    st.sampled_from(["htk", "slaney"]),
)
@SETTINGS
def test_mel_filters(bands: int, low: float, width: float, scale: str) -> None:
    """Weights are non-negative, peaks increase, and frequencies out of range have no
    weight.
    """
    table = {
        "n_fft": 4096,
        "hop_length": 1,
        "n_mels": bands,
        "f_min": low,
        "f_max": low + width,
        "mel_scale": scale,
    }
    weights = mel_filters(options(table), RATE)
    hertz = np.arange(2049) * (RATE / 4096)
    assert weights.shape == (2049, bands)
    assert (weights >= 0).all()
    assert not weights[(hertz < low - 1e-6) | (hertz > low + width + 1e-6)].any()
    filled = weights[:, weights.any(axis=0)]
    assert (np.diff(filled.argmax(axis=0)) >= 0).all()


def test_a_tone_is_in_its_band() -> None:
    """The loudest bin and band are those of the tone's frequency."""
    sound = tone(frequency=1000.0)[:, 0].astype(np.float32)
    linear = spectrogram(
        kind="linear", n_fft=512, hop_length=512, center=False
    ).features(sound)
    assert set(linear.argmax(axis=1)) == {32}
    weights = mel_filters(options(SMALL), RATE)
    assert set(spectrogram(**SMALL).features(sound)[1:-1].argmax(axis=1)) == {
        int(weights[16].argmax())
    }


def test_the_cosine_transform_is_orthonormal() -> None:
    """The transform is orthonormal, and the first coefficient is a multiple of the
    mean.
    """
    table = cosines(40, 40)
    np.testing.assert_allclose(table.T @ table, np.eye(40), atol=1e-12)
    np.testing.assert_allclose(table[:, 0], 1 / np.sqrt(40))


def test_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processing in pieces gives the same result."""
    made = spectrogram(**SMALL)
    whole = made.features(signal())
    monkeypatch.setattr("pocketserve.tasks.audio.spectrogram.BLOCK", 1000)
    np.testing.assert_array_equal(made.features(signal()), whole)


def test_spectrogram_normalisation() -> None:
    """By window, by bin, by constants of the manifest; and a range below the maximum."""
    sound = signal()[:2500]
    every = spectrogram(**SMALL, normalize="all").features(sound)
    assert every.mean() == pytest.approx(0, abs=1e-5)
    assert every.std() == pytest.approx(1, abs=1e-3)
    per_bin = spectrogram(**SMALL, normalize="per-bin").features(sound)
    np.testing.assert_allclose(per_bin.mean(axis=0), 0, atol=1e-5)
    plain = spectrogram(**SMALL).features(sound)
    mean = np.arange(20.0)
    std = np.arange(1.0, 21.0)
    own = spectrogram(**SMALL, mean=mean.tolist(), std=std.tolist()).features(sound)
    np.testing.assert_allclose(own, (plain - mean) / std, rtol=1e-5, atol=1e-5)
    for log, unit in (
        ("db", 1.0),
        ("log10", 0.1),
        ("natural", np.log(10) / 10),
    ):
        for power in (1, 2):
            logarithmic = spectrogram(
                **SMALL, log=log, top_db=30, power=power
            ).features(sound)
            span = float(logarithmic.max() - logarithmic.min())
            half = 1
            if power == 1 and log != "db":
                half = 2
            assert span == pytest.approx(30 * unit / half, rel=1e-5)


# The input's shape

PLACED: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[int, ...], bool]] = {
    "frames, bins": ((26, 20), {}, (26, 20), False),
    "a row": ((1, 26, 20), {}, (1, 26, 20), False),
    "bins, frames": ((1, 20, 26), {}, (1, 20, 26), True),
    "a channel behind": ((1, 26, 20, 1), {}, (1, 26, 20, 1), False),
    "a channel in front": ((1, 1, 20, 26), {}, (1, 1, 20, 26), True),
    "a height between": ((1, 26, 1, 20), {}, (1, 26, 1, 20), False),
    "open batch": ((-1, 26, 20), {}, (1, 26, 20), False),
    "open frames": ((1, -1, 20), {}, (1, 126, 20), False),
    "open frames behind": ((1, 20, -1), {}, (1, 20, 126), True),
    "open frames, number said": ((1, -1, 20), {"frames": 26}, (1, 26, 20), False),
    "frames, number said as well": ((1, 26, 20), {"frames": 26}, (1, 26, 20), False),
    "open batch and frames": ((-1, -1, 20), {}, (1, 126, 20), False),
    "all open": ((-1, 1, -1, -1), {}, (1, 1, 126, 20), False),
    "all open, layout said": (
        (-1, 1, -1, -1),
        {"layout": "bins-frames"},
        (1, 1, 20, 126),
        True,
    ),
    "one dimension": ((520,), {}, (520,), False),
    "one dimension in a row": ((1, 520), {}, (1, 520), False),
    "square, layout said": ((1, 20, 20), {"layout": "bins-frames"}, (1, 20, 20), True),
    "mfcc": ((1, 26, 12), {"kind": "mfcc", "n_mfcc": 12}, (1, 26, 12), False),
}


@pytest.mark.parametrize("case", PLACED)
def test_dimensions_of_the_input(tmp_path: Path, case: str) -> None:
    """The shape's dimensions fix frames and bins, and windows are as long as the
    frames.
    """
    shape, table, expected, swapped = PLACED[case]
    task = classifier(tmp_path, shape, **table)
    found = inputs(task, wav(tone(), bits=32, floating=True))
    assert {a.shape for a in found} == {expected}
    assert found[0].dtype == np.float32
    sound = tone()[:, 0].astype(np.float32)
    first = spectrogram(
        **SMALL, **{k: v for k, v in table.items() if k != "frames"}
    ).features(sound)
    inner = (
        found[0].reshape(-1, first.shape[1])
        if not swapped
        else found[0].reshape(first.shape[1], -1).T
    )
    # The end of a window is padded, unlike the middle of a sound.
    np.testing.assert_allclose(inner[:15], first[:15], atol=1e-3)


def classifier(
    folder: Path, shape: tuple[int, ...], datatype: str = "FP32", **table: Any
) -> Any:
    """Return a classifier that takes a spectrogram."""
    spec = TensorSpec(
        "x",
        datatype,
        shape,
        table.pop("quantization", None),
        open=table.pop("open", False),
    )
    audio = {"sample_rate": RATE, **table.pop("audio", {})}
    labels = {"l.txt": "quiet\nloud\nother\n"}
    manifest = {
        "task": "audio-classification",
        "labels": "l.txt",
        "audio": audio,
        "spectrogram": {**SMALL, **table},
    }
    return task_of(folder, [spec], {"scores": (1, 3)}, manifest, labels)


def inputs(task: Any, body: bytes, **values: Any) -> list[Any]:
    """Return the input of each run."""
    return [
        next(iter(run.values()))
        for run in task.prepare(memoryview(body), Hints(values=values)).runs
    ]


def test_windows(tmp_path: Path) -> None:
    """A window longer than its frames loses samples at its end; windows may overlap."""
    fewest = 25 * 128
    assert len(inputs(classifier(tmp_path, (1, 26, 20)), wav(tone()))) == -(
        -RATE // fewest
    )
    assert (
        len(
            inputs(
                classifier(tmp_path, (1, 26, 20), audio={"window": 8000}), wav(tone())
            )
        )
        == 2
    )
    assert (
        len(inputs(classifier(tmp_path, (1, 26, 20), audio={"hop": 800}), wav(tone())))
        == 17
    )
    chunks = inputs(
        classifier(tmp_path, (1, -1, 20), audio={"window": 1280}), wav(tone())
    )
    assert {a.shape for a in chunks} == {(1, 11, 20)}
    assert len(chunks) == 13
    assert inputs(classifier(tmp_path, (1,), open=True), wav(tone()))[0].shape == (
        1,
        126,
        20,
    )


def test_kinds_of_inputs(tmp_path: Path) -> None:
    """Integers are rounded and clipped.

    Quantised inputs get reals that the server quantises.
    """
    loud = wav(tone())
    real = inputs(classifier(tmp_path, (1, 26, 20)), loud)[0]
    small = inputs(classifier(tmp_path, (1, 26, 20), "INT8"), loud)[0]
    assert small.dtype == np.int8
    assert np.array_equal(small, np.clip(np.rint(real), -128, 127))
    assert (
        inputs(
            classifier(
                tmp_path, (1, 26, 20), "INT8", quantization=Quantization(0.1, 0)
            ),
            loud,
        )[0].dtype
        == "f4"
    )
    sixteen = inputs(
        classifier(tmp_path, (1, 26, 20), audio={"scale": "int16"}, log="none"), loud
    )[0]
    plain = inputs(classifier(tmp_path, (1, 26, 20), log="none"), loud)[0]
    np.testing.assert_allclose(sixteen, plain * 32768.0**2, rtol=1e-4)


def test_too_long_sounds_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are rejected by the number of features, before any is computed."""
    monkeypatch.setattr(module, "MAX_FEATURES", 100 * 20)
    monkeypatch.setattr(module, "MAX_PREPARED", 2 * 26 * 128)
    for shape in ((1, -1, 20), (1, 26, 20)):
        with pytest.raises(ApiError, match="send it in parts"):
            inputs(classifier(tmp_path, shape), wav(tone()))


def test_the_limit_counts_intermediate_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts bands before coefficients, and a manifest's window by its own
    length.
    """
    monkeypatch.setattr(module, "MAX_FEATURES", 100 * 20)
    monkeypatch.setattr(module, "MAX_PREPARED", 1 << 26)
    for shape in ((1, -1, 1), (1, 126, 1)):
        with pytest.raises(ApiError, match="send it in parts"):
            inputs(classifier(tmp_path, shape, kind="mfcc", n_mfcc=1), wav(tone()))


def test_the_card_describes_the_preprocessing(tmp_path: Path) -> None:
    said = classifier(tmp_path, (1, 26, 20)).describe()["preprocessing"]
    assert said.endswith(
        "windows of 3200 samples; log-mel spectrogram of 20 bins, every 128 samples"
    )


UNFIT: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "other bins": (
        (1, 26, 40),
        {},
        r"shape \[1, 26, 40\] of input 'x' does not fit 20 bins",
    ),
    "square": ((1, 20, 20), {}, "fits both ways: set spectrogram.layout"),
    "the other layout": (
        (1, 26, 20),
        {"layout": "bins-frames"},
        "does not fit 20 bins",
    ),
    "two channels": ((1, 26, 20), {"audio": {"channels": 2}}, "is of one channel"),
    "above half the rate": (
        (1, 26, 20),
        {"f_max": 9000},
        r"f_max is above half the sampling rate, 8000 Hz",
    ),
    "no room below half the rate": (
        (1, 26, 20),
        {"f_min": 8000},
        "f_min leaves no room for 20 bands below 8000 Hz",
    ),
    "bands on one spot": (
        (1, 26, 1024),
        {"f_min": 7999.9999999999, "f_max": 8000, "n_mels": 1024},
        "f_min leaves no room for 1024 bands",
    ),
    "a short window": (
        (1, 26, 20),
        {"audio": {"window": 1000}},
        "26 frames, which are 3200 samples",
    ),
    "other frames": (
        (1, 26, 20),
        {"frames": 25},
        r"spectrogram\.frames is 25, but shape \[1, 26, 20\] of input 'x' takes 26 frames of 20 bins",
    ),
    "other frames in one dimension": (
        (1, 520),
        {"frames": 27},
        "frames is 27, but .* takes 26 frames",
    ),
    "three axes": ((2, 26, 20), {}, "does not fit 20 bins"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_incompatible_models_are_rejected(tmp_path: Path, case: str) -> None:
    """The error names the key."""
    shape, table, text = UNFIT[case]
    with pytest.raises(ModelLoadError, match=text):
        classifier(tmp_path, shape, **table)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no hop": ({"n_fft": 256}, "spectrogram.hop_length is missing"),
    "no length": ({"hop_length": 128}, "spectrogram.win_length is missing"),
    "a window over the FFT": (
        {**SMALL, "win_length": 400},
        "n_fft is 256, less than win_length, 400",
    ),
    "an empty range": (
        {**SMALL, "f_min": 500, "f_max": 400},
        "f_max must be above f_min, 500",
    ),
    "many coefficients": (
        {**SMALL, "kind": "mfcc", "n_mfcc": 21},
        "n_mfcc is 21, more than n_mels, 20",
    ),
    "no floor": ({**SMALL, "log_floor": 0}, "silence has no logarithm"),
    "means of another number": (
        {**SMALL, "mean": [1, 2]},
        "mean has 2 numbers; give one, or one for each of 20 bins",
    ),
    "no deviation": ({**SMALL, "std": 0}, "one per bin and none of them 0"),
    "a spelling": ({**SMALL, "hop_len": 1}, "did you mean 'hop_length'"),
    "a huge FFT": ({"n_fft": 1 << 17, "hop_length": 1}, "n_fft must be a whole number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_manifests_are_rejected(case: str) -> None:
    """The error names the file, the key and the fix."""
    table, text = WRONG[case]
    with pytest.raises(ManifestError, match=rf"model\.toml: .*{text}"):
        options(table)


@given(
    st.lists(st.sampled_from([-1, 1, 2, 20, 26]), min_size=1, max_size=4),
    st.sampled_from([None, 0, 1]),
)
@SETTINGS
def test_random_shapes(shape: list[int], layout: int | None) -> None:
    """An accepted layout gives arrays that the input accepts."""
    table = {
        **SMALL,
        **(
            {} if layout is None else {"layout": ("frames-bins", "bins-frames")[layout]}
        ),
    }
    spec = TensorSpec("x", "FP32", tuple(shape))
    try:
        place = feature_layout(spec, options(table))
    except ModelLoadError:
        return
    assert spec.accepts(
        place.arrange(np.zeros((place.frames or 7, 20), np.float32)).shape
    )
