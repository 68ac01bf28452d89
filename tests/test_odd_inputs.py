"""Send odd texts and sounds to every task over both transports.

Each gets the right answer or one clear sentence. ``audio-classification`` has its own
tests in ``test_sound_models.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from sounds import tone, wav

pytestmark = pytest.mark.live

MODELS = Path(__file__).parent / "models"
RATE = 16_000


def derived(folder: Path, name: str, source: str, change: tuple[str, str]) -> None:
    """Return a recipe's model under another task."""
    shutil.copytree(MODELS / source, folder / name)
    (folder / name / f"{source}.tflite").rename(folder / name / f"{name}.tflite")
    manifest = folder / name / "model.toml"
    text = manifest.read_text(encoding="utf-8")
    assert change[0] in text
    manifest.write_text(text.replace(*change), encoding="utf-8")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on text models of every task, and a noise detector."""
    folder = tmp_path_factory.mktemp("odd")
    models = folder / "models"
    models.mkdir()
    for name in ("answers", "phrases"):
        shutil.copytree(MODELS / name, models / name)
    derived(
        models,
        "classes",
        "answers",
        (
            'task = "question-answering"\n\n[text]\nstride = 16\nmax_answer = 3',
            'task = "text-classification"\n\n[text]\noutput = "start_logits"',
        ),
    )
    derived(
        models,
        "noise",
        "tones",
        ('task = "audio-classification"', 'task = "voice-activity"'),
    )
    running = start_server(folder, models)
    yield running
    assert running.stop() == 0


def ask(
    server: Server, model: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Return status and answer over HTTP, checked against the socket's."""
    answer = server.call(
        "POST", f"/predictions/{model}", data=body, headers=headers or {}
    )
    found = answer.json()
    if not headers:
        with server.connect() as framed:
            other = framed.call(f"POST /predictions/{model}", body)
        same = json.loads(other.body)
        assert (
            other.status,
            same.get("predictions"),
            same.get("error"),
        ) == (
            answer.status_code,
            found.get("predictions"),
            found.get("error"),
        )
    return answer.status_code, found


LONG = "turn on the lamp " * 5883
"""100,011 characters."""

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the text is empty"),
    "only spaces": (b" \n\t ", "the text is empty"),
    "not UTF-8": (b"turn on \xff", "not UTF-8 (byte 8)"),
    "UTF-8 that is cut off": ("é".encode()[:1], "not UTF-8 (byte 0)"),
    "over the limit": (b"word " * 50_000, "the limit is 200000"),
}
TASKS = ["classes", "phrases"]


@pytest.mark.parametrize("model", TASKS)
@pytest.mark.parametrize("case", REFUSED)
def test_invalid_texts_are_refused_in_one_sentence(
    server: Server, model: str, case: str
) -> None:
    body, text = REFUSED[case]
    status, found = ask(server, model, body)
    assert (status, found["code"]) == (400, "INVALID_INPUT")
    assert text in found["error"]


@pytest.mark.parametrize("model", TASKS)
def test_texts_of_a_hundred_thousand_characters_are_cut(
    server: Server, model: str
) -> None:
    """The answer is that to the part which the model reads."""
    status, found = ask(server, model, LONG.encode())
    assert len(LONG) > 100_000
    assert status == 200
    assert (
        found["predictions"]
        == ask(server, model, LONG[:200].encode())[1]["predictions"]
    )
    assert ask(server, model, ("x" * 100_000).encode())[0] == 200


@pytest.mark.parametrize("model", TASKS)
def test_texts_in_another_charset_are_decoded(server: Server, model: str) -> None:
    """An unknown charset is refused."""
    wanted = ask(server, model, "turn on the café".encode())[1]["predictions"]
    latin = {"Content-Type": "text/plain; charset=iso-8859-1"}
    assert (
        ask(server, model, "turn on the café".encode("latin-1"), latin)[1][
            "predictions"
        ]
        == wanted
    )
    status, found = ask(
        server, model, b"a", {"Content-Type": "text/plain; charset=ebcdic"}
    )
    assert status == 400
    assert "the charset 'ebcdic' is not supported; send UTF-8" in found["error"]


