"""Exchange frames between a process and its child."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pocketserve.child.frames import LENGTHS, FrameError, FramePipe
from pocketserve.child.process import Streams, running

ECHO = """
import os
from pocketserve.child.frames import FramePipe
pipe = FramePipe(0, 1, 1000, 1 << 24)
while True:
    try:
        frame = pipe.receive()
    except BrokenPipeError:
        break
    pipe.send({"got": frame.header}, [memoryview(frame.payload)])
"""


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Return a pipe's reading end and writing end."""
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def deadline() -> float:
    return time.monotonic() + 120


def test_a_child_answers_frames() -> None:
    """Payloads may exceed a pipe's buffer.

    The child ends when the pipe is closed.
    """
    streams = Streams(subprocess.PIPE, subprocess.PIPE, None)
    with running([sys.executable, "-c", ECHO], streams) as child:
        stdin = child.process.stdin
        stdout = child.process.stdout
        assert stdin is not None
        assert stdout is not None
        pipe = FramePipe(stdout.fileno(), stdin.fileno(), 1000, 1 << 24)
        for size in (0, 1, 3 << 20):
            data = os.urandom(size)
            frame = pipe.exchange({"n": size}, [memoryview(data)], deadline())
            assert frame.header == {"got": {"n": size}}
            assert frame.payload == data
        stdin.close()
        assert child.process.wait(120) == 0


def test_waiting_for_a_silent_child_has_a_deadline(
    ends: tuple[int, int],
) -> None:
    pipe = FramePipe(*ends, max_header=100)
    with pytest.raises(TimeoutError):
        pipe.receive(time.monotonic())


def test_writing_to_a_blocked_child_has_a_deadline(ends: tuple[int, int]) -> None:
    pipe = FramePipe(*ends, max_header=100, max_payload=1 << 24)
    with pytest.raises(TimeoutError):
        pipe.send({}, [memoryview(bytes(1 << 20))], time.monotonic() + 0.01)


def test_an_end_in_the_middle_of_a_frame_is_an_error(ends: tuple[int, int]) -> None:
    reader, writer = ends
    pipe = FramePipe(reader, writer, max_header=100)
    os.write(writer, LENGTHS.pack(10, 0) + b"{")
    os.close(writer)
    with pytest.raises(BrokenPipeError):
        pipe.receive(deadline())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LENGTHS.pack(101, 0), "101 \\+ 0 bytes was announced"),
        (LENGTHS.pack(0, 0), "0 \\+ 0 bytes was announced"),
        (LENGTHS.pack(2, 11) + b"{}", "2 \\+ 11 bytes was announced"),
        (LENGTHS.pack(2, 0) + b"{{", "no JSON: "),
        (LENGTHS.pack(2, 0) + b"\xff\xff", "no JSON: "),
        (LENGTHS.pack(2, 0) + b"[]", "no JSON object"),
    ],
)
def test_an_oversized_frame_is_refused(
    ends: tuple[int, int], data: bytes, reason: str
) -> None:
    """Its lengths are checked before its contents are read."""
    pipe = FramePipe(*ends, max_header=100, max_payload=10)
    os.write(ends[1], data)
    with pytest.raises(FrameError, match=reason):
        pipe.receive(deadline())


def test_too_large_a_frame_is_not_sent(ends: tuple[int, int]) -> None:
    pipe = FramePipe(*ends, max_header=100, max_payload=10)
    for header, payload in (({"a": "x" * 100}, b""), ({}, bytes(11))):
        with pytest.raises(FrameError, match="is too large"):
            pipe.send(header, [memoryview(payload)], deadline())
    pipe.send({}, [memoryview(b"12")], deadline())
    assert pipe.receive(deadline()) == ({}, b"12")
