"""The one Node process that all TensorFlow.js models share, and the frames that are exchanged with it.

Both directions of the pipes carry frames: two unsigned 32-bit little-endian lengths, a JSON header of the first length,
a payload of the second. Every request gets one answer, in order; one request is under way at a time. ::

    {"op": "start"}                                            -> {"version", "backend"}
    {"op": "open", "model", "file", "shards", "graph", "backend"}
                               -> {"inputs": [{"name", "shape", "dtype"}], "outputs": [...], "nodes", "backend"}
    {"op": "run", "model", "inputs": [{"dtype", "shape", "bytes"}]} + payload
                               -> {"outputs": [{"dtype", "shape", "bytes"}]} + payload
    {"op": "reset", "model"}                                   -> {}
    {"op": "close", "model"}                                   -> {"tensors": how many are left}
    any of them                                                -> {"error", "input": is the input at fault}

Payloads are the tensors' bytes, little-endian and row-major, one after the other. ``shards`` are absolute paths that
were checked to lie in the model's folder; the process opens nothing else, and nothing from the network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import TRIAL_VARIABLE, RuntimeMissingError

from .packages import NO_NODE, find_modules

START_TIMEOUT_S = 30.0
"""Node and TensorFlow.js start in a quarter of a second on a desktop, in a few on a phone that is busy."""

OPEN_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 120.0
"""Beyond what any model that is of use takes; a hung process is recognised by it."""

IDLE_S = 120.0
"""After this long without work the process ends itself."""

MAX_HEADER_BYTES = 16 * 2**20
MAX_PAYLOAD_BYTES = 2**30
STDERR_BYTES = 4096
"""What is kept of the process's complaints."""
_LENGTHS = struct.Struct("<II")


class WorkerError(RuntimeError):
    """The Node process died, hung or wrote nonsense."""


class EndedError(WorkerError):
    """The process had ended before it took the request."""


def sentence(text: Any) -> str:
    """An error of the process as part of a sentence: one line, 400 characters at most, without a full stop."""
    return excerpt(text, 400)


