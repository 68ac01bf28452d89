"""Serve the small spectrogram model: sounds in, labels out, by every client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve_client import Client
from sounds import tone, wav

pytestmark = pytest.mark.live

FOLDER = Path(__file__).parent / "models"
RATE = 16_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on the recipes' small models."""
    running = start_server(tmp_path_factory.mktemp("sound-models"), FOLDER)
    yield running
    assert running.stop() == 0


def sweep(first: float, last: float, seconds: float = 0.9, rate: int = RATE) -> Any:
    """Return a sine that sweeps between two frequencies, [frames, 1]."""
    t = np.arange(round(seconds * rate)) / rate
    return (
        0.5
        * np.sin(2 * np.pi * (first * t + (last - first) * t**2 / (2 * seconds)))[
            :, None
        ]
    )


def noise(seconds: float = 1.0) -> Any:
    """Return white noise, [frames, 1]."""
    return np.random.default_rng(5).uniform(-0.5, 0.5, (round(seconds * RATE), 1))


TONE = tone()
RIGHT: dict[str, tuple[bytes, str]] = {
    "tone": (wav(TONE), "tone"),
    "rising": (wav(sweep(400, 900)), "rising"),
    "falling": (wav(sweep(2400, 1200)), "falling"),
    "noise": (wav(noise()), "noise"),
    "silent": (wav(np.zeros((RATE, 1))), "silence"),
    "silent for 36 seconds": (wav(np.zeros((36 * RATE, 1))), "silence"),
    "8 kHz": (wav(sweep(400, 900, rate=8000), 8000), "rising"),
    "44.1 kHz, 24 bits": (wav(sweep(2400, 1200, rate=44_100), 44_100, 24), "falling"),
    "stereo": (wav(tone(channels=2)), "tone"),
    "stereo, silent on one side": (
        wav(np.concatenate([TONE, 0 * TONE], axis=1)),
        "tone",
    ),
    "truncated": (wav(TONE)[:-9001], "tone"),
    "truncated within a sample": (wav(tone(channels=2), bits=24)[:-20_000], "tone"),
    "three seconds": (wav(tone(3.0)), "tone"),
    "one sample": (wav(TONE[:1] * 0), "silence"),
}
WRONG: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "the body is empty; send a WAV file"),
    "no samples": (wav(TONE[:0]), "holds no samples"),
    "only the header's start": (wav(TONE)[:20], "format is cut off"),
    "a text": (
        b"tone, please",
        "no WAV file; send WAV, or raw samples with format=pcm16",
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_sound_gets_the_right_label(server: Server, case: str) -> None:
    """HTTP and the socket give the same answer."""
    body, label = RIGHT[case]
    answer = server.call("POST", "/predictions/tones", data=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()["predictions"]
    assert found[0]["label"] == label
    assert found[0]["score"] > 0.5
    assert len(found) == 5
    with server.connect() as framed:
        assert (
            json.loads(framed.call("POST /predictions/tones", body).body)["predictions"]
            == found
        )


@pytest.mark.parametrize("case", WRONG)
def test_invalid_sounds_are_refused_in_one_sentence(server: Server, case: str) -> None:
    """Both transports give the same sentence."""
    body, text = WRONG[case]
    answer = server.call("POST", "/predictions/tones", data=body)
    assert (answer.status_code, answer.json()["code"]) == (
        400,
        "INVALID_INPUT",
    )
    assert text in answer.json()["error"]
    with server.connect() as framed:
        assert (
            json.loads(framed.call("POST /predictions/tones", body).body)
            == answer.json()
        )


def test_each_window_has_its_label_and_times(server: Server) -> None:
    """The sound is a tone, then noise."""
    both = wav(np.concatenate([tone(0.98), noise(0.98)]))
    found = server.call(
        "POST", "/predictions/tones?pool=none&top_k=1", data=both
    ).json()["predictions"]
    assert [entry["label"] for entry in found[:2]] == ["tone", "noise"]
    assert [(entry["start"], entry["end"]) for entry in found[:2]] == [
        (0.0, 1.0),
        (1.0, 1.96),
    ]


def test_every_client_gets_the_same_answer(server: Server, tmp_path: Path) -> None:
    """They are a microphone's buffer, our client, the Open Inference Protocol, the
    command and curl.
    """
    body, label = RIGHT["rising"]
    wanted = server.call("POST", "/predictions/tones", data=body).json()["predictions"]
    raw = server.call(
        "POST", "/predictions/tones?format=pcm16&rate=16000", data=body[44:]
    ).json()
    assert raw["predictions"] == wanted
    assert wanted[0]["label"] == label
    path = tmp_path / "rising.wav"
    path.write_bytes(body)
    for url in (server.url, f"socket://127.0.0.1:{server.ready['socket']['port']}"):
        with Client(url, server.token) as client:
            assert client.predict("tones", body)["predictions"] == wanted
            one = {"raw": np.array([body], dtype=object)}
            content = client.infer("tones", one, parameters={"task": True})["answer"][0]
            assert json.loads(content)["predictions"] == wanted
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token or "",
    }
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "predict",
        "tones",
        str(path),
        "--json",
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["predictions"] == wanted
    curl = [
        "curl",
        "-q",
        "-sS",
        "-H",
        f"Authorization: Bearer {server.token}",
        "-T",
        str(path),
    ]
    done = subprocess.run(
        [*curl, f"{server.url}/predictions/tones"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["predictions"] == wanted


LANGUAGES = {
    "": "rising",
    "de": "steigend",
    "de-AT": "steigend",
    "fr": "rising",
}


@pytest.mark.parametrize("tag", LANGUAGES)
def test_labels_are_in_the_requests_language(server: Server, tag: str) -> None:
    """The parameter ``language`` works by every client.

    Unknown languages fall back.
    """
    body, _ = RIGHT["rising"]
    wanted = LANGUAGES[tag]
    query = ""
    if tag:
        query = f"?language={tag}"
    found = server.call("POST", f"/predictions/tones{query}", data=body).json()[
        "predictions"
    ]
    assert found[0]["label"] == wanted
    with server.connect() as framed:
        assert (
            json.loads(framed.call(f"POST /predictions/tones{query}", body).body)[
                "predictions"
            ]
            == found
        )
    for url in (server.url, f"socket://127.0.0.1:{server.ready['socket']['port']}"):
        with Client(url, server.token) as client:
            one = {"raw": np.array([body], dtype=object)}
            given = {"task": True, **({"language": tag} if tag else {})}
            assert (
                json.loads(client.infer("tones", one, parameters=given)["answer"][0])[
                    "predictions"
                ]
                == found
            )


def test_the_files_are_small() -> None:
    """They have a few kilobytes, like keyword spotters."""
    assert (FOLDER / "tones" / "tones.tflite").stat().st_size <= 60_000
