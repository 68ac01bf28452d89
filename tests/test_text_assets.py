"""Send raw sounds and texts to public models by every client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asset_cases import OLDER_TOLERANCE
from conftest import Server, start_server
from pocketserve_client import Client
from sounds import wav

pytestmark = [pytest.mark.assets, pytest.mark.live]

HEARD = "[audio]\nsample_rate = 16000\nwindow = 512\n"
SILERO = f'task = "voice-activity"\n{HEARD}'
SILERO_OUTSIDE = f'{SILERO}context = 64\n[state.feedback]\nstate = "stateN"\n'
"""The ONNX file leaves state to its client that the others keep inside."""


@dataclass(frozen=True)
class Served:
    """A public model as a user would serve it; ``mark`` is its framework's, empty for
    TFLite.
    """

    file: str
    mark: str = ""
    manifest: str = ""
    case: str = ""


MODELS = {
    "yamnet": Served("tflite/yamnet_audio_classifier_with_metadata.tflite"),
    "sentiment": Served("tflite/nl_classifier_regex_tokenizer.tflite"),
    "vad_onnx": Served(
        "onnx/silero_vad_v6.onnx", "onnx", SILERO_OUTSIDE, "silero_vad_v6_onnx__en_num"
    ),
    "vad_v6": Served(
        "torchscript/silero_vad_v6.jit", "torch", SILERO, "silero_vad_v6_jit__en_num"
    ),
    "vad_v4": Served(
        "torchscript/silero_vad_v4.jit", "torch", SILERO, "silero_vad_v4_jit__en_num"
    ),
    "vad_ptl": Served(
        "ptl/silero_vad_v4.derived.ptl", "torch", SILERO, "silero_vad_v4_ptl__en_num"
    ),
}


def write_models(assets: Path, folder: Path, mark: str) -> Path:
    """Write a models folder with the models of one framework."""
    for name, served in MODELS.items():
        if served.mark == mark:
            source = assets / "models" / served.file
            own = folder / name
            own.mkdir(parents=True)
            shutil.copyfile(source, own / source.name)
            if served.manifest:
                (own / "model.toml").write_text(served.manifest)
    return folder


@pytest.fixture(scope="module")
def servers(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the server of a model, started for its framework's first test."""
    running: dict[str, Server] = {}

    def server_of(model: str) -> Server:
        mark = MODELS[model].mark
        if mark not in running:
            folder = tmp_path_factory.mktemp(f"words-{mark or 'tflite'}")
            (folder / "server").mkdir()
            running[mark] = start_server(
                folder / "server", write_models(assets, folder / "models", mark)
            )
        return running[mark]

    yield server_of
    for server in running.values():
        server.stop()


@pytest.fixture
def ask(servers: Any) -> Any:
    """Return a function that queries over HTTP: ``ask(model, body, query)``."""

    def send(model: str, body: bytes, query: str = "") -> Any:
        answer = servers(model).call("POST", f"/predictions/{model}{query}", data=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return send


def expected(assets: Path, case: str) -> Any:
    """Return a verified case."""
    return json.loads((assets / "expected" / f"{case}.json").read_text())


def sound(assets: Path, name: str) -> Path:
    """Return a recording."""
    return assets / "inputs" / "audio" / name


def pcm(path: Path, first: int = 0, last: int | None = None) -> bytes:
    """Return a part of a recording without its header."""
    with wave.open(str(path)) as recording:
        samples = np.frombuffer(recording.readframes(recording.getnframes()), "<i2")
    return bytes(samples[first:last].tobytes())


# Text


@pytest.mark.parametrize("number", [0, 1])
def test_a_sentence_gets_its_sentiment(ask: Any, assets: Path, number: int) -> None:
    wanted = expected(assets, f"nl_regex__{number}")["answer"]
    answer = ask("sentiment", wanted["text"].encode())
    assert answer["task"] == "text-classification"
    found = {one["label"]: one["score"] for one in answer["predictions"]}
    assert found == pytest.approx(wanted["scores"], abs=1e-4)


def test_a_missing_vocabulary_is_reported(assets: Path, tmp_path: Path) -> None:
    """Tensors still work if the file's metadata names a missing vocabulary."""
    own = tmp_path / "models" / "lost"
    own.mkdir(parents=True)
    whole = (assets / "models" / MODELS["sentiment"].file).read_bytes()
    directory = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"vocab.txt"))
    (own / "lost.tflite").write_bytes(
        whole[:directory] + whole[directory:].replace(b"vocab.txt", b"other.txt")
    )
    server = start_server(tmp_path, tmp_path / "models")
    try:
        described = server.call("GET", "/v2/models/lost").json()
        assert described["parameters"]["task"] == "tensors"
        assert "vocabulary cannot be read" in described["metadata"]["problem"]
        numbers = json.dumps([[1] * described["inputs"][0]["shape"][-1]]).encode()
        assert server.call("POST", "/predictions/lost", data=numbers).status_code == 200
    finally:
        server.stop()


