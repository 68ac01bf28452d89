"""Transcripts over HTTP and over the socket: OpenAI's forms, and bad requests."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve.cli import main
from pocketserve_client import AsyncClient, Client, ServerError
from pocketserve_client.language.transcripts import SpokenSegment
from pocketserve_client.transport import Request
from pocketserve_wire.frames import Extension
from sounds import wav
from whisper_files import TEXT, TinyWhisper

pytestmark = [pytest.mark.onnx, pytest.mark.live]
PATH = "/v1/audio/transcriptions"
RATE = 16_000
BOUNDARY = "limit"
WORDS = TEXT.strip()


def speech(seconds: float = 1.5) -> bytes:
    count = round(seconds * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    samples = 0.2 * noise * np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2
    return wav(samples[:, None])


def samples_of(seconds: float) -> bytes:
    """Return the samples of speech as 16-bit numbers."""
    return speech(seconds)[44:]


@pytest.fixture(scope="module")
def speech_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of an English-only model, a multilingual one, and no speech model."""
    models = tmp_path_factory.mktemp("models")
    TinyWhisper().write(models / "tiny")
    TinyWhisper(multilingual=True).write(models / "many")
    other = models / "other"
    TinyWhisper().write_onnx(other)
    for path in other.glob("decoder*"):
        path.unlink()
    # No program is on its path, so that there is no ffmpeg.
    programs = {"PATH": str(tmp_path_factory.mktemp("programs"))}
    folder = tmp_path_factory.mktemp("server")
    server = start_server(folder, models, environment=programs)
    yield server
    assert server.stop() == 0


def form(fields: dict[str, Any]) -> bytes:
    """Return a multipart form; bytes are files."""
    parts = []
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        for item in values:
            head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
            content = item
            if isinstance(item, bytes):
                head += '; filename="a.wav"\r\nContent-Type: audio/x-wav'
            else:
                content = str(item).encode()
            parts.append(head.encode() + b"\r\n\r\n" + content + b"\r\n")
    parts.append(f"--{BOUNDARY}--\r\n".encode())
    return b"".join(parts)


def ask(server: Server, path: str = PATH, **fields: Any) -> tuple[int, str, bytes]:
    """Send a form over both transports, and return the answer that both gave."""
    fields = {"model": "tiny", "file": speech()} | fields
    sent = {name: value for name, value in fields.items() if value is not None}
    body = form(sent)
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    answer = server.call("POST", path, data=body, headers={"Content-Type": kind})
    with server.connect() as connection:
        ext = {int(Extension.CONTENT_TYPE): kind.encode()}
        framed = connection.call(f"POST {path}", body, json_length=0, ext=ext)
    status = answer.status_code
    content = answer.content
    if answer.headers["Content-Type"] == "application/json":
        content = content.rstrip(b"\n")  # over HTTP, JSON ends with a line end
    assert (status, content) == (framed.status, bytes(framed.body))
    return status, answer.headers["Content-Type"], content


def text_of(server: Server, **fields: Any) -> str:
    status, _, content = ask(server, **fields)
    assert status == 200, content
    return content.decode()


def test_the_usual_answer_is_json(speech_server: Server) -> None:
    assert json.loads(text_of(speech_server)) == {"text": WORDS}


def test_each_format_has_the_same_text(speech_server: Server) -> None:
    assert text_of(speech_server, response_format="text") == f"{WORDS}\n"
    cue = "00:00:00{0}000 --> 00:00:01{0}000"
    srt = text_of(speech_server, response_format="srt")
    assert srt == f"1\n{cue.format(',')}\n{WORDS}\n\n"
    vtt = text_of(speech_server, response_format="vtt")
    assert vtt == f"WEBVTT\n\n{cue.format('.')}\n{WORDS}\n\n"


def test_the_verbose_answer_has_segments(speech_server: Server) -> None:
    answer = json.loads(
        text_of(
            speech_server,
            response_format="verbose_json",
            temperature="0",
            language="en",
            prompt="",
            **{"timestamp_granularities[]": ["segment"]},
        )
    )
    assert answer["task"] == "transcribe"
    assert answer["language"] == "english"
    assert answer["duration"] == 1.5
    (segment,) = answer["segments"]
    assert segment["id"] == 0
    assert (segment["start"], segment["end"]) == (0, 1)
    assert segment["text"] == TEXT
    assert segment["tokens"] == list(TEXT.encode())
    keys = ("avg_logprob", "compression_ratio", "no_speech_prob", "temperature")
    assert all(isinstance(segment[key], float) for key in keys)


