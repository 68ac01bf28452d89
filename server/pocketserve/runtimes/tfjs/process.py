"""The one Node process that all TensorFlow.js models share, and the frames that are exchanged with it.

Both directions of the pipes carry frames: two unsigned 32-bit little-endian lengths, a JSON header of the first length,
a payload of the second. Every request gets one answer, in order; one request runs at a time. ::

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
import select
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import TRIAL_VARIABLE, RuntimeMissingError

from .packages import NO_NODE, find_modules

START_TIMEOUT_S = (
    30.0  # a quarter of a second on a desktop, a few on a phone that is busy
)
OPEN_TIMEOUT_S = RUN_TIMEOUT_S = (
    120.0  # beyond what any model that is of use takes: the process hangs
)
IDLE_S = 120.0  # after this long without work the process ends itself
MAX_HEADER_BYTES = 16 * 2**20
MAX_PAYLOAD_BYTES = 2**30
STDERR_BYTES = 4096  # the end of the process's error output, which is read

_LENGTHS = struct.Struct("<II")


class WorkerError(RuntimeError):
    """The Node process died, hung or wrote nonsense."""


class EndedError(WorkerError):
    """The process had ended before it took the request."""


class Worker:
    """The Node process of all sessions. Whoever holds :meth:`exclusive` may start it and send it requests."""

    def __init__(
        self, modules: Path | None, node: str, idle_s: float, run_timeout_s: float
    ) -> None:
        self._modules = modules
        self._node = node
        self._idle_s = idle_s
        self.run_timeout_s = run_timeout_s
        self._lock = threading.RLock()
        self._child: _Child | None = None
        self._starts = 0
        self._numbers = itertools.count(1)
        self._sessions: set[str] = set()
        self.version = ""  # of TensorFlow.js, once it has run

    @property
    def pid(self) -> int | None:
        """The process's number, where one runs."""
        child = self._child
        return child.pid if child is not None else None

    def register(self) -> str:
        """Reserve the process for a session; return the session's name in it."""
        name = f"m{next(self._numbers)}"
        self._sessions.add(name)
        return name

    def unregister(self, name: str, process: int) -> None:
        """Free what a session holds in a process; the last session ends it."""
        self._sessions.discard(name)
        with contextlib.suppress(WorkerError), self.exclusive():
            if not self._sessions:
                self._end()
            elif process == self._starts and self._child is not None:
                self.ask({"op": "close", "model": name}, (), START_TIMEOUT_S)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other sessions from the process, if they do not keep it for too long themselves."""
        timeout = OPEN_TIMEOUT_S + self.run_timeout_s
        if not self._lock.acquire(timeout=timeout):
            raise WorkerError(
                f"the Node process was busy with other models for {timeout:g} s"
            )
        try:
            yield
        finally:
            self._lock.release()

    def ensure_running(self, threads: int) -> int:
        """Start the process if none runs, and return its number: models that were opened in another one are gone."""
        if self.pid is None:
            self._end()
            self._child = self._start(threads)
            self._starts += 1
        return self._starts

    def ask(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], timeout_s: float
    ) -> tuple[dict[str, Any], bytearray]:
        """Exchange a request for its answer, and end a process that fails."""
        assert self._child is not None
        try:
            return self._child.exchange(header, payload, timeout_s)
        except WorkerError:
            self._end()
            raise

    def _start(self, threads: int) -> _Child:
        modules, node = find_modules(self._modules), shutil.which(self._node)
        if node is None:
            raise RuntimeMissingError(NO_NODE)
        script = str(Path(__file__).with_name("worker.js"))
        child = _Child(
            [node, script, str(modules), str(threads), str(int(self._idle_s * 1000))]
        )
        try:
            answer, _ = child.exchange({"op": "start"}, (), START_TIMEOUT_S)
            if "error" in answer:
                raise WorkerError(excerpt(answer["error"], 400))
        except WorkerError as error:
            child.end()
            raise RuntimeMissingError(
                f"TensorFlow.js does not start: {error}"
            ) from error
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
        environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("NODE_", "POCKETSERVE_"))
        }
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by end()
        # A session of its own, so that Ctrl-C in the terminal lets running requests finish; but not in a trial, which
        # is ended with all its processes.
        own_session, pipe = TRIAL_VARIABLE not in os.environ, subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=self._stderr,
            env=environment,
            start_new_session=own_session,
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    @property
    def pid(self) -> int | None:
        """The process's number, as long as it runs."""
        return self._process.pid if self._process.poll() is None else None

    def exchange(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], timeout_s: float
    ) -> tuple[dict[str, Any], bytearray]:
        """Write a frame and read the answer."""
        text = json.dumps(header).encode()
        size = sum(part.nbytes for part in payload)
        if size > MAX_PAYLOAD_BYTES:
            raise ValueError(
                f"the inputs have {size} bytes, more than {MAX_PAYLOAD_BYTES}"
            )
        deadline = time.monotonic() + timeout_s
        try:
            for part in (memoryview(_LENGTHS.pack(len(text), size) + text), *payload):
                self._write(part, deadline)
            header_size, size = _LENGTHS.unpack(self._read(_LENGTHS.size, deadline))
            if not 0 < header_size <= MAX_HEADER_BYTES or size > MAX_PAYLOAD_BYTES:
                raise WorkerError(
                    f"the Node process announced an answer of {header_size} + {size} bytes"
                )
            answer = json.loads(self._read(header_size, deadline))
            if not isinstance(answer, dict):
                raise ValueError("no object")
            data = self._read(size, deadline)
        except TimeoutError:
            raise WorkerError(
                f"the Node process did not answer within {timeout_s:g} s and was ended"
            ) from None
        except OSError:
            raise self._death() from None
        except ValueError as error:
            raise WorkerError(
                f"the Node process wrote an answer that cannot be read: {error}"
            ) from error
        self._stderr.seek(0)
        self._stderr.truncate()  # so that it cannot grow for ever
        return answer, data

    def end(self) -> None:
        """Kill it and wait for it, which takes no time: SIGKILL ends even a stopped process."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for file in (self._stdin, self._stdout, self._stderr):
            file.close()

    def _write(self, data: memoryview, deadline: float) -> None:
        while data.nbytes:
            _wait(self._stdin.fileno(), select.POLLOUT, deadline)
            data = data[os.write(self._stdin.fileno(), data) :]

    def _read(self, count: int, deadline: float) -> bytearray:
        data = bytearray()
        while len(data) < count:
            _wait(self._stdout.fileno(), select.POLLIN, deadline)
            chunk = os.read(self._stdout.fileno(), min(count - len(data), 1 << 20))
            if not chunk:
                raise BrokenPipeError
            data += chunk
        return data

    def _death(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        if code == 0:  # it only ends like this by itself, between two requests
            return EndedError("the Node process had ended")
        reason = (
            f"with signal {-code}"
            if code is not None and code < 0
            else f"with code {code}"
        )
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - STDERR_BYTES))
        lines = (
            self._stderr.read().decode("utf-8", errors="replace").strip().splitlines()
        )
        complaint = f" ({excerpt(lines[-1], 200)})" if lines else ""
        return WorkerError(
            f"the Node process ended {reason} while it worked on this request{complaint}"
        )


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