def test_several_sentences_get_their_own_answers(ask: Any, assets: Path) -> None:
    """They are a JSON list."""
    cases = [expected(assets, f"nl_regex__{number}")["answer"] for number in (0, 1)]
    body = json.dumps([case["text"] for case in cases]).encode()
    for entry in ask("sentiment", body)["predictions"]:
        assert entry["score"] == pytest.approx(
            cases[entry["input"]]["scores"][entry["label"]], abs=1e-4
        )


# Sound


@pytest.fixture
def tolerance(servers: Any) -> float:
    """Return the case's tolerance, verified with ai-edge-litert.

    The kernels of tflite_runtime round differently.
    """
    runtime = (
        servers("yamnet")
        .call("GET", "/v2/models/yamnet")
        .json()["parameters"]["runtime"]
    )
    if runtime.startswith("tflite-runtime"):
        return OLDER_TOLERANCE
    return 0.01


def close(
    found: list[dict[str, Any]], wanted: list[dict[str, Any]], tolerance: float
) -> None:
    """Check that every expected class has its label and score."""
    by_index = {one["index"]: one for one in found}
    for one in wanted:
        assert by_index[one["index"]]["label"] == one["label"]
        assert by_index[one["index"]]["score"] == pytest.approx(
            one["score"], abs=tolerance
        )
    assert found[0]["label"] == wanted[0]["label"]


def test_a_sound_gets_its_classes(ask: Any, assets: Path, tolerance: float) -> None:
    """The first window and the whole recording are answered."""
    wanted = expected(assets, "yamnet__speech")["answer"]["top5"]
    body = sound(assets, "speech.wav").read_bytes()
    answer = ask("yamnet", body, "?pool=none&top_k=521")
    assert answer["task"] == "audio-classification"
    first = [one for one in answer["predictions"] if one["start"] == 0]
    assert len(first) == 521
    assert first[0]["end"] == 0.975
    close(first, wanted, tolerance)
    assert ask("yamnet", body, "?top_k=1")["predictions"][0]["label"] == "Speech"


def test_another_sample_rate_is_resampled(
    ask: Any, assets: Path, tolerance: float
) -> None:
    """The case's piece at 44.1 kHz, sent as an app's buffer, becomes 16 kHz."""
    case = expected(assets, "yamnet__vocadito_10")
    piece = pcm(sound(assets, "vocadito_10.wav"), 44_100, 44_100 + 42_998)
    answer = ask(
        "yamnet", piece, "?format=pcm16&rate=44100&channels=1&top_k=521&pool=none"
    )
    close(
        [one for one in answer["predictions"] if one["start"] == 0],
        case["answer"]["top5"],
        tolerance,
    )


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=getattr(pytest.mark, MODELS[name].mark))
        for name in MODELS
        if "vad" in name
    ],
)
def test_stretches_of_speech_are_found(ask: Any, assets: Path, model: str) -> None:
    """They and every chunk's probability agree in every format."""
    case = expected(assets, MODELS[model].case)
    body = sound(assets, "en_num.wav").read_bytes()
    answer = ask(model, body, "?pool=none")
    assert answer["task"] == "voice-activity"
    found = [one["score"] for one in answer["predictions"]]
    wanted = np.load(
        assets
        / next(o["npy"] for o in case["outputs"] if o["name"] == "prob_per_chunk")
    )
    np.testing.assert_allclose(found[: len(wanted)], wanted, rtol=0, atol=1e-3)
    speech = ask(model, body)["predictions"]
    length = sum(one["end"] - one["start"] for one in speech)
    assert length / 12 == pytest.approx(case["answer"]["speech_share>0.5"], abs=0.08)
    assert all(
        one["score"] > 0.5 and 0 <= one["start"] < one["end"] <= 12 for one in speech
    )
    assert ask(model, body)["predictions"] == speech  # requests share no state


@pytest.mark.onnx
def test_silence_has_no_speech(ask: Any) -> None:
    """The shortest of sounds has none either."""
    for body in (bytes(32_000), bytes(2)):
        assert ask("vad_onnx", body, "?format=pcm16")["predictions"] == []


