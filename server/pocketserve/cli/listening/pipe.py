"""Sound from a pipe: a WAV file that is still being written, or raw samples."""

from __future__ import annotations

import struct
from typing import Final, Protocol

from pocketserve.cli.listening.source import CHUNK_BYTES, SampleForm
from pocketserve.tasks.audio.containers import container_of
from pocketserve.tasks.audio.sounds import RAW_FORMATS
from pocketserve.terminal.errors import CommandError

PCM: Final = 1
FLOAT: Final = 3
EXTENSIBLE: Final = 0xFFFE
MAX_CHUNK_BYTES: Final = 1 << 20
"""Of a header; a program that writes to a pipe has short ones."""

UNKNOWN_SIZE: Final = 0x7FFFF000
"""A size from which on the writer did not know it: sox and ffmpeg write such ones."""

MAX_CHANNELS: Final = 32
MAX_RATE: Final = 768_000
HEAD_BYTES: Final = 12


class ByteStream(Protocol):
    """A stream whose reads return the bytes that have arrived."""

    def read(self, size: int, /) -> bytes | None: ...


class PipedSound:
    """Samples from a pipe.

    Args:
        form: of samples without a header; a WAV file has its own.

    Raises:
        CommandError: the pipe has another kind of file.
    """

    def __init__(self, stream: ByteStream, form: SampleForm) -> None:
        self._stream = stream
        self.form = form
        self._left: int | None = None
        self._head = self._read_fully(HEAD_BYTES)
        if self._head[:4] == b"RIFF" and self._head[8:] == b"WAVE":
            self._head = b""
            self._read_header()
            return
        kind = container_of(memoryview(self._head))
        # Raw samples may begin with the short mark of an MP3 frame.
        if kind and self._head[0] != 0xFF:
            raise CommandError(
                f"standard input is a file of kind {kind}, not WAV or raw samples;"
                " convert it: ffmpeg -i FILE -f wav - | pocketserve listen"
            )

    def read(self) -> bytes:
        """Wait for samples and return them; empty at the end."""
        if self._head:
            samples = self._head
            self._head = b""
            return samples
        size = CHUNK_BYTES if self._left is None else min(CHUNK_BYTES, self._left)
        samples = self._read_some(size)
        if self._left is not None:
            self._left -= len(samples)
        return samples

    def stop(self) -> bool:
        """Return False: the program that writes may go on."""
        return False

    def close(self) -> None:
        """Do nothing: standard input stays open."""

    def _read_some(self, size: int) -> bytes:
        return (self._stream.read(size) or b"") if size else b""

    def _read_fully(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self._read_some(size - len(content))
            if not more:
                break
            content += more
        return content

    def _read_header(self) -> None:
        """Read the chunks before the samples."""
        has_form = False
        while True:
            name, size = self._read_chunk_head()
            if name == b"data":
                break
            if size > MAX_CHUNK_BYTES:
                raise _fault(f"a chunk of {size} bytes before the samples")
            content = self._read_fully(size + size % 2)
            if name == b"fmt ":
                self.form = _form_of(content)
                has_form = True
        if not has_form:
            raise _fault("no sample format")
        if 0 < size < UNKNOWN_SIZE:
            self._left = size

    def _read_chunk_head(self) -> tuple[bytes, int]:
        head = self._read_fully(8)
        if len(head) < 8:
            raise _fault("no samples")
        return head[:4], int.from_bytes(head[4:], "little")


def _form_of(content: bytes) -> SampleForm:
    """Read the ``fmt`` chunk of a WAV file."""
    if len(content) < 16:
        raise _fault("a truncated sample format")
    code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", content)
    if code == EXTENSIBLE and len(content) >= 26:
        code = int.from_bytes(content[24:26], "little")
    name = ""
    if code == PCM:
        name = f"pcm{bits}"
    elif code == FLOAT:
        name = f"float{bits}"
    if name not in RAW_FORMATS:
        names = ", ".join(RAW_FORMATS)
        raise _fault(f"samples of kind {code} with {bits} bits; accepted are {names}")
    if not (1 <= channels <= MAX_CHANNELS and 1 <= rate <= MAX_RATE):
        raise _fault(f"{channels} channels at {rate} Hz")
    return SampleForm(name, bits // 8, rate, channels)


def _fault(content: str) -> CommandError:
    return CommandError(f"the WAV file on standard input has {content}")
