"""Drive a browser by WebDriver BiDi: commands and events over a WebSocket."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

LIMIT_S: Final = 120.0
"""Seconds for one command; the longest one waits for the page to draw."""

LARGEST: Final = 64 << 20
"""Maximum bytes of an answer, such as a picture of the whole page."""


class BidiError(Exception):
    """The browser refused a command, with this text."""


class Session:
    """A session that delivers events while a command waits for its answer."""

    def __init__(self, address: str) -> None:
        # Late, because tests without a browser are collected without it.
        from websockets.sync.client import (
            connect,
        )

        self._open = ExitStack()
        opening = connect(
            f"{address}/session", max_size=LARGEST, proxy=None, ping_interval=None
        )
        self._socket: ClientConnection = self._open.enter_context(opening)
        self._numbers = itertools.count(1)
        self._handlers: dict[str, list[Callable[[dict[str, Any]], None]]] = {}
        self.command("session.new", capabilities={})

    def close(self) -> None:
        """End the connection."""
        self._open.close()

    def listen(self, event: str, handler: Callable[[dict[str, Any]], None]) -> None:
        """Call a function with the parameters of each event of that name."""
        if event not in self._handlers:
            self.command("session.subscribe", events=[event])
        self._handlers.setdefault(event, []).append(handler)

    def command(self, method: str, **parameters: Any) -> Any:
        """Send a command; return its result.

        Raises:
            BidiError: the browser refused it.
            TimeoutError: no answer within the limit.
        """
        number = next(self._numbers)
        deadline = time.monotonic() + LIMIT_S
        self._socket.send(
            json.dumps(
                {
                    "id": number,
                    "method": method,
                    "params": parameters,
                }
            )
        )
        while True:
            message = json.loads(
                self._socket.recv(max(0.0, deadline - time.monotonic()))
            )
            if message["type"] == "event":
                self._hand_on(message)
            elif message["id"] == number:
                break
        if message["type"] == "error":
            raise BidiError(f"{method}: {message['error']}: {message['message']}")
        return message["result"]

    def _hand_on(self, event: dict[str, Any]) -> None:
        for handler in self._handlers.get(event["method"], ()):
            handler(event["params"])


def value_of(remote: dict[str, Any]) -> Any:
    """Convert a value of the page to Python; None if it has no equivalent."""
    kind = remote["type"]
    value = remote.get("value")
    if kind == "array" and value is not None:
        return [value_of(each) for each in value]
    if kind == "object" and value is not None:
        return {name: value_of(each) for name, each in value}
    if kind == "number" and isinstance(value, str):
        return float(value.replace("Infinity", "inf"))
    if kind in ("string", "number", "boolean"):
        return value
    return None