class Worker:
    """The one Node process. Whoever holds a turn may start it and ask it.

    Attributes:
        version: of TensorFlow.js, once it has run.
    """

    def __init__(self, modules: Path | None, node: str, idle: float, start_timeout: float) -> None:
        self._modules = modules
        self._node = node
        self._idle = idle
        self._start_timeout = start_timeout
        self._lock = threading.RLock()
        self._child: _Child | None = None
        self._count = 0
        self._names = itertools.count(1)
        self._members: set[str] = set()
        self._membership = threading.Lock()
        self.version = ""

    @property
    def pid(self) -> int | None:
        """The process's number, where one runs."""
        child = self._child
        return child.pid if child is not None and child.is_running else None

    def enlist(self) -> str:
        """Reserve the process for a session; returns the session's name in it."""
        with self._membership:
            name = f"m{next(self._names)}"
            self._members.add(name)
        return name

    def dismiss(self, name: str, process: int) -> None:
        """Free what a session holds; the last one ends the process."""
        with self._membership:
            self._members.discard(name)
        with contextlib.suppress(WorkerError), self.turn(OPEN_TIMEOUT_S + RUN_TIMEOUT_S):
            # Looked at under both locks: somebody may have come in the meantime.
            with self._membership:
                is_last = not self._members
            if is_last:
                self._end()
            elif process == self._count and self._child is not None:
                self.ask({"op": "close", "model": name}, (), self._start_timeout)

    @contextlib.contextmanager
    def turn(self, timeout: float) -> Any:
        """Have the process to oneself.

        Raises:
            WorkerError: others had it all the time.
        """
        if not self._lock.acquire(timeout=timeout):
            raise WorkerError(f"the Node process was busy with other models for {timeout:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def ready(self, threads: int) -> int:
        """Start the process if none runs.

        Args:
            threads: that a new one may use; one that runs keeps its own number.

        Returns:
            Which process it is: models that were opened in another one are gone.
        """
        if self._child is None or not self._child.is_running:
            self._end()
            self._child = self._started(threads)
            self._count += 1
        return self._count

    def ask(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], timeout: float
    ) -> tuple[dict[str, Any], bytearray]:
        """One request and its answer. A process that failed is done away with.

        Raises:
            WorkerError: it died, hung or wrote nonsense.
        """
        assert self._child is not None
        try:
            return self._child.exchange(header, payload, time.monotonic() + timeout)
        except TimeoutError:
            self._end()
            raise WorkerError(f"the Node process did not answer within {timeout:g} s and was ended") from None
        except WorkerError:
            self._end()
            raise

    def _started(self, threads: int) -> _Child:
        modules = find_modules(self._modules)
        node = shutil.which(self._node)
        if node is None:
            raise RuntimeMissingError(NO_NODE)
        script = Path(__file__).with_name("worker.js")
        child = _Child([node, str(script), str(modules), str(threads), str(int(self._idle * 1000))])
        try:
            answer, _ = child.exchange({"op": "start"}, (), time.monotonic() + self._start_timeout)
        except (WorkerError, TimeoutError) as error:
            child.end()
            raise RuntimeMissingError(f"TensorFlow.js does not start: {error or 'no answer'}{child.said()}") from error
        if "error" in answer:
            child.end()
            raise RuntimeMissingError(f"TensorFlow.js does not start: {sentence(answer['error'])}")
        self.version = str(answer["version"])
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _Child:
    """A process with pipes. All reads and writes have a deadline."""

    def __init__(self, command: Sequence[str]) -> None:
        # Not the server's own settings, and nothing that changes how Node runs.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NODE_", "POCKETSERVE_"))}
        # A session of its own, so that Ctrl-C in the terminal lets running requests finish; but not in a trial, which
        # is ended with all its processes.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=TRIAL_VARIABLE not in os.environ,
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._complaints = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The last line that it wrote to stderr, as the end of a sentence."""
        lines = self._complaints.decode("utf-8", errors="replace").strip().splitlines()
        return f" ({excerpt(lines[-1], 200)})" if lines else ""

    def exchange(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], deadline: float
    ) -> tuple[dict[str, Any], bytearray]:
        """Write a frame and read the answer.

        Raises:
            TimeoutError: the deadline passed.
            WorkerError: the process ended or wrote nonsense.
        """
        text = json.dumps(header).encode()
        size = sum(part.nbytes for part in payload)
        if size > MAX_PAYLOAD_BYTES:
            raise ValueError(f"the inputs have {size} bytes, more than {MAX_PAYLOAD_BYTES}")
        unsent = [memoryview(_LENGTHS.pack(len(text), size) + text), *(part for part in payload if part.nbytes)]
        reader = _FrameReader()
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_WRITE)
            selector.register(self._out, selectors.EVENT_READ)
            selector.register(self._err, selectors.EVENT_READ)
            while not reader.complete:
                for key, _ in self._wait(selector, deadline):
                    if key.fd == self._in:
                        self._send(selector, unsent)
                    elif key.fd == self._err:
                        self._listen(selector)
                    else:
                        self._read(reader)
        return reader.header(), reader.payload

    def end(self) -> None:
        """Kill it and wait for it, which takes no time: SIGKILL ends even a stopped process."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    @staticmethod
    def _wait(selector: selectors.BaseSelector, deadline: float) -> list[tuple[selectors.SelectorKey, int]]:
        left = deadline - time.monotonic()
        events = selector.select(left) if left > 0 else []
        if not events and time.monotonic() >= deadline:
            raise TimeoutError
        return events

    def _send(self, selector: selectors.BaseSelector, unsent: list[memoryview]) -> None:
        try:
            count = os.write(self._in, unsent[0])
        except BlockingIOError:
            return
        except OSError:
            raise self._ended() from None
        unsent[0] = unsent[0][count:]
        if not unsent[0].nbytes:
            unsent.pop(0)
        if not unsent:
            selector.unregister(self._in)

    def _read(self, reader: _FrameReader) -> None:
        try:
            data = os.read(self._out, min(reader.missing, 1 << 20))
        except BlockingIOError:
            return
        if not data:
            raise self._ended()
        reader.feed(data)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        try:
            data = os.read(self._err, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(self._err)
        self._complaints = (self._complaints + data)[-STDERR_BYTES:]

    def _ended(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        with contextlib.suppress(OSError):  # its last words may still lie in the pipe
            while data := os.read(self._err, 1 << 16):
                self._complaints = (self._complaints + data)[-STDERR_BYTES:]
        code = self._process.returncode
        if code == 0:  # it only ends like this by itself, between two requests
            return EndedError("the Node process had ended")
        how = f"with signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return WorkerError(f"the Node process ended {how} while it worked on this request{self.said()}")


class _FrameReader:
    """Puts one frame together. Its lengths are checked before memory is taken."""

    def __init__(self) -> None:
        self._lengths = bytearray()
        self._header = bytearray()
        self._sizes: tuple[int, int] | None = None
        self.payload = bytearray()

    @property
    def missing(self) -> int:
        """Bytes to read next; 0 once the frame is complete."""
        if self._sizes is None:
            return _LENGTHS.size - len(self._lengths)
        return self._sizes[0] - len(self._header) or self._sizes[1] - len(self.payload)

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def feed(self, data: bytes) -> None:
        """Take bytes, at most as many as are missing."""
        if self._sizes is None:
            self._lengths += data
            if len(self._lengths) == _LENGTHS.size:
                self._sizes = self._checked(*_LENGTHS.unpack(self._lengths))
        elif len(self._header) < self._sizes[0]:
            self._header += data
        else:
            self.payload += data

    def header(self) -> dict[str, Any]:
        try:
            header = json.loads(self._header)
        except ValueError as error:
            raise WorkerError(f"the Node process wrote an answer that cannot be read: {error}") from error
        if not isinstance(header, dict):
            raise WorkerError("the Node process wrote an answer that cannot be read")
        return header

    @staticmethod
    def _checked(header: int, payload: int) -> tuple[int, int]:
        if not 0 < header <= MAX_HEADER_BYTES or payload > MAX_PAYLOAD_BYTES:
            raise WorkerError(f"the Node process announced an answer of {header} + {payload} bytes")
        return header, payload
