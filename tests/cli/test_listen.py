"""Live captions on a terminal, from a pipe and from the microphone."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import Server, start_server
from held_server import until
from pocketserve.cli.listening.microphone import Microphone
from pocketserve.cli.listening.pipe import PipedSound
from pocketserve.cli.listening.screen import LineCaptions, TerminalCaptions
from pocketserve.cli.listening.source import SampleForm, SoundBuffer
from pocketserve.terminal.errors import CommandError
from sounds import wav
from whisper_files import TEXT, TinyWhisper

WORD = TEXT.strip()
RATE = 16_000
RAW = SampleForm("pcm16", 2, RATE, 1)
WAIT_S = 120.0


def speech(seconds: float) -> bytes:
    count = round(seconds * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    samples = 0.2 * noise * np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2
    return wav(samples[:, None])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    TinyWhisper().write(models / "tiny")
    TinyWhisper(multilingual=True).write(models / "many")
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def listen(server: Server, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the command with a pipe as standard input."""
    token_file = folder / "token"
    token_file.write_text(server.token or "")
    command = [sys.executable, "-m", "pocketserve", "listen", *words]
    command += ["--url", server.url, "--token-file", str(token_file)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.mark.onnx
@pytest.mark.live
@pytest.mark.parametrize("raw", [False, True])
def test_a_pipe_is_written_down(server: Server, tmp_path: Path, raw: bool) -> None:
    with listen(server, tmp_path, "tiny", "--plain") as command:
        sound = speech(3)
        output, errors = command.communicate(sound[44:] if raw else sound, WAIT_S)
    assert (errors, command.returncode) == (b"", 0)
    assert output.decode().split() == [WORD, WORD]


@pytest.mark.onnx
@pytest.mark.live
def test_ctrl_c_ends_the_command(server: Server, tmp_path: Path) -> None:
    with listen(server, tmp_path, "tiny") as command:
        assert command.stdin is not None
        assert command.stdout is not None
        # A pause ends the utterance, so that its line shows that the sound arrived.
        command.stdin.write(speech(2)[44:] + bytes(2 * RATE))
        command.stdin.flush()
        assert command.stdout.readline().decode().startswith(WORD)
        command.send_signal(signal.SIGINT)
        # The pipe stays open: a program that writes may not end by itself.
        assert command.wait(WAIT_S) == 0
        assert command.stderr is not None
        assert command.stderr.read() == b""


@pytest.mark.onnx
@pytest.mark.live
@pytest.mark.parametrize(
    ("words", "sound", "reason"),
    [
        ((), b"", "name the speech model; the server has many, tiny"),
        (("nobody",), bytes(2 * RATE), "nobody"),
        (("tiny", "--language", "de"), bytes(2 * RATE), "language must be one of en"),
        (("tiny", "--rate", "0"), b"", "--rate must be 1 to"),
        (("tiny", "--channels", "99"), b"", "--channels must be 1 to"),
        (("tiny",), b"OggS" + bytes(60), "not WAV or raw samples"),
    ],
)
def test_bad_calls_are_refused(
    server: Server, tmp_path: Path, words: tuple[str, ...], sound: bytes, reason: str
) -> None:
    with listen(server, tmp_path, *words) as command:
        _, errors = command.communicate(sound, WAIT_S)
    assert command.returncode == 1
    assert reason in " ".join(errors.decode().split())


def piped(content: bytes) -> PipedSound:
    return PipedSound(io.BytesIO(content), RAW)


def all_of(source: PipedSound) -> bytes:
    pieces = []
    piece = source.read()
    while piece:
        pieces.append(piece)
        piece = source.read()
    return b"".join(pieces)


def header(size: int, before: bytes = b"", code: int = 1, bits: int = 16) -> bytes:
    form = struct.pack(
        "<4sIHHIIHH",
        b"fmt ",
        16,
        code,
        2,
        8000,
        32_000,
        4,
        bits,
    )
    return b"RIFF\0\0\0\0WAVE" + before + form + struct.pack("<4sI", b"data", size)


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_file_without_its_size_is_read_to_the_end(size: int) -> None:
    source = piped(header(size, b"LIST\x03\0\0\0abc\0") + bytes(range(200)))
    assert source.form == SampleForm("pcm16", 2, 8000, 2)
    assert all_of(source) == bytes(range(200))


def test_chunks_after_the_samples_are_left_out() -> None:
    assert all_of(piped(header(8) + b"samples!" + b"LIST\0\0\0\0")) == b"samples!"


def test_samples_without_a_header_are_all_read() -> None:
    for content in (b"", b"a", b"\xff\xfb" + bytes(100)):
        source = piped(content)
        assert (source.form, all_of(source)) == (RAW, content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header(8, code=85), "accepted are pcm8, pcm16"),
        (header(8, bits=12), "12 bits"),
        (header(8)[:20], "a truncated sample format"),
        (header(8)[:12], "no samples"),
        (b"RIFF\0\0\0\0WAVELIST\xff\xff\xff\xff", "a chunk of 4294967295 bytes"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "no sample format"),
        (b"\0\0\0\x20ftypM4A " + bytes(99), "ffmpeg -i FILE -f wav"),
    ],
)
def test_bad_pipes_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        piped(content)


