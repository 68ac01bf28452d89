"""Recordings of phones and browsers, decoded by ffmpeg in a confined process."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from conftest import Server, start_server
from mutation import mutate
from pocketserve.child.process import Streams, running
from pocketserve.engine.lifecycle.byte_budget import ByteBudget
from pocketserve.quarantine.rules import rules_of_program
from pocketserve.tasks.audio import ffmpeg
from pocketserve.tasks.audio.containers import container_of
from pocketserve.tasks.audio.ffmpeg import read_sound
from pocketserve.tasks.audio.wav import Sound
from pocketserve.tasks.cancellation import cancellation_scope
from pocketserve_client import Client
from pocketserve_wire import ApiError, ErrorCode
from recordings import AAC, PAIRS, encode, program_folder
from sounds import tone, wav
from whisper_files import TEXT, TinyWhisper

pytestmark = pytest.mark.speech
RATE = 16_000
SECONDS = 3
MUTATIONS = 50
HEAD_BYTES = 12
SHIFT = 4000
"""Samples by which a codec may move or lengthen a sound: a quarter of a second."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with ffmpeg, which is on the path."""
    folder = program_folder(tmp_path_factory.mktemp("ffmpeg"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "tone.wav"
    path.write_bytes(wav(tone(SECONDS)))
    return path


@pytest.fixture(scope="module")
def recordings(
    programs: Path, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("recordings")
    contents = {}
    for name, options in PAIRS.items():
        contents[name] = encode(programs, source, folder / name, *options)
    return contents


def decoded(content: bytes, max_seconds: float = 600.0) -> Sound:
    body = memoryview(content)
    return read_sound(body, container_of(body), RATE, 1, max_seconds)


def fault_of(content: bytes) -> str:
    """Return why a recording is refused as input; empty if it is decoded."""
    try:
        decoded(content)
    except ApiError as error:
        if error.code != ErrorCode.INVALID_INPUT:
            raise
        return str(error)
    return ""


def loudest_frequency(sound: Sound) -> float:
    spectrum = np.abs(np.fft.rfft(sound.samples[:, 0]))
    return float(spectrum.argmax() * sound.rate / len(sound.samples))


@pytest.mark.parametrize("name", PAIRS)
def test_each_container_and_codec_is_read(
    recordings: dict[str, bytes], name: str
) -> None:
    sound = decoded(recordings[name])
    assert sound.rate == RATE
    assert abs(len(sound.samples) - SECONDS * RATE) < SHIFT
    assert loudest_frequency(sound) == pytest.approx(440, abs=2)


def test_a_long_file_with_its_index_at_the_end_is_read(
    programs: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    source = tmp_path / "noise.wav"
    source.write_bytes(wav(0.3 * generator.standard_normal((100 * RATE, 1))))
    content = encode(programs, source, tmp_path / "long.m4a", *AAC)
    assert content.index(b"moov") > content.index(b"mdat") + 500_000
    assert len(decoded(content).samples) == 100 * RATE


def test_the_sound_of_a_video_is_read(
    programs: Path, source: Path, tmp_path: Path
) -> None:
    picture = ("-f", "lavfi", "-i", "testsrc=d=3:s=64x64", "-c:v", "libx264")
    content = encode(programs, source, tmp_path / "video.mp4", *picture, *AAC)
    assert loudest_frequency(decoded(content)) == pytest.approx(440, abs=2)


def test_a_video_without_sound_is_refused(programs: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.ppm"
    picture.write_bytes(b"P6 16 16 255\n" + bytes(16 * 16 * 3))
    content = encode(programs, picture, tmp_path / "mute.mp4", "-c:v", "libx264")
    with pytest.raises(ApiError, match="can't be decoded"):
        decoded(content)


def test_channels_are_kept_or_mixed(programs: Path, tmp_path: Path) -> None:
    samples = np.concatenate([tone(1), np.zeros((RATE, 1))], axis=1)
    source = tmp_path / "stereo.wav"
    source.write_bytes(wav(samples))
    content = encode(programs, source, tmp_path / "stereo.flac")
    body = memoryview(content)
    stereo = read_sound(body, "FLAC", RATE, 2, 600.0)
    left, right = np.abs(stereo.samples).max(axis=0)
    assert (left, right) == (pytest.approx(0.5, abs=0.01), 0)
    mono = read_sound(body, "FLAC", RATE, 1, 600.0)
    assert np.abs(mono.samples).max() == pytest.approx(0.25, abs=0.01)


def test_a_long_recording_is_cut_at_the_limit_and_refused(
    programs: Path, tmp_path: Path
) -> None:
    source = tmp_path / "silence.wav"
    source.write_bytes(wav(np.zeros((60 * 8000, 1)), 8000))
    # An hour of silence from a minute: a small file that is long once it is decoded.
    loops = ("-filter:a", "aloop=loop=60:size=480000")
    content = encode(programs, source, tmp_path / "hour.flac", *loops)
    with pytest.raises(ApiError, match="the sound lasts 10") as caught:
        decoded(content, max_seconds=10.0)
    assert caught.value.code == ErrorCode.INVALID_INPUT


def playlists(secret: Path) -> dict[str, bytes]:
    """Return files that name another file, by kind."""
    name = str(secret).encode()
    hls = b"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nfile://" + name
    hls += b"\n#EXT-X-ENDLIST\n"
    concat = b"ffconcat version 1.0\nfile '" + name + b"'\n"
    return {
        "hls": hls,
        "concat": concat,
        "sdp": b"v=0\nm=audio 9 RTP/AVP 0\n",
    }


@pytest.mark.parametrize("kind", ["hls", "concat", "sdp"])
@pytest.mark.parametrize(
    "front", [b"", b"ID3\x03\0\0\0\0\0\0", b"\0\0\0\x18ftypM4A \0\0"]
)
def test_playlists_that_name_files_are_refused(
    programs: Path, source: Path, kind: str, front: bytes
) -> None:
    content = front + playlists(source)[kind]
    if not front:
        assert container_of(memoryview(content)) == ""  # ffmpeg never gets it
        return
    with pytest.raises(ApiError, match="can't be decoded"):
        decoded(content)


def test_a_movie_whose_sound_is_in_another_file_is_refused(
    recordings: dict[str, bytes], source: Path
) -> None:
    content = recordings["aac.m4a"]
    at = content.index(b"dref")
    # The reference says that the samples are in this file; now they are elsewhere.
    entry = b"url \0\0\0\x00" + f"file://{source}\0".encode()
    reference = struct.pack(">I", len(entry) + 4) + entry
    changed = content[: at + 12] + reference + content[at + 12 + 12 :]
    sizes = len(changed) - len(content)
    for name in (b"dref", b"dinf", b"minf", b"mdia", b"trak", b"moov"):
        place = changed.rindex(name, 0, at + 4) - 4
        (size,) = struct.unpack_from(">I", changed, place)
        packed = struct.pack(">I", size + sizes)
        changed = changed[:place] + packed + changed[place + 4 :]
    fault = fault_of(changed)
    if not fault:  # it may read the samples in the file instead
        assert loudest_frequency(decoded(changed)) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("name", PAIRS)
def test_damaged_recordings_do_no_harm(recordings: dict[str, bytes], name: str) -> None:
    """Each either has samples, or is refused with a sentence."""
    generator = random.Random(name)
    content = recordings[name]
    for _ in range(MUTATIONS):
        # The first bytes stay, so that ffmpeg gets the file.
        damaged = content[:HEAD_BYTES] + mutate(content[HEAD_BYTES:], generator)
        assert fault_of(damaged).isprintable()


DAMAGEABLE = sorted({*PAIRS} - {"lossless.aiff", "lossless.caf", "layer2.mp2"})
"""Recordings with a structure that claim their length, or have no tags.

One sample of PCM is as good as another.
"""


@pytest.mark.parametrize("name", DAMAGEABLE)
def test_a_recording_with_a_hole_is_refused(
    recordings: dict[str, bytes], name: str
) -> None:
    """ffmpeg alone would leave out what it can't read."""
    content = recordings[name]
    middle = len(content) // 2
    hole = bytes(min(3000, middle // 2))
    damaged = content[:middle] + hole + content[middle + len(hole) :]
    assert "save the recording again" in fault_of(damaged)


@pytest.mark.parametrize("name", ["stream.aac", "voice.amr", "lossless.flac"])
def test_a_recording_that_ends_inside_a_frame_is_refused(
    recordings: dict[str, bytes], name: str
) -> None:
    content = recordings[name]
    assert "save the recording again" in fault_of(content[: len(content) * 7 // 10])


def id3v2(frames: bytes = b"") -> bytes:
    """Return a tag that stands before the sound."""
    return b"ID3\x03\0\0\0\0\0" + bytes([len(frames)]) + frames


TEXT_FRAME = b"TXXX\0\0\0\x05\0\0\x01ab\xff\x01"
"""A frame of a tag, with an invalid byte order mark."""

ID3V1 = b"TAG" + bytes(125)
APE = b"APETAGEX" + struct.pack("<IIII8x", 2000, 40, 1, 1 << 31) + bytes(8)
LYRICS = b"LYRICSBEGININD0000200LYR00005hello000041LYRICS200"
TRAILERS = (ID3V1, APE, LYRICS + ID3V1, bytes(4096))


@pytest.mark.parametrize(
    "name", ["layer3.mp3", "layer2.mp2", "lossless.flac", "stream.aac"]
)
def test_tags_and_padding_are_no_damage(
    recordings: dict[str, bytes], name: str
) -> None:
    content = recordings[name]
    whole = len(decoded(content).samples)
    changed = [content + trailer for trailer in TRAILERS]
    changed.append(id3v2(TEXT_FRAME) + id3v2() + content + ID3V1)
    for tagged in changed:
        assert len(decoded(tagged).samples) == pytest.approx(whole, abs=SHIFT)


@pytest.mark.parametrize("name", ["layer3.mp3", "layer2.mp2"])
def test_joined_recordings_are_no_damage(
    recordings: dict[str, bytes], name: str
) -> None:
    content = recordings[name]
    whole = 2 * len(decoded(content).samples)
    for between in (b"", ID3V1, id3v2(TEXT_FRAME)):
        joined = content + between + content
        assert len(decoded(joined).samples) == pytest.approx(whole, abs=SHIFT)


def test_chained_recordings_are_no_damage(recordings: dict[str, bytes]) -> None:
    content = recordings["opus.ogg"]
    assert len(decoded(2 * content).samples) == pytest.approx(
        2 * SECONDS * RATE, abs=SHIFT
    )


class CountedPool:
    """A budget that notes its reservations, and whether places were free then."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def acquire(self, count: int, check: Callable[[], None]) -> int:
        places = [ffmpeg._places.acquire(blocking=False) for _ in range(2)]
        assert places == [True, True]
        ffmpeg._places.release(2)
        self.counts.append(count)
        return count

    def release(self, count: int) -> None:
        self.counts.append(-count)


def test_memory_is_reserved_for_the_sound_and_without_a_place(
    recordings: dict[str, bytes],
) -> None:
    pool = CountedPool()
    with cancellation_scope(lambda: None, pool):
        samples = len(decoded(recordings["aac.m4a"], 3600.0).samples)
    size = samples * ffmpeg.BYTES_PER_SAMPLE
    assert pool.counts == [1, -1, size, -size]


def test_nothing_is_decoded_while_the_memory_is_full(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ByteBudget(1000)
    pool.acquire(1000, lambda: None)
    monkeypatch.setattr(ffmpeg, "_start", None)
    scope = cancellation_scope(lambda: None, pool, waits=False)
    with scope, pytest.raises(ApiError, match="memory for decoding") as caught:
        decoded(b"OggS")
    assert caught.value.code == ErrorCode.QUEUE_FULL


def test_the_confined_program_reads_no_file_and_no_network(tmp_path: Path) -> None:
    """Python takes ffmpeg's place, and may not even list its own folder."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    program = os.path.realpath(sys.executable)
    script = (
        "import os, posix\n"
        f"for action in (lambda: os.open({str(secret)!r}, 0), lambda: os.open('/tmp/new', 65)):\n"
        "    try: action()\n"
        "    except OSError as error: print(error.errno)\n"
    )
    rules = rules_of_program(program)
    rules["read"] += [sys.base_prefix, sys.prefix]
    request = {
        "command": [program, "-I", "-S", "-c", script],
        "rules": rules,
        "data_limit": 512 << 20,
        "cpu_seconds": 60,
        "seconds": 120,
    }
    command = [
        sys.executable,
        "-m",
        "pocketserve.quarantine.confined_program",
        json.dumps(request),
    ]
    with running(command, Streams(stdout=PIPE)) as child:
        assert child.process.stdout is not None
        assert child.process.stdout.read().split() == [b"13", b"13"]


def test_a_request_that_is_given_up_ends_ffmpeg(recordings: dict[str, bytes]) -> None:
    def check() -> None:
        raise ApiError(ErrorCode.CANCELLED, "cancelled")

    with cancellation_scope(check), pytest.raises(ApiError, match="cancelled"):
        decoded(recordings["aac.m4a"])


@pytest.fixture(scope="module")
def server(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of a tiny Whisper, with ffmpeg on its path."""
    models = tmp_path_factory.mktemp("models")
    TinyWhisper().write(models / "tiny")
    running_server = start_server(tmp_path_factory.mktemp("server"), models)
    yield running_server
    assert running_server.stop() == 0


def speech() -> bytes:
    count = round(1.5 * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    samples = 0.2 * noise * np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2
    return wav(samples[:, None])


def test_a_server_transcribes_recordings_over_both_transports(
    server: Server, programs: Path, tmp_path: Path
) -> None:
    source = tmp_path / "speech.wav"
    source.write_bytes(speech())
    content = encode(programs, source, tmp_path / "talk.m4a", *AAC)
    for url in (server.url, f"socket://127.0.0.1:{server.socket_port}"):
        with Client(url, server.token) as client:
            answer = client.predict("tiny", content)
        assert [entry["text"] for entry in answer["predictions"]] == [TEXT.strip()]
