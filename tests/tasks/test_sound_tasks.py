"""Sounds of every encoding become equal windows, and window scores become answers."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.audio.audio_classification import TimeSpan
from pocketserve.tasks.audio.containers import container_of
from pocketserve.tasks.audio.voice_activity import speech_windows
from pocketserve.tasks.base import AnswerOptions, Hints
from pocketserve.tensors import Quantization, TensorSpec
from pocketserve_wire import ApiError, ErrorCode
from sounds import RATE, tone, wav
from text_models import task_of

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
)
SECOND = tone()
LABELS = {"l.txt": "quiet\nloud\nother\n"}


def classifier(
    folder: Path, shape: tuple[int, ...] = (1, 4000), kind: str = "FP32", **audio: Any
) -> Any:
    """Return a classifier with three classes."""
    spec = TensorSpec("x", kind, shape, audio.pop("quantization", None))
    table = {"sample_rate": RATE, **audio}
    manifest = {
        "task": "audio-classification",
        "labels": "l.txt",
        "audio": table,
    }
    return task_of(folder, [spec], {"scores": (1, 3)}, manifest, LABELS)


def arrays(task: Any, body: bytes, **values: Any) -> list[Any]:
    """Return the input of each run."""
    return [
        next(iter(run.values()))
        for run in task.prepare(memoryview(body), Hints(values=values)).runs
    ]


def npy(array: Any) -> bytes:
    """Return an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


PCM = (SECOND * 32767).astype("<i2").tobytes()
WRAPPED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "wav": (wav(SECOND), {}),
    "wav, said so": (wav(SECOND), {"format": "wav"}),
    "stereo": (wav(tone(channels=2)), {}),
    "8 kHz": (wav(tone(rate=8000), 8000), {}),
    "48 kHz, 24 bits": (wav(tone(rate=48_000), 48_000, 24), {}),
    "pcm16": (PCM, {"format": "pcm16"}),
    "pcm16 with a rate": (PCM, {"format": "pcm16", "rate": RATE, "channels": 1}),
    "pcm16, two channels": (
        (tone(channels=2) * 32767).astype("<i2").tobytes(),
        {"format": "pcm16", "channels": 2, "rate": RATE},
    ),
    "float32": (SECOND.astype("<f4").tobytes(), {"format": "float32"}),
    "npy of reals": (npy(SECOND[:, 0]), {}),
    "npy of two channels": (npy(tone(channels=2)), {}),
    "npy of 16-bit integers": (npy((SECOND[:, 0] * 32767).astype(np.int16)), {}),
    "JSON": (json.dumps(SECOND[:, 0].tolist()).encode(), {}),
    "JSON of 16-bit integers": (
        json.dumps((SECOND[:, 0] * 32767).astype(int).tolist()).encode(),
        {},
    ),
}


@pytest.mark.parametrize("case", WRAPPED)
def test_each_encoding_gives_the_same_windows(tmp_path: Path, case: str) -> None:
    """The same tone in every encoding gives the same four windows."""
    body, values = WRAPPED[case]
    found = arrays(classifier(tmp_path), body, **values)
    assert [(a.shape, a.dtype) for a in found] == [((1, 4000), np.float32)] * 4
    whole = np.concatenate(found, axis=1)[0]
    np.testing.assert_allclose(whole[500:-500], SECOND[500:-500, 0], atol=2e-3)


