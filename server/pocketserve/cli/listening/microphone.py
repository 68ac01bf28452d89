"""The phone's microphone, by Termux:API.

``termux-microphone-record`` writes a file. Of its encoders only ``opus`` writes a file
that can be read while it grows (Ogg); ffmpeg decodes it. Source: termux/termux-api,
MicRecorderAPI.java, for encoders, containers and messages.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Final

from pocketserve.cli.listening.source import CHUNK_BYTES, SampleForm
from pocketserve.terminal.errors import CommandError

RECORDER: Final = "termux-microphone-record"
DECODER: Final = "ffmpeg"
RATE: Final = 16_000
FORM: Final = SampleForm("pcm16", 2, RATE, 1)
OGG: Final = b"OggS"
ALREADY: Final = "already in progress"
"""A part of the recorder's message while it records for another program."""

RECORDER_S: Final = 15.0
FIRST_SOUND_S: Final = 15.0
STALLED_S: Final = 30.0
"""Time without new sound after which the recording counts as over."""

END_S: Final = 10.0
POLL_S: Final = 0.1
BITRATE: Final = 64
"""kbit/s; the file grows by whole pages of 4 kB, so a low rate would delay the sound."""

_DECODER_OPTIONS: Final = (
    "-nostdin -hide_banner -v error -fflags nobuffer -probesize 4096 -analyzeduration 0"
    f" -f ogg -i pipe:0 -map 0:a:0 -vn -ac 1 -ar {RATE} -f s16le -flush_packets 1 pipe:1"
).split()

_NO_RECORDER: Final = (
    "nothing records here: in Termux, run `pkg install termux-api ffmpeg` and install the"
    " Termux:API app; elsewhere, pipe sound in, such as"
    " `arecord -f S16_LE -r 16000 -t wav | pocketserve listen`"
)
_NO_DECODER: Final = (
    "the microphone needs ffmpeg: `pkg install ffmpeg` in Termux; or pipe WAV in"
)
_NO_APP: Final = (
    "install the Termux:API app, open it, and allow it to use the microphone"
)


class Microphone:
    """A recording that is read while it grows.

    Args:
        first_sound_s: seconds until the recording has begun.

    Raises:
        CommandError: nothing records here.
    """

    form = FORM

    def __init__(self, first_sound_s: float = FIRST_SOUND_S) -> None:
        recorder = shutil.which(RECORDER)
        if recorder is None:
            raise CommandError(_NO_RECORDER)
        decoder = shutil.which(DECODER)
        if decoder is None:
            raise CommandError(_NO_DECODER)
        self._recorder = recorder
        self._first_sound_s = first_sound_s
        self._folder = tempfile.TemporaryDirectory(prefix="pocketserve-listen-")
        self._file = Path(self._folder.name) / "sound.ogg"
        self._is_over = threading.Event()
        self._decoder: subprocess.Popen[bytes] | None = None
        try:
            self._begin()
            self._decoder = self._start_decoder(decoder)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Start recording, and wait for the first sound."""
        options = f"-l 0 -e opus -b {BITRATE} -r {RATE} -c 1".split()
        message = self._call("-f", str(self._file), *options)
        if ALREADY in message:
            raise CommandError(
                "another program records already; end its recording with"
                f" `{RECORDER} -q`, and try again"
            )
        deadline = time.monotonic() + self._first_sound_s
        head = b""
        while len(head) < len(OGG):
            if time.monotonic() > deadline:
                reason = f"{RECORDER} says: {message}" if message else "no reason given"
                raise CommandError(f"nothing is recorded ({reason}); {_NO_APP}")
            time.sleep(POLL_S)
            with contextlib.suppress(OSError), self._file.open("rb") as file:
                head = file.read(len(OGG))
        if head != OGG:
            raise CommandError(
                "this Android can't record a file that is readable while it grows; that"
                " needs Android 10. Record with termux-microphone-record, and use"
                " `pocketserve predict`"
            )

    def _call(self, *words: str) -> str:
        """Run the recorder's command; return its message as one line."""
        try:
            result = subprocess.run(
                [self._recorder, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=RECORDER_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"{RECORDER} doesn't answer; {_NO_APP}") from None
        except OSError as error:
            raise CommandError(f"{RECORDER} doesn't run: {error.strerror}") from None
        text = result.stdout[:1000].decode("utf-8", "replace")
        return " ".join(text.split())[:200]

    def _start_decoder(self, program: str) -> subprocess.Popen[bytes]:
        decoder = subprocess.Popen(
            [program, *_DECODER_OPTIONS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C must not end it before the rest of the sound.
            start_new_session=True,
        )
        assert decoder.stdin is not None
        feeder = threading.Thread(
            target=self._feed,
            args=(decoder.stdin,),
            name="pocketserve-microphone",
            daemon=True,
        )
        feeder.start()
        return decoder

    def _feed(self, decoder_input: IO[bytes]) -> None:
        """Copy the growing file to the decoder."""
        last_growth = time.monotonic()
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            while True:
                was_over = self._is_over.is_set()
                content = file.read(CHUNK_BYTES)
                if content:
                    decoder_input.write(content)
                    decoder_input.flush()
                    last_growth = time.monotonic()
                    continue
                if was_over or time.monotonic() - last_growth > STALLED_S:
                    break
                self._is_over.wait(POLL_S)
        with contextlib.suppress(OSError):
            decoder_input.close()

    def read(self) -> bytes:
        """Wait for samples and return them; empty at the end."""
        assert self._decoder is not None
        output = self._decoder.stdout
        assert output is not None
        content: bytes = output.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        return content

    def stop(self) -> bool:
        """End the recording; the rest of its sound can be read."""
        if self._is_over.is_set():
            return True
        # Without a file, the recording that would end is another program's.
        if self._file.exists():
            with contextlib.suppress(CommandError):
                self._call("-q")
        self._is_over.set()
        return True

    def close(self) -> None:
        """End the recording and the decoder, and remove the file."""
        self.stop()
        decoder = self._decoder
        if decoder is not None:
            try:
                decoder.wait(END_S)
            except subprocess.TimeoutExpired:
                decoder.kill()
                decoder.wait()
            if decoder.stdout is not None:
                decoder.stdout.close()
        self._folder.cleanup()
