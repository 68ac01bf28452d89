"""``pocketserve listen``: live captions of a microphone or a pipe."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import CommandError

if TYPE_CHECKING:
    from pocketserve.cli.listening.source import SampleForm, SampleSource, SoundBuffer
    from pocketserve_client import Client

TASK: Final = "speech-to-text"
FORMATS: Final = ("pcm16", "pcm8", "pcm24", "pcm32", "float32")
DEFAULT_RATE: Final = 16_000


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "listen",
        help="transcribe speech from the microphone or a pipe, as it is spoken",
        description="Prints live captions. Records with Termux:API, or reads a WAV file"
        " or raw samples from a pipe. Grey words may still change. Ctrl-C ends.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="by default the only speech model"
    )
    parser.add_argument(
        "--plain", action="store_true", help="print a line for each utterance"
    )
    parser.add_argument("--language", metavar="CODE", help="of the speech, such as de")
    parser.add_argument(
        "--translate", action="store_true", help="translate into English"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="of raw samples [pcm16]"
    )
    parser.add_argument(
        "--rate", type=int, default=DEFAULT_RATE, metavar="HZ", help="of them [16000]"
    )
    parser.add_argument(
        "--channels", type=int, default=1, metavar="N", help="of them [1]"
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print captions until the sound ends, or Ctrl-C."""
    with open_client(options) as client, reading_answers():
        model = options.model or _only_model(client)
        captions = _CaptionRun(client, model, options)
        with _open_source(options) as source:
            captions.run(source)
    return 0


def _only_model(client: Client) -> str:
    names = []
    for entry in client.index():
        if entry.get("task") == TASK:
            names.append(str(entry["name"]))
    names = list(dict.fromkeys(names))
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise CommandError(f"name the speech model; the server has {listed}")
    return names[0]


@contextlib.contextmanager
def _open_source(options: argparse.Namespace) -> Iterator[SampleSource]:
    source = _source(options)
    try:
        yield source
    finally:
        source.close()


def _source(options: argparse.Namespace) -> SampleSource:
    """Return the pipe if there is one, else the microphone."""
    if sys.stdin is None or sys.stdin.isatty():
        from pocketserve.cli.listening.microphone import Microphone

        source = Microphone()
        print("Listening. Ctrl-C ends.", file=sys.stderr)
        return source
    from pocketserve.cli.listening.pipe import PipedSound

    # Not buffered: its lock would block the end of the process during a read.
    stream = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    return PipedSound(stream, _raw_form(options))


def _raw_form(options: argparse.Namespace) -> SampleForm:
    from pocketserve.cli.listening.pipe import MAX_CHANNELS, MAX_RATE
    from pocketserve.cli.listening.source import SampleForm
    from pocketserve.tasks.audio.sounds import RAW_FORMATS

    if not 1 <= options.rate <= MAX_RATE:
        raise CommandError(f"--rate must be 1 to {MAX_RATE}, not {options.rate}")
    if not 1 <= options.channels <= MAX_CHANNELS:
        raise CommandError(
            f"--channels must be 1 to {MAX_CHANNELS}, not {options.channels}"
        )
    _, width = RAW_FORMATS[options.format]
    return SampleForm(options.format, width, options.rate, options.channels)


class _CaptionRun:
    """Sends the steps of one sequence, and prints their words."""

    def __init__(self, client: Client, model: str, options: argparse.Namespace) -> None:
        from pocketserve.cli.listening.screen import LineCaptions, TerminalCaptions

        self._client = client
        self._model = model
        self._parameters: dict[str, Any] = {
            "sequence_id": f"listen-{secrets.token_hex(8)}"
        }
        if options.language:
            self._parameters["language"] = options.language
        if options.translate:
            self._parameters["speech_task"] = "translate"
        is_plain = options.plain or not sys.stdout.isatty()
        self._screen = LineCaptions() if is_plain else TerminalCaptions()
        self._has_begun = False

    def run(self, source: SampleSource) -> None:
        """Send all sound; the first Ctrl-C ends the recording, a second one the command."""
        from pocketserve.cli.listening.source import SoundBuffer

        form = source.form
        self._parameters |= {
            "format": form.name,
            "rate": form.rate,
            "channels": form.channels,
        }
        sound = SoundBuffer(source)
        try:
            with _ending(sound.stop):
                self._send_all(sound)
        finally:
            self._screen.end()
        if sound.fault is not None:
            raise CommandError(f"the sound can't be read: {sound.fault}")

    def _send_all(self, sound: SoundBuffer) -> None:
        piece = sound.take()
        while piece:
            self._send(piece)
            piece = sound.take()
        if self._has_begun:
            self._send(b"", is_last=True)

    def _send(self, piece: bytes, *, is_last: bool = False) -> None:
        marks = {}
        if not self._has_begun:
            marks["sequence_start"] = "true"
        if is_last:
            marks["sequence_end"] = "true"
        parameters = {**self._parameters, **marks}
        answer: dict[str, Any] = self._client.predict(
            self._model, piece, parameters=parameters
        )
        if answer.get("task") != TASK:
            raise CommandError(
                f"{self._model!r} is not a speech model, but one for"
                f" {answer.get('task')}; `pocketserve models` lists all"
            )
        self._has_begun = True
        self._screen.show(answer["text"], answer["open"], is_final=answer["final"])


@contextlib.contextmanager
def _ending(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function at the first Ctrl-C or SIGTERM, so that a request is not cut."""

    def end(_number: int, _frame: FrameType | None) -> None:
        stop()
        for number, handler in previous.items():
            signal.signal(number, handler)

    previous: dict[int, Any] = {}
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            previous[each] = signal.signal(each, end)
    except ValueError:  # not on the main thread, which alone receives signals
        pass
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