SHAPES: dict[str, tuple[tuple[int, ...], str, dict[str, Any], tuple[int, ...], str]] = {
    "flat": ((4000,), "FP32", {}, (4000,), "float32"),
    "a row": ((1, 4000), "FP32", {}, (1, 4000), "float32"),
    "open batch": ((-1, 4000), "FP32", {}, (1, 4000), "float32"),
    "a channel behind": ((1, 4000, 1), "FP32", {}, (1, 4000, 1), "float32"),
    "a channel in front": ((1, 1, 4000), "FP32", {}, (1, 1, 4000), "float32"),
    "16-bit integers": ((1, 4000), "INT16", {}, (1, 4000), "int16"),
    "reals of 16-bit size": (
        (1, 4000),
        "FP32",
        {"scale": "int16"},
        (1, 4000),
        "float32",
    ),
    "quantised": (
        (1, 4000),
        "INT8",
        {"quantization": Quantization(1 / 128, 0)},
        (1, 4000),
        "float32",
    ),
    "half": ((1, 4000), "FP16", {}, (1, 4000), "float16"),
    "open": ((-1,), "FP32", {}, (16_000,), "float32"),
    "open row": ((1, -1), "FP32", {}, (1, 16_000), "float32"),
    "open, with a window": ((1, -1), "FP32", {"window": 8000}, (1, 8000), "float32"),
    "stereo": ((1, 4000, 2), "FP32", {"channels": 2}, (1, 4000, 2), "float32"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_window_shapes(tmp_path: Path, case: str) -> None:
    """A window has the input's shape, datatype and range."""
    shape, kind, audio, expected, dtype = SHAPES[case]
    first = arrays(classifier(tmp_path, shape, kind, **audio), wav(SECOND))[0]
    assert (first.shape, str(first.dtype)) == (expected, dtype)
    biggest = 0.5 * (32768 if "integers" in case or "16-bit" in case else 1)
    assert np.abs(first.astype(float)).max() == pytest.approx(biggest, rel=2e-3)


RAMP = (np.arange(1000) / 2000)[:, None]


@pytest.mark.parametrize(
    ("pad", "last"),
    [
        ("zeros", [0.45, 0]),
        ("repeat", [0.45, 0.45]),
    ],
)
def test_hop_context_and_padding(tmp_path: Path, pad: str, last: list[float]) -> None:
    """Windows overlap and include their context.

    The last one is padded as configured.
    """
    body = wav(RAMP, bits=32, floating=True)
    options = {
        "window": 400,
        "hop": 300,
        "context": 10,
        "pad": pad,
    }
    found = arrays(classifier(tmp_path, (1, 410), **options), body)
    assert len(found) == 3
    assert found[0][0, :10].tolist() == [0] * 10
    np.testing.assert_allclose(found[1][0, :11], RAMP[290:301, 0], atol=1e-6)
    np.testing.assert_allclose(found[2][0, 10:], RAMP[600:1000, 0], atol=1e-6)

    end = wav(RAMP[900:], bits=32, floating=True)
    short = arrays(classifier(tmp_path, (1, 800), pad=pad), end)
    assert len(short) == 1
    np.testing.assert_allclose([short[0][0, 0], short[0][0, 100]], last, atol=1e-6)


def test_an_incomplete_last_window_can_be_dropped(tmp_path: Path) -> None:
    body = wav(RAMP, bits=32, floating=True)
    assert len(arrays(classifier(tmp_path, (1, 400), pad="drop"), body)) == 2
    assert len(arrays(classifier(tmp_path, (1, 4000), pad="drop"), body)) == 1


def test_normalisation(tmp_path: Path) -> None:
    """Mean 0 and deviation 1, or a peak of 1; silence stays silence."""
    zero_mean = arrays(
        classifier(tmp_path, (1, -1), normalize="zero-mean"), wav(SECOND + 0.2)
    )[0]
    assert zero_mean.mean() == pytest.approx(0, abs=1e-3)
    assert zero_mean.std() == pytest.approx(1, abs=1e-3)
    assert np.abs(
        arrays(classifier(tmp_path, (1, -1), normalize="peak"), wav(SECOND))[0]
    ).max() == pytest.approx(1)
    for how in ("zero-mean", "peak", "none"):
        assert not arrays(classifier(tmp_path, normalize=how), wav(SECOND * 0))[0].any()


BAD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "empty": (b"", {}, "body is empty"),
    "text": (b"hello there", {}, "no WAV file"),
    "MP3": (b"ID3\x04rest", {}, "kind MP3"),
    "FLAC": (b"fLaC1234", {}, "kind FLAC"),
    "Ogg": (b"OggS1234", {}, "kind Ogg"),
    "no samples": (wav(SECOND[:0]), {}, "holds no samples"),
    "half a sample": (b"\0", {"format": "pcm16"}, "holds no samples"),
    "an unknown format": (PCM, {"format": "nv21"}, "must be wav or one of"),
    "too long": (wav(tone(2)), {}, "lasts 2.0 seconds"),
    "JSON of words": (b'["a"]', {}, "numbers from -1 to 1"),
    "JSON of a huge integer": (b"[1" + b"0" * 400 + b"]", {}, "numbers from -1 to 1"),
    "JSON of no numbers": (b"[NaN]", {}, "not numbers"),
    "nothing in JSON": (b"[]", {}, "holds no samples"),
    "npy of words": (
        npy(np.array(["a"])),
        {},
        "must hold real numbers from -1 to 1 or 16-bit integers",
    ),
    "npy of a cube": (npy(np.zeros((2, 2, 2))), {}, r"got float64 \[2, 2, 2\]"),
    "channels in front": (
        npy(np.zeros((2, 4000))),
        {},
        r"\[samples, channels\], got float64 \[2, 4000\]",
    ),
    "npy of 8-bit integers": (
        npy(np.zeros(9, np.int8)),
        {},
        "16-bit integers, .*, got int8",
    ),
    "npy of bytes": (npy(np.zeros(9, np.uint8)), {}, r"got uint8 \[9\]"),
    "npy of 32-bit integers": (
        npy(np.array([0, 2**20], np.int32)),
        {},
        "16-bit integers, .*, got int32 with others",
    ),
    "npy of 16-bit samples as reals": (
        npy(SECOND[:, 0] * 32767),
        {},
        "from -1 to 1 or 16-bit integers, .*, got float64",
    ),
    "JSON of 32-bit integers": (
        b"[0, 100000]",
        {},
        "16-bit integers, .*, got int64 with others",
    ),
    "JSON of 16-bit samples as reals": (
        b"[0.5, 1000]",
        {},
        "from -1 to 1 or 16-bit integers, .*, got float64",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_sounds_are_rejected(tmp_path: Path, case: str) -> None:
    body, values, text = BAD[case]
    with pytest.raises(ApiError, match=text) as caught:
        arrays(classifier(tmp_path, max_seconds=1.5), body, **values)
    assert caught.value.code in (ErrorCode.INVALID_INPUT, ErrorCode.INVALID_PARAMETER)


def answer(
    task: Any, rows: list[list[float]], spans: list[tuple[float, float]], **options: Any
) -> Any:
    """Return the answer to one run per window."""
    values = {"pool": options.pop("pool")} if "pool" in options else {}
    runs = [{"scores": np.array([row], np.float32)} for row in rows]
    return task.answer(runs, AnswerOptions(values=values, **options), spans)


def test_pooling(tmp_path: Path) -> None:
    """A weighted mean, the maximum, or each window.

    The weight is the share of sound in a window.
    """
    task = classifier(tmp_path)
    rows = [[0.1, 0.8, 0.1], [0.9, 0.0, 0.1]]
    spans = [TimeSpan(0.0, 0.3), TimeSpan(0.3, 0.1)]
    assert [(e["label"], round(e["score"], 3)) for e in answer(task, rows, spans)] == [
        ("loud", 0.6),
        ("quiet", 0.3),
        ("other", 0.1),
    ]
    assert [
        (e["label"], round(e["score"], 3))
        for e in answer(task, rows, spans, pool="max", top_k=1)
    ] == [("quiet", 0.9)]
    found = answer(task, rows, spans, pool="none", threshold=0.5)
    assert [
        (
            e["start"],
            e["end"],
            e["label"],
        )
        for e in found
    ] == [
        (0.0, 0.3, "loud"),
        (0.3, 0.4, "quiet"),
    ]


def test_several_rows_of_one_run(tmp_path: Path) -> None:
    """A model that splits windows itself returns a row for each."""
    task = classifier(tmp_path, (-1,))
    runs = [{"scores": np.array([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1]], np.float32)}]
    found = task.answer(
        runs, AnswerOptions(values={"pool": "none"}, top_k=1), [TimeSpan(0.0, 2.0)]
    )
    assert [
        (
            e["start"],
            e["end"],
            e["label"],
        )
        for e in found
    ] == [
        (0.0, 1.0, "loud"),
        (1.0, 2.0, "quiet"),
    ]


# Voice activity

STATE = {"state": {"feedback": {"h": "hn"}}}
SPECS = [
    TensorSpec("x", "FP32", (-1, -1)),
    TensorSpec("h", "FP32", (1, 4)),
    TensorSpec("sr", "INT64", ()),
]


def detector(folder: Path, **audio: Any) -> Any:
    """Return a model that takes 512 samples, its state and the rate."""
    table = {
        "sample_rate": RATE,
        "window": 512,
        **audio,
    }
    return task_of(
        folder,
        SPECS,
        {"p": (1, 1), "hn": (1, 4)},
        {
            "task": "voice-activity",
            "audio": table,
            **STATE,
        },
    )


def test_chained_runs(tmp_path: Path) -> None:
    """Windows run in order, each with the rate.

    The server keeps the state.
    """
    prepared = detector(tmp_path, context=64).prepare(memoryview(wav(SECOND)))
    assert prepared.chained
    assert len(prepared.runs) == 32
    assert {name: a.shape for name, a in prepared.runs[0].items()} == {
        "x": (1, 576),
        "sr": (),
    }
    assert prepared.runs[0]["sr"] == RATE
    assert prepared.runs[0]["sr"].dtype == np.int64
    np.testing.assert_array_equal(
        prepared.runs[1]["x"][0, :64], prepared.runs[0]["x"][0, -64:]
    )


def segments(
    task: Any, scores: list[float], **options: Any
) -> list[tuple[float, float]]:
    """Return the segments for these probabilities, one per window of 0.032 s."""
    context = task.prepare(memoryview(wav(np.zeros((512 * len(scores), 1))))).context
    runs = [{"p": np.array([[score]], np.float32)} for score in scores]
    return [
        (entry["start"], entry["end"])
        for entry in task.answer(runs, AnswerOptions(**options), context)
    ]


def test_segments(tmp_path: Path) -> None:
    """Short sounds and pauses are ignored.

    Both ends are extended a little.
    """
    task = detector(tmp_path, min_speech=0.1, min_silence=0.1, speech_pad=0.02)
    speech = (
        [0.0] * 10 + [0.9] * 10 + [0.1] + [0.9] * 10 + [0.0] * 10 + [0.9] + [0.0] * 5
    )
    assert segments(task, speech) == [(0.3, 1.012)]
    assert segments(task, [0.9] * 10) == [(0.0, 0.32)]
    assert segments(task, [0.1] * 10) == []
    assert segments(task, [0.4] * 10, threshold=0.3) == [(0.0, 0.32)]
    quiet = [0.9] * 5 + [0.0] * 5 + [0.9] * 5
    assert segments(task, quiet) == [(0.0, 0.18), (0.3, 0.48)]
    assert len(segments(task, quiet, top_k=1)) == 1


def test_each_window(tmp_path: Path) -> None:
    """``pool=none`` returns every probability with its time.

    The last one ends with the sound.
    """
    task = detector(tmp_path)
    context = task.prepare(memoryview(wav(SECOND))).context
    runs = []
    for i in range(32):
        runs.append({"p": np.array([[i / 100]], np.float32)})
    found = task.answer(runs, AnswerOptions(values={"pool": "none"}), context)
    assert found[1] == {
        "start": 0.032,
        "end": 0.064,
        "score": pytest.approx(0.01),
    }
    assert found[-1]["end"] == 1.0
    assert len(found) == 32


@given(st.lists(st.floats(0, 1), max_size=80), st.integers(1, 5))
@SETTINGS
def test_segments_are_ordered_and_contain_all_speech(
    scores: list[float], silence: int
) -> None:
    """Segments don't touch and cover every window above the threshold.

    They start and end near speech.
    """
    pieces = speech_windows(np.array(scores), 0.5, silence)
    inside = {n for first, last in pieces for n in range(first, last)}
    assert all(first < last for first, last in pieces)
    assert all(one[1] + silence <= two[0] for one, two in itertools.pairwise(pieces))
    assert all(
        scores[first] >= 0.5 and scores[last - 1] >= 0.35 for first, last in pieces
    )
    assert {n for n, score in enumerate(scores) if score >= 0.5} <= inside


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no rate": ({"sample_rate": None}, "needs audio.sample_rate"),
    "no such input": (
        {"input": "y"},
        "audio.input names 'y'; the model has 'x', 'h', 'sr'",
    ),
    "no window": ({"window": None}, "needs audio.window"),
    "no such output": ({"output": "q"}, "audio.output may be p, hn"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_manifests_are_rejected(tmp_path: Path, case: str) -> None:
    """The error names the key."""
    change, text = WRONG[case]
    audio = {}
    for key, v in {
        "sample_rate": RATE,
        "window": 512,
        **change,
    }.items():
        if v is not None:
            audio[key] = v
    manifest = {
        "task": "voice-activity",
        "audio": audio,
        **STATE,
    }
    with pytest.raises(ModelLoadError, match=text):
        task_of(tmp_path, SPECS, {"p": (1, 1), "hn": (1, 4)}, manifest)


def test_state_must_be_declared(tmp_path: Path) -> None:
    """The error names an unfilled input and the way out."""
    specs = [TensorSpec("x", "FP32", (-1, -1)), TensorSpec("h", "FP32", (1, 4))]
    manifest = {"task": "voice-activity", "audio": {"sample_rate": RATE, "window": 512}}
    with pytest.raises(ModelLoadError, match=r"\[state.feedback\]"):
        task_of(tmp_path, specs, {"p": (1, 1), "hn": (1, 4)}, manifest)


def test_fixed_inputs_get_no_samples(tmp_path: Path) -> None:
    """The server fills them, even those that usually get the rate or a mask."""
    names = ("h", "sr", "attention_mask")
    specs = [
        TensorSpec("x", "FP32", (-1, -1)),
        *(TensorSpec(name, "FP32", (1, 4)) for name in names),
    ]
    manifest = {
        **{"task": "voice-activity", "audio": {"sample_rate": RATE, "window": 512}},
        "fixed_inputs": dict.fromkeys(names, 0),
    }
    task = task_of(tmp_path, specs, {"p": (1, 1)}, manifest)
    assert task.prepare(memoryview(wav(SECOND))).runs[0].keys() == {"x"}


def test_keys_of_one_version(tmp_path: Path) -> None:
    """One version can override the context."""
    task = detector(
        tmp_path, versions={"onnx": {"context": 8}, "torchscript": {"context": 9}}
    )
    assert task.prepare(memoryview(wav(SECOND))).runs[0]["x"].shape == (1, 520)


FILES = {
    "MPEG-4 (m4a, mp4)": (
        b"\0\0\0\x20ftypM4A \0\0\0\0",
        b"\0\0\0\x18ftypmp42",
        b"\0\0\0\x18ftypisom",
    ),
    "3GP": (b"\0\0\0\x18ftyp3gp4", b"\0\0\0\x18ftyp3g2a"),
    "QuickTime": (b"\0\0\0\x14ftypqt  ",),
    "AMR": (b"#!AMR\n", b"#!AMR-WB\n"),
    "WebM or Matroska": (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01",),
    "Ogg (Opus)": (b"OggS\0\x02" + bytes(22) + b"OpusHead",),
    "Ogg": (b"OggS\0\x02" + bytes(22) + b"\x01vorbis",),
    "MP3": (
        b"ID3\x03\0",
        b"\xff\xfb\x90\x64",
        b"\xff\xf3\x40\xc4",
        b"\xff\xe3\x18\xc4",
    ),
    "AAC": (b"\xff\xf1\x50\x80", b"\xff\xf9\x50\x80", b"ADIF"),
    "FLAC": (b"fLaC\0\0\0\x22",),
    "CAF": (b"caff\0\x01\0\0",),
    "AIFF": (b"FORM\0\0\x10\0AIFF", b"FORM\0\0\x10\0AIFC"),
    "AU": (b".snd\0\0\0\x18",),
}


@pytest.mark.parametrize(
    ("kind", "start"),
    [(kind, start) for kind, starts in FILES.items() for start in starts],
)
def test_compressed_sounds_of_phones_are_rejected_by_name(
    kind: str, start: bytes
) -> None:
    assert container_of(memoryview(start + bytes(200))) == kind


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\xff",
        b"\xff\xd8\xff\xe0",
        b"\x89PNG",
        b"RIFF\0\0\0\0WAVE",
        b"hello",
        b"ID",
        b"\xff\xff\xff",
    ],
)
def test_other_files_are_not_mistaken_for_sounds_of_phones(start: bytes) -> None:
    assert container_of(memoryview(start)) == ""
