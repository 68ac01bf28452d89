"""Start a child process, limit it, and end it with its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import IO, NamedTuple

from pocketserve.child.memory import resident_bytes
from pocketserve.engine.device.processes import (
    descendants_of,
    end_session,
    signal_name,
)
from pocketserve.engine.device.signals import uninterrupted

POLL_S = 0.1


class Limits(NamedTuple):
    """Limits of a child process.

    Attributes:
        seconds: from the call of :meth:`Child.wait` to the end.
        memory: resident bytes; 0 for any number.
        with_descendants: whether the memory of its descendants counts, too.
        poll_s: seconds between two measurements.
    """

    seconds: float
    memory: int = 0
    with_descendants: bool = True
    poll_s: float = POLL_S


class Exceeded(Enum):
    """The limit that a child process has exceeded."""

    TIME = "time"
    MEMORY = "memory"


class Streams(NamedTuple):
    """The standard streams of a child: files, descriptors, or constants of subprocess."""

    stdin: int | IO[bytes] | None = subprocess.DEVNULL
    stdout: int | IO[bytes] | None = subprocess.DEVNULL
    stderr: int | IO[bytes] | None = subprocess.DEVNULL


INHERITED = Streams(None, None, None)


class Child:
    """A child process, by default in a session of its own.

    Ctrl-C in the terminal reaches no child in a session of its own: its parent ends it.
    """

    def __init__(
        self,
        command: Sequence[str],
        streams: Streams = Streams(),  # noqa: B008  # immutable
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        own_session: bool = True,
    ) -> None:
        self.process = subprocess.Popen(
            list(command),
            bufsize=0,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            cwd=folder,
            env=environment,
            start_new_session=own_session,
        )
        self._is_session_ended = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process runs; after its end, end its session."""
        is_running = self.process.poll() is None
        if not is_running:
            self._end_session()
        return is_running

    def wait(
        self, limits: Limits, tick: Callable[[], None] = lambda: None
    ) -> Exceeded | None:
        """Wait for the end; return the exceeded limit, or None.

        Args:
            tick: called between two measurements.
        """
        deadline = time.monotonic() + limits.seconds
        while True:
            tick()
            try:
                self.process.wait(limits.poll_s)
                return None
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > deadline:
                return Exceeded.TIME
            if limits.memory and self._resident_bytes(limits) > limits.memory:
                return Exceeded.MEMORY

    def kill(self) -> None:
        """End the process and its descendants at once; thread-safe."""
        # Once it has ended, its descendants cannot be told from other processes.
        descendants = descendants_of(self.pid) if self.is_running else []
        self._end_session()
        for descendant in descendants:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(descendant, signal.SIGKILL)

    def end(self, grace_s: float = 0.0) -> int:
        """End the process and its descendants; return the exit code.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL; 0 for SIGKILL at once.
        """
        if grace_s and self.is_running:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return self.process.returncode

    def _end_session(self) -> None:
        # Only once: afterwards the system may reuse the id.
        if not self._is_session_ended:
            self._is_session_ended = True
            end_session(self.process)

    def _resident_bytes(self, limits: Limits) -> int:
        return resident_bytes(self.pid, descendants=limits.with_descendants)


@contextmanager
def running(
    command: Sequence[str],
    streams: Streams = Streams(),  # noqa: B008  # immutable
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    grace_s: float = 0.0,
) -> Iterator[Child]:
    """Run a child process, at most until the block's end.

    Args:
        grace_s: as of :meth:`Child.end`.
    """
    child: Child | None = None
    try:
        with uninterrupted():
            child = Child(command, streams, environment=environment, folder=folder)
        yield child
    finally:
        if child is not None:
            child.end(grace_s)


def describe_end(exit_code: int) -> str:
    """Describe the end of a process, such as ``signal SIGKILL``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {signal_name(exit_code).removeprefix('signal ')}"


def ended_by_system(exit_code: int) -> bool:
    """Return whether the system may have ended a process.

    Android ends child processes at any time, which is not the model's fault.
    """
    return exit_code in (-signal.SIGKILL, -signal.SIGTERM)