def odd_sounds(path: Path) -> dict[str, tuple[bytes, int, str]]:
    """Return bodies by name, with the status and a part of the answer."""
    speech = np.frombuffer(pcm(path), "<i2")[:, None] / 32768
    whole = wav(speech)
    return {
        "silent": (wav(np.zeros((32_000, 1))), 200, "Silence"),
        "8 kHz": (wav(speech[::2], 8000), 200, "Speech"),
        "48 kHz, stereo, 24 bits": (
            wav(np.repeat(np.repeat(speech, 3, 0), 2, 1), 48_000, 24),
            200,
            "Speech",
        ),
        "floating point": (wav(speech, bits=32, floating=True), 200, "Speech"),
        "cut off": (whole[:60_001], 200, "Speech"),
        "sizes left open": (wav(speech, size=0, riff=0), 200, "Speech"),
        "one sample": (wav(speech[:1]), 200, ""),
        "no samples": (wav(speech[:0]), 400, "holds no samples"),
        "only the header's start": (whole[:16], 400, "ends before its samples"),
        "zero bytes": (b"", 400, "body is empty"),
        "a photo": (b"\xff\xd8\xff\xe0" + bytes(100), 400, "no WAV file"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "silent", "8 kHz", "48 kHz, stereo, 24 bits", "floating point", "cut off", "sizes left open", "one sample",
        "no samples", "only the header's start", "zero bytes", "a photo",
    ],
)  # fmt: skip
def test_odd_sounds_are_answered_or_refused(
    servers: Any, assets: Path, case: str
) -> None:
    body, status, text = odd_sounds(sound(assets, "speech.wav"))[case]
    answer = servers("yamnet").call("POST", "/predictions/yamnet?top_k=1", data=body)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert text in answer.json()["error"]
    else:
        assert answer.json()["predictions"][0]["label"].startswith(text)


# Every road


def check_client(server: Any, model: str, path: Path, wanted: Any) -> None:
    """Check the Python client's answers to each form of the input."""
    with Client(server.url, server.token) as client:
        forms: list[Any] = [path.read_bytes()]
        if path.suffix == ".txt":
            forms += [path.read_text(), {"text": path.read_text()}]
        for form in forms:
            assert client.predict(model, form)["predictions"] == wanted
        raw = {"raw": np.array([path.read_bytes()], dtype=object)}
        content = client.infer(model, raw, parameters={"task": True})["answer"][0]
        assert json.loads(content)["predictions"] == wanted


def check_command(server: Any, model: str, words: str, wanted: Any) -> None:
    """Check the command's answer to a path or a text."""
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token or "",
    }
    command = [sys.executable, "-m", "pocketserve", "predict", model, "--json", words]
    done = subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["predictions"] == wanted


def check_curl(server: Any, model: str, path: Path, wanted: Any) -> None:
    """Check curl's answer to an upload."""
    command = ["curl", "-q", "-sS", "-H", f"Authorization: Bearer {server.token}"]
    command += [
        "-T",
        str(path),
        f"{server.url}/predictions/{model}",
    ]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["predictions"] == wanted


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("yamnet", "speech.wav"),
        ("sentiment", "review.txt"),
        pytest.param("vad_onnx", "en_num.wav", marks=pytest.mark.onnx),
    ],
)
def test_every_client_gets_the_same_answer(
    servers: Any, ask: Any, assets: Path, tmp_path: Path, model: str, name: str
) -> None:
    """They are our client, the command, curl and plain HTTP."""
    path = sound(assets, name)
    if name.endswith(".txt"):
        path = tmp_path / name
        path.write_text("What a waste of my time.", encoding="utf-8")
    wanted = ask(model, path.read_bytes())["predictions"]
    server = servers(model)
    check_client(server, model, path, wanted)
    check_command(server, model, str(path), wanted)
    if name.endswith(".txt"):
        check_command(server, model, path.read_text(), wanted)
    check_curl(server, model, path, wanted)


SENTENCES = {
    "empty": (b"", "text is empty"),
    "only spaces": (b" \n\t ", "text is empty"),
    "not UTF-8": (b"caf\xe9", "not UTF-8 (byte 3)"),
    "too long": (b"word " * 50_000, "the limit is 200000"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_invalid_texts_are_refused_in_one_sentence(servers: Any, case: str) -> None:
    body, text = SENTENCES[case]
    answer = servers("sentiment").call("POST", "/predictions/sentiment", data=body)
    assert answer.status_code == 400 and text in answer.json()["error"], answer.text


def test_odd_texts_are_answered(ask: Any, servers: Any) -> None:
    """Long ones are cut to the model's length; brackets are text unless they form a
    list.
    """
    long = ask("sentiment", b"What a waste of my time. " * 4000)
    assert {one["label"] for one in long["predictions"]} == {"Positive", "Negative"}
    assert (
        ask("sentiment", b"[What a waste of my time.]")["predictions"][0]["label"]
        == "Negative"
    )
    latin = {"Content-Type": "text/plain; charset=iso-8859-1"}
    answer = servers("sentiment").call(
        "POST", "/predictions/sentiment", data=b"What a waste, caf\xe9", headers=latin
    )
    assert answer.status_code == 200
