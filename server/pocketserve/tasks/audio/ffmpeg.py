"""Decode the recordings of phones and browsers with ffmpeg, in a confined process.

The file is the standard input, as a file without a name: phones write the index of an
m4a at its end, which a pipe can't seek to. ffmpeg may read nothing else: ``fd`` is the
only protocol, and the format is that of the first bytes, because playlists name other
files. Source: ffmpeg's documentation of formats and protocols.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import IO, Final, NamedTuple

from pocketserve.child.log import ChildLog
from pocketserve.child.process import Child, Streams, describe_end
from pocketserve.quarantine.rules import rules_of_program
from pocketserve.tasks.audio import wav
from pocketserve.tasks.audio.claims import claimed_seconds
from pocketserve.tasks.audio.containers import CONTAINERS
from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.cancellation import check_budget, checkpoint, hold_bytes
from pocketserve_wire import ApiError, ErrorCode

DECODERS: Final = (
    "aac,aac_fixed,alac,amrnb,amrwb,libopencore_amrnb,libopencore_amrwb,opus,libopus,"
    "vorbis,libvorbis,mp1,mp1float,mp2,mp2float,mp3,mp3float,flac,pcm_s8,pcm_u8,"
    "pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,pcm_s32be,pcm_s32le,pcm_f32be,pcm_f32le,"
    "pcm_f64be,pcm_f64le,pcm_alaw,pcm_mulaw"
)
"""Decoders that may run: those of sound only."""

INSTALL: Final = "pkg install ffmpeg in Termux, else from ffmpeg.org"
TOO_OLD: Final = "Protocol not found"
"""What ffmpeg before version 6 says about ``fd:``."""

WIDTH: Final = 2  # bytes of a decoded sample
BYTES_PER_SAMPLE: Final = WIDTH + 4  # with its real number
MAX_CHILDREN: Final = 2
CHILD_S: Final = 120
CPU_S: Final = 60
DATA_BYTES: Final = 512 << 20
POLL_S: Final = 0.1
CHUNK_BYTES: Final = 1 << 16
REASON_CHARACTERS: Final = 160
SPOOL_BYTES: Final = 1 << 20
"""Samples in memory before their length is known; more are in a temporary file."""

MAY_HAVE_TAGS: Final = ("MP3", "MP2", "FLAC")
"""Kinds of files in which ffmpeg reports tags and padding as damage.

They follow the sound, or stand between joined files.
"""

LOST_S: Final = 0.1
"""Missing sound from which on a file counts as damaged."""

_HARMLESS: Final = re.compile(
    r"Incorrect BOM value|Error reading frame \w+, skipped"
    r"|non monotonically increasing dts to muxer|Last message repeated"
    r"|not on whitelist"
)
"""Errors of texts in a file, of times that samples don't have, and of its pictures.

Source: ffmpeg's libavformat/id3v2.c and mux.c, libavcodec/avcodec.c.
"""

_places = threading.BoundedSemaphore(MAX_CHILDREN)


def read_sound(
    body: memoryview, kind: str, rate: int, channels: int, max_seconds: float
) -> wav.Sound:
    """Decode a recording.

    Args:
        kind: one of CONTAINERS.
        rate, channels: of the result.
        max_seconds: a longer recording is refused.

    Raises:
        ApiError: INVALID_INPUT if ffmpeg is missing, or can't read the recording;
            QUEUE_FULL if others are decoded for too long.
    """
    program = shutil.which("ffmpeg")
    if program is None:
        raise invalid_input(
            f"the body is a file of kind {kind}, for which the server needs ffmpeg:"
            f" {INSTALL}; or send WAV"
        )
    frames = min(int(max_seconds * rate), wav.MAX_FRAMES) + 1
    command = _command(program, CONTAINERS[kind], rate, channels, frames / rate)
    frame_bytes = channels * WIDTH
    job = _Decoding(command, body, kind, frames * frame_bytes, rate * frame_bytes)
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
        check_budget()
        _take_place()
        try:
            size = _decode_into(spool, job)
        finally:
            _places.release()
        # Only now is the length known. Nobody waits for memory with a place: those who
        # have memory may be waiting for one.
        hold_bytes(size // WIDTH * BYTES_PER_SAMPLE)
        spool.seek(0)
        samples = spool.read()
    form = wav.SampleFormat(wav.PCM, channels, rate, WIDTH)
    return wav.decode(memoryview(samples), form, max_seconds, mono=channels == 1)


def _command(
    program: str, demuxer: str, rate: int, channels: int, seconds: float
) -> list[str]:
    options = "-nostdin -hide_banner -v error -protocol_whitelist fd -threads 1"
    streams = "-i fd: -map 0:a:0 -vn -sn -dn"
    return [
        os.path.realpath(program),
        *options.split(),
        "-codec_whitelist",
        DECODERS,
        "-format_whitelist",
        demuxer,
        "-f",
        demuxer,
        *streams.split(),
        *f"-t {seconds:.6f} -ac {channels} -ar {rate} -f s16le pipe:1".split(),
    ]


def _take_place() -> None:
    """Wait until fewer than MAX_CHILDREN run."""
    deadline = time.monotonic() + CHILD_S
    while not _places.acquire(timeout=POLL_S):
        checkpoint()
        if time.monotonic() > deadline:
            raise ApiError(
                ErrorCode.QUEUE_FULL,
                "other recordings are still being decoded; try again later",
                retry_after_s=1,
            )


@dataclass(frozen=True)
class _Decoding:
    """A recording to decode.

    Attributes:
        max_bytes: of the samples; the child is ended when it writes more.
    """

    command: list[str]
    body: memoryview
    kind: str
    max_bytes: int
    bytes_per_second: int


def _decode_into(spool: IO[bytes], job: _Decoding) -> int:
    """Write the samples of a whole recording; return their bytes.

    Raises:
        ApiError: INVALID_INPUT, the recording is damaged.
    """
    result = _run(job, spool)
    damage = _damage(result.log)
    if damage and result.size < job.max_bytes and _lacks_sound(job, result.size):
        raise _unreadable(job.kind, damage)
    return result.size


def _lacks_sound(job: _Decoding, size: int) -> bool:
    """Return whether a recording with errors has less sound than it claims.

    Tags and padding cause errors, too: a file without a claim may be undamaged.
    """
    if job.kind not in MAY_HAVE_TAGS:
        return True
    claim = claimed_seconds(job.body, job.kind)
    return claim is not None and size / job.bytes_per_second < claim - LOST_S


def _damage(log: str) -> str:
    """Return the first line of ffmpeg's log about lost sound; empty if there is none."""
    for line in log.splitlines():
        if line.strip() and not _HARMLESS.search(line):
            return line
    return ""