def test_a_stream_has_one_event_per_segment(speech_server: Server) -> None:
    status, kind, content = ask(speech_server, file=speech(4), stream="true")
    assert status == 200
    assert kind.startswith("text/event-stream")
    parts = content.decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    events = [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
    deltas = [event["delta"] for event in events[:-1]]
    assert len(deltas) == 2
    assert [(event["start"], event["end"]) for event in events[:-1]] == [(0, 1), (2, 3)]
    assert events[-1] == {
        "type": "transcript.text.done",
        "text": "".join(deltas),
        "language": "en",
        "duration": 4.0,
    }


def test_both_transports_stream_the_same_events(speech_server: Server) -> None:
    body = form(
        {
            "model": "tiny",
            "file": speech(4),
            "stream": "true",
        }
    )
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    request = Request("POST", PATH, [body], len(body), content_type=kind)
    streams = []
    for url in (speech_server.url, f"socket://127.0.0.1:{speech_server.socket_port}"):
        with Client(url, speech_server.token) as client:
            lines = client._sender.stream(request)
            streams.append([bytes(line) for line in lines])
    over_http, over_socket = streams
    assert over_http == over_socket
    assert over_http[-2] == b"data: [DONE]\n"


@pytest.fixture(params=["http", "socket"])
def client(speech_server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = speech_server.url
    if request.param == "socket":
        url = f"socket://127.0.0.1:{speech_server.socket_port}"
    with Client(url, speech_server.token) as client:
        yield client


def test_the_client_gets_segments_with_times(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    path.write_bytes(speech(4))
    transcript = client.transcribe("tiny", path, temperature=0)
    first, second = transcript
    assert (first.text, first.start, first.end) == (WORDS, 0, 1)
    assert (second.text, second.start, second.end) == (TEXT, 2, 3)
    assert (transcript.language, transcript.duration) == ("en", 4)


def test_the_client_gets_the_whole_text(client: Client) -> None:
    assert client.transcribe("tiny", speech()).text() == WORDS
    silence = wav(np.zeros((RATE, 1)))
    assert client.transcribe("tiny", silence).text() == ""


def test_the_client_gets_errors_and_may_leave_early(client: Client) -> None:
    with pytest.raises(ServerError, match="no WAV file"):
        client.transcribe("tiny", b"a text").text()
    with client.transcribe("many", speech(8), translate=True) as transcript:
        next(transcript)
    assert list(transcript) == []
    assert client.transcribe("tiny", speech()).text() == WORDS


def test_the_client_for_asyncio_gets_the_same_segments(speech_server: Server) -> None:
    async def segments() -> list[SpokenSegment]:
        async with AsyncClient(speech_server.url, speech_server.token) as client:
            sound = speech(4)
            return [part async for part in client.transcribe("tiny", sound)]

    with Client(speech_server.url, speech_server.token) as client:
        assert asyncio.run(segments()) == list(client.transcribe("tiny", speech(4)))


def test_a_client_that_half_closes_gets_its_answer(speech_server: Server) -> None:
    body = form({"model": "tiny", "file": speech(20)})
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {speech_server.token}\r\n"
    head += f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    address = ("127.0.0.1", speech_server.port)
    with socket.create_connection(address, 120) as connection:
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        content = connection.recv(65_536)
        while content:
            answer += content
            content = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert WORDS.encode() in answer


def test_silence_has_no_text(speech_server: Server) -> None:
    silence = wav(np.zeros((3 * RATE, 1)))
    answer = json.loads(
        text_of(speech_server, file=silence, response_format="verbose_json")
    )
    assert (answer["text"], answer["segments"]) == ("", [])


def test_a_multilingual_model_detects_and_translates(speech_server: Server) -> None:
    fields = {"model": "many", "response_format": "verbose_json"}
    assert json.loads(text_of(speech_server, **fields))["language"] == "german"
    path = "/v1/audio/translations"
    status, _, content = ask(speech_server, path, **fields)
    assert status == 200
    assert json.loads(content)["task"] == "translate"


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"file": None}, 400, "'file' is missing"),
        ({"file": b""}, 400, "'file' is empty"),
        ({"model": None}, 400, "'model' is missing"),
        ({"model": ["tiny", "tiny"]}, 400, "'model' is given twice"),
        ({"model": "nobody"}, 404, "nobody"),
        ({"model": "other"}, 400, "is not a speech model"),
        ({"file": b"a text"}, 400, "no WAV file"),
        ({"file": b"\0\0\0\x20ftypM4A " + bytes(99)}, 400, "pkg install ffmpeg"),
        ({"file": b"MThd" + bytes(99)}, 400, "of kind MIDI, which can't be decoded"),
        ({"file": b'["UklGRg=="]'}, 400, "JSON array of sound"),
        ({"language": "de"}, 400, "language must be one of en"),
        ({"language": "x" * 300}, 400, "language"),
        ({"temperature": "2"}, 400, "temperature must be a number from 0 to 1"),
        ({"temperature": "nan"}, 400, "temperature"),
        ({"response_format": "diarized_json"}, 400, "must be one of json, text, srt"),
        ({"stream": "yes"}, 400, "'stream' must be true or false"),
        ({"timestamp_granularities[]": ["word"]}, 400, "times of segments only"),
        ({"include[]": ["logprobs"]}, 400, "nothing more can be included"),
        ({"colour": "red"}, 400, "'colour' is unknown"),
        ({"prompt": "a" * 5000}, 400, "more than 4096 characters"),
    ],
)
def test_bad_requests_get_openais_errors(
    speech_server: Server, fields: dict[str, Any], status: int, reason: str
) -> None:
    code, _, content = ask(speech_server, **fields)
    error = json.loads(content)["error"]
    assert code == status
    assert reason in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == next(iter(fields))


