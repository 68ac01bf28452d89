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
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.child.frames import FrameError, FramePipe
from pocketserve.child.log import ChildLog
from pocketserve.child.process import Child, Streams, describe_end
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


class WorkerError(RuntimeError):
    """The Node process died, hung or wrote nonsense."""


class RefusedInputsError(ValueError):
    """The inputs are too large, and were not sent."""


class EndedError(WorkerError):
    """The process had ended before it took the request."""


class Worker:
    """The Node process of all sessions.

    Only the thread inside :meth:`exclusive` may start it and send it requests.
    """

    def __init__(
        self, modules: Path | None, node: str, idle_s: float, run_timeout_s: float
    ) -> None:
        self._modules = modules
        self._node = node
        self._idle_s = idle_s
        self.run_timeout_s = run_timeout_s
        self._lock = threading.RLock()
        self._child: _NodeProcess | None = None
        self._starts = 0
        self._numbers = itertools.count(1)
        self._sessions: set[str] = set()
        self.version = ""  # of TensorFlow.js, once it has run

    @property
    def pid(self) -> int | None:
        """The process's number, where one runs."""
        child = self._child
        if child is not None:
            return child.pid
        return None

    def register(self) -> str:
        """Reserve the process for a session; return the session's name in it."""
        name = f"m{next(self._numbers)}"
        self._sessions.add(name)
        return name

    def unregister(self, name: str, process: int) -> None:
        """Free a session's model; the last session ends the process."""
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
        """Send a request and return its answer; end a failing process."""
        assert self._child is not None
        try:
            return self._child.exchange(header, payload, timeout_s)
        except RefusedInputsError:
            raise
        except BaseException:
            # Otherwise the next request would receive a pending answer.
            self._end()
            raise

    def _start(self, threads: int) -> _NodeProcess:
        modules = find_modules(self._modules)
        node = shutil.which(self._node)
        if node is None:
            raise RuntimeMissingError(NO_NODE)
        script = str(Path(__file__).with_name("worker.js"))
        idle_ms = int(self._idle_s * 1000)
        child = _NodeProcess([node, script, str(modules), str(threads), str(idle_ms)])
        try:
            answer, _ = child.exchange({"op": "start"}, (), START_TIMEOUT_S)
            if "error" in answer:
                raise WorkerError(excerpt(answer["error"], 400))
        except WorkerError as error:
            child.end()
            raise RuntimeMissingError(
                f"TensorFlow.js does not start: {error}"
            ) from error
        except BaseException:
            child.end()
            raise
        self.version = str(answer["version"])
        return child

    def _end(self) -> None:
        child = self._child
        self._child = None
        if child is not None:
            child.end()


def _late(timeout_s: float) -> WorkerError:
    return WorkerError(
        f"the Node process did not answer within {timeout_s:g} s and was ended"
    )


class _NodeProcess:
    """The Node process, and the frames that are exchanged with it."""

    def __init__(self, command: Sequence[str]) -> None:
        # Not the server's own settings, and nothing that changes how Node runs.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NODE_", "POCKETSERVE_"))
        }
        self._log = ChildLog()
        pipe = subprocess.PIPE
        self._child = Child(
            command,
            Streams(pipe, pipe, self._log.file),
            environment=environment,
            # In a session of its own, Ctrl-C in the terminal lets running requests
            # finish. A trial is ended with all processes of its session.
            own_session=TRIAL_VARIABLE not in os.environ,
        )
        stdin = self._child.process.stdin
        stdout = self._child.process.stdout
        assert stdin is not None
        assert stdout is not None
        self._pipe = FramePipe(
            stdout.fileno(), stdin.fileno(), MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES
        )

    @property
    def pid(self) -> int | None:
        """The process's number, as long as it runs."""
        if self._child.is_running:
            return self._child.pid
        return None

    def exchange(
        self, header: Mapping[str, Any], payload: Sequence[memoryview], timeout_s: float
    ) -> tuple[dict[str, Any], bytearray]:
        """Write a frame and read the answer."""
        size = sum(part.nbytes for part in payload)
        if size > MAX_PAYLOAD_BYTES:
            raise RefusedInputsError(
                f"the inputs have {size} bytes, more than {MAX_PAYLOAD_BYTES}"
            )
        deadline = time.monotonic() + timeout_s
        try:
            answer = self._pipe.exchange(header, payload, deadline)
        except TimeoutError:
            raise _late(timeout_s) from None
        except OSError:
            raise self._death() from None
        except FrameError as error:
            raise WorkerError(
                f"the Node process wrote an answer that cannot be read: {error}"
            ) from error
        self._log.clear()
        return answer.header, answer.payload

    def end(self) -> None:
        """Kill it and wait for its end."""
        self._child.end()
        self._log.close()

    def _death(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(1)
        code = self._child.process.returncode
        if code == 0:  # it only ends like this by itself, between two requests
            return EndedError("the Node process had ended")
        ending = (
            "closed its output" if code is None else f"ended with {describe_end(code)}"
        )
        line = self._log.last_line(STDERR_BYTES)
        complaint = ""
        if line:
            complaint = f" ({excerpt(line, 200)})"
        return WorkerError(
            f"the Node process {ending} while it worked on this request{complaint}"
        )