def test_a_buffer_gives_whole_frames_and_then_the_rest() -> None:
    buffer = SoundBuffer(piped(bytes(2 * RATE * 6 + 1)))
    sizes = [len(buffer.take()) for _ in range(3)]
    assert sizes == [
        10 * RATE,
        2 * RATE,
        0,
    ]


def test_a_stopped_buffer_gives_what_is_there() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as pipe, open(writing, "wb") as writer:
        writer.write(bytes(1000))
        writer.flush()
        buffer = SoundBuffer(PipedSound(pipe, RAW))
        until(lambda: buffer.size == 1000)
        buffer.stop()
        assert [buffer.take(), buffer.take()] == [bytes(1000), b""]


def test_a_fault_of_the_source_is_kept() -> None:
    class Broken:
        has_begun = False

        def read(self, size: int, /) -> bytes:
            if self.has_begun:
                raise OSError("gone")
            self.has_begun = True
            return bytes(size)

    buffer = SoundBuffer(PipedSound(Broken(), RAW))
    assert buffer.take() == bytes(12)
    assert str(buffer.fault) == "gone"


def test_lines_are_whole_utterances(capsys: pytest.CaptureFixture[str]) -> None:
    screen = LineCaptions()
    screen.show("One\x1b", " two", is_final=False)
    assert capsys.readouterr().out == ""
    screen.show(" two.", "", is_final=True)
    screen.show("", "", is_final=True)
    screen.show(" Three", "", is_final=False)
    screen.end()
    assert capsys.readouterr().out == "One\\x1b two.\nThree\n"


def test_a_narrow_terminal_wraps_final_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    screen = TerminalCaptions()
    clear, grey, plain = "\r\033[K", "\033[2m", "\033[0m"

    def drawn(text: str, open_text: str, *, is_final: bool = False) -> str:
        screen.show(text, open_text, is_final=is_final)
        return capsys.readouterr().out

    assert drawn("", "the first one") == f"{clear}{grey}the first …{plain}"
    assert drawn("the", " first") == f"{clear}the{grey} first{plain}"
    assert drawn(" first one", "") == f"{clear}the first\none"
    assert drawn(" departs", "") == f"{clear}one departs"
    assert drawn("", " at") == f"{clear}one departs"
    assert drawn(" at", "", is_final=True) == f"{clear}one departs\nat\n"
    assert drawn("今日は雨です", "") == f"{clear}今日は雨です"
    assert drawn(" \x1b[2J", "") == f"{clear}今日は雨です\n\\x1b[2J"
    screen.end()
    assert capsys.readouterr().out.endswith("\n")


def programs(folder: Path, recorder: str) -> None:
    """Write a stand-in for Termux's recorder, and one for ffmpeg that copies."""
    for name, script in (
        ("termux-microphone-record", recorder),
        ("ffmpeg", "exec cat"),
    ):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def test_the_microphones_file_is_read_while_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    programs(
        tmp_path,
        f"""echo "$@" >> {calls}
        if [ "$1" = -f ]; then printf OggS1 > "$2"; echo "$2" > {tmp_path}/path
        else printf 2 >> "$(cat {tmp_path}/path)"; fi""",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    microphone = Microphone()
    content = microphone.read()
    while len(content) < 5:
        content += microphone.read()
    assert content == b"OggS1"
    assert microphone.stop()
    assert microphone.read() == b"2"
    assert microphone.read() == b""
    microphone.close()
    start, end = calls.read_text().splitlines()
    assert "-e opus" in start
    assert end == "-q"
    assert not Path((tmp_path / "path").read_text().strip()).parent.exists()


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        ("echo 'Recording error: no permission'", "no permission.*Termux:API app"),
        ('[ "$1" = -q ] || printf \'mdat ftyp\' > "$2"', "needs Android 10"),
        (None, "nothing records here"),
    ],
)
def test_nothing_is_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorder: str | None,
    reason: str,
) -> None:
    if recorder is not None:
        programs(tmp_path, recorder)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandError, match=reason):
        Microphone(first_sound_s=0.3)


def test_another_programs_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    message = "Recording already in progress!"
    programs(tmp_path, f'echo "$@" >> {calls}; echo "{message}"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandError, match="another program records already"):
        Microphone(first_sound_s=3600.0)
    (start,) = calls.read_text().splitlines()
    assert "-e opus" in start


def test_the_microphone_needs_ffmpeg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, "exit 1")
    (tmp_path / "ffmpeg").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="pkg install ffmpeg"):
        Microphone()
