"""``pocketserve chat``: a chat with a language model in the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import print_text

if TYPE_CHECKING:
    from pocketserve_client import Client
    from pocketserve_client.language.chat import ChatStream

HELP: Final = (
    "/new begins a new chat, /system TEXT sets the system prompt, /set NAME VALUE an"
    " option such as temperature, /quit or Ctrl-D ends. Ctrl-C stops an answer."
)
_NUMBERS: Final = ("max_tokens", "seed", "temperature", "top_p", "top_k", "min_p")
_TASK: Final = "text-generation"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    text = "chat with a language model"
    parser: argparse.ArgumentParser = commands.add_parser(
        "chat", help=text, description=f"{text.capitalize()}. {HELP}"
    )
    parser.add_argument("model", nargs="?", help="by default the only language model")
    parser.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of each answer")
    parser.add_argument("--temperature", type=float, metavar="N", help="0 to 2")
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Chat until the input ends; piped input is one message."""
    with open_client(options) as client, reading_answers():
        model = options.model or _only_model(client)
        chat = _Chat(client, model, options.system)
        chat.set_option("max_tokens", options.max_tokens)
        chat.set_option("temperature", options.temperature)
        if not sys.stdin.isatty():
            chat.ask(sys.stdin.read())
            return 0
        print_text(f"Chatting with {model}. {HELP}", stream=sys.stderr)
        _converse(chat)
    return 0


def _only_model(client: Client) -> str:
    names = []
    for entry in client.index():
        if entry.get("task") == _TASK or entry.get("version") in (
            "gguf",
            "transformers",
        ):
            names.append(str(entry["name"]))
    names = list(dict.fromkeys(names))
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise CommandError(
            f"name the language model to chat with; the server has {listed}"
        )
    return names[0]


class _Chat:
    """The messages so far, and the options of the next answer."""

    def __init__(self, client: Client, model: str, system: str) -> None:
        self._client = client
        self._model = model
        self._system = system
        self._options: dict[str, Any] = {}
        self._messages: list[dict[str, str]] = []

    def begin_again(self) -> None:
        """Forget all messages."""
        self._messages.clear()

    def set_system(self, text: str) -> None:
        """Set the system prompt; an empty one is left out."""
        self._system = text

    def set_option(self, name: str, value: Any) -> None:
        """Set an option of answers; None leaves it to the model."""
        self._options.pop(name, None)
        if value is not None:
            self._options[name] = value

    def ask(self, text: str) -> None:
        """Send a message, and print the answer while it is generated."""
        messages = [*self._messages, {"role": "user", "content": text}]
        start = []
        if self._system:
            start.append({"role": "system", "content": self._system})
        stream = self._client.chat(self._model, [*start, *messages], **self._options)
        answer = _print_answer(stream)
        self._messages = [*messages, {"role": "assistant", "content": answer}]


def _print_answer(stream: ChatStream) -> str:
    """Print an answer as it arrives; Ctrl-C stops it."""
    pieces: list[str] = []
    began = time.monotonic()
    with stream:
        try:
            for piece in stream:
                pieces.append(piece)
                print(_printable(piece), end="", flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="", file=sys.stderr)
    print(flush=True)
    tokens = stream.usage.get("completion_tokens", 0)
    if tokens and sys.stderr.isatty():
        speed = tokens / max(time.monotonic() - began, 1e-3)
        print(f"[{tokens} tokens, {speed:.1f}/s]", file=sys.stderr)
    return "".join(pieces)


def _printable(text: str) -> str:
    """Remove control characters: a model must not control the terminal."""
    characters = []
    for character in text:
        if character in "\n\t" or character.isprintable():
            characters.append(character)
    return "".join(characters)


def _converse(chat: _Chat) -> None:
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line.startswith("/"):
            if not _run_command(chat, line):
                return
        elif line.strip():
            chat.ask(line)


def _run_command(chat: _Chat, line: str) -> bool:
    """Run a slash command; return False to end the chat."""
    command, _, rest = line[1:].partition(" ")
    if command in ("quit", "exit", "bye"):
        return False
    if command == "new":
        chat.begin_again()
    elif command == "system":
        chat.set_system(rest.strip())
    elif command == "set":
        _set_option(chat, rest)
    else:
        print_text(HELP)
    return True


def _set_option(chat: _Chat, text: str) -> None:
    name, _, value = text.strip().partition(" ")
    if name not in _NUMBERS:
        print_text(f"options are {', '.join(_NUMBERS)}")
        return
    try:
        number = float(value)
    except ValueError:
        print(f"{name} takes a number")
        return
    if number.is_integer():
        chat.set_option(name, int(number))
    else:
        chat.set_option(name, number)
