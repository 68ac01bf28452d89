"""Floors on a bare socket, one connection at a time.

Usage: ``loop BYTES``, ``framed WORK``, ``kept WORK`` or ``threads WORK``.

``loop`` knows the length of requests and answers 4,004 bytes: no frame, no JSON.
``framed`` reads frames like ours, with a JSON header, in one thread without routing.
``kept`` neither parses nor encodes the same JSON twice: the least cost of such a frame.
``threads`` adds a second thread that keeps reading, which a server needs to answer
pings and cancellations during an inference.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable

import numpy as np

from benchmarks.reference import ramp_times
from benchmarks.servers.bodies import Work, answer, work

HEADER = struct.Struct("<2sBBIIHHII")
NUMBER, NUMBER_AT = struct.Struct("<I"), 4
RESPONSE = 0x11


def main(mode: str, what: str) -> None:
    """Listen, print the port, serve one connection after the other."""
    if mode == "loop":
        serve: Callable[[socket.socket], None] = lambda one: _loop(one, int(what))  # noqa: E731
    else:
        compute = work(what)
        handler = {"framed": _framed, "kept": _kept, "threads": _with_reader}[mode]
        serve = lambda one: handler(one, compute)  # noqa: E731
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        connected, _ = listening.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connected:
            serve(connected)


def _loop(connected: socket.socket, size: int) -> None:
    buffer = bytearray(size)
    while _fill(connected, memoryview(buffer)):
        connected.sendall(ramp_times(np.frombuffer(buffer, "<f4")))


def _framed(connected: socket.socket, compute: Work) -> None:
    reader = _Reader(connected)
    while (frame := reader.next()) is not None:
        _reply(connected, *frame, compute)


def _kept(connected: socket.socket, compute: Work) -> None:
    reader = _Reader(connected)
    known = b""
    head = bytearray()
    shape = (0,)
    while (frame := reader.next()) is not None:
        number, json_length, body = frame
        if body[:json_length] != known:
            known = bytes(body[:json_length])
            shape = tuple(json.loads(known)["inputs"][0]["shape"])
            text, scores = answer(body, json_length, compute)
            head = bytearray(HEADER.size) + text
            HEADER.pack_into(
                head,
                0,
                b"OI",
                RESPONSE,
                0,
                0,
                200,
                0,
                0,
                len(text),
                len(text) + scores.nbytes,
            )
        scores = compute(np.frombuffer(body, "<f4", offset=json_length).reshape(shape))
        NUMBER.pack_into(head, NUMBER_AT, number)
        connected.sendmsg((head, scores))


def _with_reader(connected: socket.socket, compute: Work) -> None:
    frames: queue.SimpleQueue[tuple[int, int, memoryview] | None] = queue.SimpleQueue()

    def read() -> None:
        reader = _Reader(connected, reuse=False)
        while True:
            frame = reader.next()
            frames.put(frame)
            if frame is None:
                return

    threading.Thread(target=read, daemon=True).start()
    while (taken := frames.get()) is not None:
        _reply(connected, *taken, compute)


def _reply(
    connected: socket.socket,
    number: int,
    json_length: int,
    body: memoryview,
    compute: Work,
) -> None:
    text, scores = answer(body, json_length, compute)
    head = HEADER.pack(
        b"OI", RESPONSE, 0, number, 200, 0, 0, len(text), len(text) + scores.nbytes
    )
    connected.sendall(b"".join((head, text, scores)))


class _Reader:
    """Read whole frames of a sequential client."""

    def __init__(self, connected: socket.socket, *, reuse: bool = True) -> None:
        self._socket = connected
        self._buffer = bytearray(1 << 20)
        self._reuse = reuse

    def next(self) -> tuple[int, int, memoryview] | None:
        """Return request id, JSON length and body; None at the end."""
        if not self._reuse:
            self._buffer = bytearray(1 << 18)
        view = memoryview(self._buffer)
        have = 0
        while have < HEADER.size:
            count = self._socket.recv_into(view[have:])
            if not count:
                return None
            have += count
        _, _, _, number, _, target, ext, json_length, size = HEADER.unpack_from(view)
        start = HEADER.size + target + ext
        if start + size > len(view):
            grown = bytearray(start + size)
            grown[:have] = view[:have]
            self._buffer, view = grown, memoryview(grown)
        if not _fill(self._socket, view[have : start + size]):
            return None
        return number, json_length, view[start : start + size]


def _fill(connected: socket.socket, view: memoryview) -> bool:
    """Fill a buffer; return False at the end."""
    if len(view):
        return connected.recv_into(view, len(view), socket.MSG_WAITALL) == len(view)
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