class _Decoded(NamedTuple):
    """The bytes of samples that ffmpeg wrote, and its log."""

    size: int
    log: str


def _run(job: _Decoding, spool: IO[bytes]) -> _Decoded:
    """Write ffmpeg's samples to a file."""
    log = ChildLog()
    try:
        child = _start(job.command, job.body, log)
        try:
            size = _copy(child, spool, job)
            # Its output has ended, but it may not.
            is_over = size > job.max_bytes
            code = 0 if is_over else child.process.wait(CHILD_S)
        except subprocess.TimeoutExpired:
            raise _took_too_long(job.kind) from None
        finally:
            child.end()
        if code or not size:
            line = log.last_line()
            if code < 0:
                line = f"ffmpeg ended with {describe_end(code)}"
            raise _unreadable(job.kind, line)
        return _Decoded(size, log.tail())
    finally:
        log.close()


def _start(command: list[str], body: memoryview, log: ChildLog) -> Child:
    request = {
        "command": command,
        "rules": rules_of_program(command[0]),
        "data_limit": DATA_BYTES,
        "cpu_seconds": CPU_S,
        "seconds": CHILD_S,
    }
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    module = "pocketserve.quarantine.confined_program"
    try:
        with tempfile.TemporaryFile() as file:
            file.write(body)
            file.flush()
            file.seek(0)
            return Child(
                [sys.executable, "-P", "-m", module, json.dumps(request)],
                Streams(file, subprocess.PIPE, log.file),
                environment={"PYTHONPATH": path},
            )
    except OSError as error:
        raise _no_resources(error) from None


def _no_resources(error: OSError) -> ApiError:
    return ApiError(
        ErrorCode.INFERENCE_FAILED,
        f"the recording can't be decoded now: {error.strerror}; try again later",
    )


def _copy(child: Child, spool: IO[bytes], job: _Decoding) -> int:
    """Copy the child's output, one chunk more than allowed at most; return its size."""
    assert child.process.stdout is not None
    descriptor = child.process.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + CHILD_S
    size = 0
    while size <= job.max_bytes:
        checkpoint()
        if time.monotonic() > deadline:
            raise _took_too_long(job.kind)
        if not poll.poll(POLL_S * 1000):
            continue
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        try:
            spool.write(chunk)
        except OSError as error:  # the disk is full
            raise _no_resources(error) from None
        size += len(chunk)
    return size


def _took_too_long(kind: str) -> ApiError:
    return invalid_input(
        f"the {kind} file took more than {CHILD_S} seconds to decode; send it in parts"
    )


def _unreadable(kind: str, line: str) -> ApiError:
    """Return the error about a file that ffmpeg refuses."""
    if TOO_OLD in line:
        return invalid_input(
            f"the body is a file of kind {kind}, for which the server's ffmpeg is too"
            " old: it needs version 6 or newer; or send WAV"
        )
    printable = "".join(letter for letter in line if letter.isprintable())
    reason = printable[-REASON_CHARACTERS:].strip() or "it has no sound"
    return invalid_input(
        f"the {kind} file can't be decoded: {reason}; save the recording again, or"
        " send WAV"
    )
