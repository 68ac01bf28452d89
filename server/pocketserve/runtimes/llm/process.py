"""Start, watch and end the process of a language model."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pocketserve.child.log import ChildLog
from pocketserve.child.process import Child, Streams, describe_end, ended_by_system
from pocketserve.formats.gguf_split import parts_beside
from pocketserve.messages import excerpt
from pocketserve.quarantine.rules import rules_of_engine
from pocketserve.runtimes.base import RuntimeMissingError
from pocketserve.runtimes.llm.client import (
    EngineConnection,
    EngineLostError,
    EngineTimeoutError,
)
from pocketserve.runtimes.llm.flags import flags_of, program_arguments
from pocketserve.runtimes.llm.settings import EngineSettings
from pocketserve.runtimes.llm.start import make_work_folder, start_engine

SOCKET_NAME: Final = "e.sock"
LOAD_TIMEOUT_S: Final = 120.0
HEALTH_TIMEOUT_S: Final = 10.0
STUCK_TIMEOUT_S: Final = 10.0
"""For the batch of tokens in progress, after which an engine looks at new requests."""

POLL_S: Final = 0.05
SPARE_BYTES: Final = 512 * 2**20
"""Memory that an engine may take beyond its model and context."""

LOG_BYTES: Final = 4096


class EngineEndedError(RuntimeError):
    """The engine's process ended or hung.

    Attributes:
        by_system: the system ended it, so that the model is not to blame.
    """

    by_system = False


class EngineStaysAwayError(EngineEndedError):
    """The engine's process died too often and isn't started again."""


class EngineProcess:
    """A running engine. It loads its model, see :meth:`wait_until_loaded`.

    Args:
        memory_bytes: what model and context take.

    Raises:
        EngineEndedError: it can't be started.
    """

    def __init__(self, settings: EngineSettings, memory_bytes: int) -> None:
        self._is_ready = False
        self._load_ends = time.monotonic() + LOAD_TIMEOUT_S
        self._work = make_work_folder()
        self._log = ChildLog()
        self._settings = settings
        try:
            self._child = self._start(memory_bytes)
        except OSError as error:
            self._remove()
            fault = EngineEndedError(f"no process can be started: {error.strerror}")
            fault.by_system = True
            raise fault from error
        except RuntimeMissingError:
            self._remove()
            raise

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._child.pid

    @property
    def runs(self) -> bool:
        """Return whether the process runs."""
        return self._child.is_running

    def connect(self, deadline: float) -> EngineConnection:
        """Return a connection for one request.

        Raises:
            EngineLostError: it doesn't answer.
        """
        try:
            return EngineConnection(self._work.path, SOCKET_NAME, deadline)
        except EngineLostError:
            raise
        except OSError as error:
            raise EngineLostError("the engine ended") from error

    def end(self) -> None:
        """End the process, whatever it does; this takes milliseconds."""
        self._child.end()
        self._remove()

    def end_if_stuck(self) -> None:
        """End the process unless it soon takes up new work.

        Some requests, such as a JSON schema with nested repetitions, keep its main
        thread busy for minutes, even after their connection was closed.
        """
        try:
            connection = self.connect(time.monotonic() + STUCK_TIMEOUT_S)
            try:
                connection.wait_until_free()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            self._child.kill()

    def death(self) -> EngineEndedError:
        """Return how it ended; kill it if it has not ended by itself."""
        try:
            code = self._child.process.wait(1)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return EngineEndedError("the engine hung and was ended")
        text = f"the engine ended with {describe_end(code)}{self._complaint()}"
        fault = EngineEndedError(text)
        fault.by_system = ended_by_system(code)
        return fault

    def _start(self, memory_bytes: int) -> Child:
        streams = Streams(stdin=subprocess.PIPE, stderr=self._log.file)
        return start_engine(self._command(memory_bytes), streams, self._work.path)

    def _command(self, memory_bytes: int) -> list[str]:
        settings = self._settings
        program = settings.program or sys.executable
        arguments: list[str] = []
        if settings.program:
            arguments = program_arguments(settings, flags_of(program))
        request: dict[str, Any] = {
            "settings": asdict(settings),
            "arguments": arguments,
            "rules": rules_of_engine(_files(settings), program, self._work.path),
            "data_limit": memory_bytes + settings.load_bytes + SPARE_BYTES,
            "parent": os.getpid(),
        }
        module = "pocketserve.runtimes.llm.child"
        return [sys.executable, "-P", "-m", module, json.dumps(request)]

    def wait_until_loaded(
        self, deadline: float = math.inf, on_wait: Callable[[], None] | None = None
    ) -> None:
        """Wait until the model is loaded.

        Args:
            deadline: monotonic time; the load goes on after it.
            on_wait: called while waiting; may raise to give up.

        Raises:
            EngineEndedError: it ended, or did not load the model in time.
            EngineTimeoutError: the deadline passed.
        """
        while not self._is_ready and not self._is_loaded():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.process.wait(POLL_S)
                raise self.death()
            now = time.monotonic()
            if now > self._load_ends:
                self._child.kill()
                raise EngineEndedError(
                    f"the engine did not load the model within {LOAD_TIMEOUT_S:g} s"
                )
            if now > deadline:
                raise EngineTimeoutError("the engine is still loading the model")
            if on_wait is not None:
                on_wait()
        self._is_ready = True

    def _is_loaded(self) -> bool:
        if not (self._work.path / SOCKET_NAME).exists():
            return False
        try:
            connection = self.connect(time.monotonic() + HEALTH_TIMEOUT_S)
        except EngineLostError:
            return False
        try:
            return connection.is_healthy()
        except (OSError, ValueError):
            return False
        finally:
            connection.close()

    def _complaint(self) -> str:
        line = self._log.last_line(LOG_BYTES)
        if not line:
            return ""
        return f" ({excerpt(line, 200)})"

    def _remove(self) -> None:
        self._log.close()
        self._work.remove()


def _files(settings: EngineSettings) -> list[Path]:
    """Return the model's file with its further parts, or its folder."""
    path = Path(settings.model)
    return [path, *(path.with_name(name) for name in parts_beside(path))]