def test_english_models_translate_nothing(speech_server: Server) -> None:
    status, _, content = ask(speech_server, "/v1/audio/translations")
    assert status == 400
    assert "multilingual" in json.loads(content)["error"]["message"]


def test_raw_input_gets_segments(speech_server: Server) -> None:
    answer = speech_server.call("POST", "/predictions/tiny", data=speech()).json()
    (entry,) = answer["predictions"]
    assert (
        entry["text"],
        entry["start"],
        entry["end"],
    ) == (WORDS, 0, 1)
    assert 0 < entry["score"] <= 1
    facts = (
        answer["text"],
        answer["language"],
        answer["duration"],
    )
    assert facts == (WORDS, "en", 1.5)


def test_a_sequence_brings_live_captions(client: Client) -> None:
    steps = []
    options = {"rate": RATE, "format": "pcm16"}
    with client.sequence("tiny") as captions:
        for samples in (
            samples_of(1.5),
            samples_of(1.5),
            bytes(2 * RATE),
        ):
            steps.append(captions.predict(samples, parameters=options))
        steps.append(captions.predict(samples_of(1.5), parameters=options))
    facts = []
    for step in steps:
        facts.append(
            (
                step["text"],
                step["open"],
                step["final"],
                step["duration"],
            )
        )
    assert facts[:2] == [("", TEXT, False, 1.5), (WORDS, TEXT, False, 3.0)]
    assert facts[2][2:] == (True, 4.0)
    assert facts[3] == ("", TEXT, False, 5.5)
    (entry,) = steps[1]["predictions"]
    assert (entry["text"], entry["start"]) == (WORDS, 0)
    assert 0 < entry["score"] <= 1


def test_bad_steps_of_captions_are_refused(speech_server: Server) -> None:
    query = "sequence_id=5&rate=16000&format=pcm16"
    path = f"/predictions/tiny?{query}"
    unopened = speech_server.call("POST", path, data=samples_of(1))
    assert (unopened.status_code, unopened.json()["code"]) == (400, "INVALID_REQUEST")
    first_path = f"{path}&sequence_start=true"
    first = speech_server.call("POST", first_path, data=samples_of(1))
    assert first.status_code == 200
    # A bad piece does not end the captions.
    odd = speech_server.call("POST", path, data=b"a")
    assert (odd.status_code, odd.json()["code"]) == (400, "INVALID_INPUT")
    files = [("data", ("a.wav", speech())), ("data", ("b.wav", speech()))]
    several = speech_server.call("POST", path, files=files)
    assert "one sound, not several" in several.json()["error"]
    last = speech_server.call("POST", f"{path}&sequence_end=true", data=b"").json()
    assert (last["text"], last["final"]) == (WORDS, True)


def test_several_sounds_are_numbered(speech_server: Server) -> None:
    files = [("data", ("a.wav", speech())), ("data", ("b.wav", speech()))]
    answer = speech_server.call("POST", "/predictions/tiny", files=files).json()
    assert [entry["input"] for entry in answer["predictions"]] == [0, 1]
    assert answer["text"] == [WORDS, WORDS]


def test_chats_with_a_speech_model_are_refused(speech_server: Server) -> None:
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    answer = speech_server.call("POST", "/v1/chat/completions", json=request)
    assert answer.status_code == 400
    assert "not a language model" in answer.json()["error"]["message"]


def test_as_tensors_a_model_is_its_encoder(speech_server: Server) -> None:
    metadata = speech_server.call("GET", "/v2/models/tiny").json()
    assert [spec["name"] for spec in metadata["inputs"]] == ["input_features"]
    assert metadata["card"]["task"] == "speech-to-text"
    data = np.zeros(8 * 200).tolist()
    tensor = {
        "name": "input_features",
        "datatype": "FP32",
        "shape": [1, 8, 200],
        "data": data,
    }
    answer = speech_server.call(
        "POST", "/v2/models/tiny/infer", json={"inputs": [tensor]}
    )
    assert answer.json()["outputs"][0]["shape"] == [1, 100, 32]


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("text", f"{WORDS}\n"),
        ("srt", f"1\n00:00:00,000 --> 00:00:01,000\n{WORDS}\n"),
        ("vtt", f"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n{WORDS}\n"),
    ],
)
def test_the_command_prints_transcripts(
    speech_server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    printed: str,
) -> None:
    path = tmp_path / "talk.wav"
    path.write_bytes(speech())
    token_file = tmp_path / "token"
    token_file.write_text(speech_server.token or "")
    command = ["predict", "tiny", str(path), "--format", form]
    command += ["--url", speech_server.url, "--token-file", str(token_file)]
    assert main(command) == 0
    assert capsys.readouterr().out == printed