FACT = "anna lives in oslo."
QUESTIONS: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 400, "takes a JSON object"),
    "no JSON": (b"where does anna live?", 400, "takes a JSON object"),
    "not UTF-8": (b'{"question": "\xff", "context": "a"}', 400, "not UTF-8 (byte 14)"),
    "an empty question": (
        json.dumps({"question": "", "context": FACT}).encode(),
        400,
        "the text is empty",
    ),
    "an empty context": (
        json.dumps({"question": "who?", "context": " "}).encode(),
        400,
        "the text is empty",
    ),
    "a long context": (
        json.dumps(
            {
                "question": "where does anna live?",
                "context": "ben likes tea. " * 200 + FACT,
            }
        ).encode(),
        200,
        "oslo",
    ),
    "a question of 100,000 characters": (
        json.dumps({"question": "who? " * 20_000, "context": FACT}).encode(),
        400,
        "the question has 40000 tokens; this model takes 1 to",
    ),
    "a context over the limit": (
        json.dumps({"question": "who?", "context": "a" * 200_001}).encode(),
        400,
        "the limit is 200000",
    ),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_odd_questions_are_answered_or_refused(server: Server, case: str) -> None:
    body, status, text = QUESTIONS[case]
    found_status, found = ask(server, "answers", body)
    assert found_status == status
    assert (
        found["predictions"][0]["answer"] if status == 200 else found["error"]
    ).find(text) >= 0, found


def test_a_context_of_a_hundred_thousand_characters_is_searched(server: Server) -> None:
    """All windows are read: the answer at the very end is found."""
    context = "ben likes tea. " * 6667 + FACT
    asked = json.dumps(
        {"question": "where does anna live?", "context": context}
    ).encode()
    status, found = ask(server, "answers", asked)
    assert status == 200, found
    best = found["predictions"][0]
    assert (best["answer"], best["start"]) == ("oslo", context.rindex("oslo"))


# Sounds: noise represents speech


def noise(seconds: float, rate: int = RATE) -> Any:
    """Return white noise, [frames, 1]."""
    return np.random.default_rng(5).uniform(-0.5, 0.5, (round(seconds * rate), 1))


HEARD: dict[str, tuple[bytes, list[tuple[float, float]]]] = {
    "noise in between": (
        wav(np.concatenate([np.zeros((RATE, 1)), noise(1), np.zeros((RATE, 1))])),
        [(0.97, 2.03)],
    ),
    "silent": (wav(np.zeros((2 * RATE, 1))), []),
    "a tone": (wav(tone(2.0)), []),
    "stereo": (wav(np.repeat(noise(2), 2, axis=1)), [(0.0, 2.0)]),
    "44.1 kHz, 24 bits": (wav(noise(2, 44_100), 44_100, 24), [(0.0, 2.0)]),
    "8 kHz tone": (wav(tone(1.0, rate=8000), 8000), []),
    "truncated": (wav(noise(2))[:-16_000], [(0.0, 1.5)]),
    "one sample": (wav(np.zeros((1, 1))), []),
}
NO_SOUND = {
    "zero bytes": (b"", "the body is empty; send a WAV file"),
    "no samples": (wav(np.zeros((0, 1))), "holds no samples"),
    "only the header's start": (wav(tone())[:20], "format is cut off"),
    "a text": (b"hello", "no WAV file"),
}


@pytest.mark.parametrize("case", HEARD)
def test_stretches_in_odd_sounds_are_found(server: Server, case: str) -> None:
    """Times are exact to a window's padding."""
    body, wanted = HEARD[case]
    status, found = ask(server, "noise", body)
    assert status == 200, found
    places = [(entry["start"], entry["end"]) for entry in found["predictions"]]
    assert places == [
        (pytest.approx(start, abs=0.1), pytest.approx(end, abs=0.1))
        for start, end in wanted
    ]


@pytest.mark.parametrize("case", NO_SOUND)
def test_invalid_sounds_are_refused_in_one_sentence(server: Server, case: str) -> None:
    body, text = NO_SOUND[case]
    status, found = ask(server, "noise", body)
    assert (status, found["code"]) == (400, "INVALID_INPUT")
    assert text in found["error"]
