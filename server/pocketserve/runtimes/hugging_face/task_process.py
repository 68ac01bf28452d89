"""Start, ask and end the process of a network of transformers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketserve.child.arrays import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PackedArrays,
    pack_arrays,
    unpack_arrays,
)
from pocketserve.child.frames import ChildFrame, FrameError, FramePipe
from pocketserve.child.log import ChildLog
from pocketserve.child.process import Streams, describe_end, ended_by_system
from pocketserve.messages import excerpt
from pocketserve.quarantine.rules import rules_of_engine
from pocketserve.runtimes.llm.start import make_work_folder, start_engine
from pocketserve.tensors import Array

LOAD_TIMEOUT_S: Final = 120.0
RUN_TIMEOUT_S: Final = 120.0
"""Beyond the time of any useful model: the process hangs."""

POLL_S: Final = 0.25
SPARE_BYTES: Final = 1 << 30
"""Memory that the process may take beyond its weights, for intermediate results."""

WaitCheck = Callable[[], None]


class NetworkEndedError(RuntimeError):
    """The network's process died, hung or wrote nonsense.

    Attributes:
        by_system: the system ended it, so that the model is not to blame.
    """

    by_system = False


class NetworkSettings(NamedTuple):
    """The model of a process, and its limits.

    Attributes:
        folder: the model's private copy.
        memory_bytes: of library and weights.
        file_bytes: of the weights, which are mapped while they are copied.
    """

    folder: Path
    threads: int
    memory_bytes: int
    file_bytes: int


class NetworkProcess:
    """A process with a loaded network.

    Attributes:
        description: its inputs and outputs, as the process sent them.

    Raises:
        NetworkEndedError: it can't be started, or ended.
        ValueError: it can't load the model; the text gives the reason.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        self._work = make_work_folder()
        self._log = ChildLog()
        streams = Streams(subprocess.PIPE, subprocess.PIPE, self._log.file)
        command = _command(settings, self._work.path)
        try:
            self._child = start_engine(command, streams, self._work.path)
        except OSError as error:
            self._remove()
            fault = NetworkEndedError(f"no process can be started: {error.strerror}")
            fault.by_system = True
            raise fault from error
        stdin, stdout = self._child.process.stdin, self._child.process.stdout
        assert stdin is not None
        assert stdout is not None
        self._pipe = FramePipe(
            stdout.fileno(), stdin.fileno(), MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES
        )
        self._description: Mapping[str, Any] | None = None
        self._load_ends = time.monotonic() + LOAD_TIMEOUT_S

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._child.pid

    @property
    def runs(self) -> bool:
        """Return whether the process runs."""
        return self._child.is_running

    def describe(self, check: WaitCheck = lambda: None) -> Mapping[str, Any]:
        """Wait until the model is loaded, and return its inputs and outputs.

        Args:
            check: called while waiting; may raise to give up, and the load goes on.

        Raises:
            ValueError: the model can't be loaded.
            NetworkEndedError: the process ended, or did not load it in time.
        """
        if self._description is None:
            self._description = self._receive_description(check)
        return self._description

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the network's outputs by name.

        Raises:
            ValueError: the input doesn't fit.
            NetworkEndedError: the process ended; it must not be used again.
            RuntimeError: the library failed.
        """
        packed = pack_arrays(arrays)
        answer = self._exchange({"op": "run", "inputs": packed.entries}, packed)
        try:
            return unpack_arrays(answer.header["outputs"], answer.payload)
        except (FrameError, KeyError, TypeError) as error:
            raise self._nonsense(error) from error

    def try_out(self) -> bool:
        """Run an example; return whether its outputs are numbers."""
        answer = self._exchange({"op": "try"}, PackedArrays([], []))
        return answer.header.get("finite") is True

    def end(self) -> None:
        """End the process."""
        self._child.end()
        self._remove()

    def _exchange(self, header: Mapping[str, Any], packed: PackedArrays) -> ChildFrame:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        size = sum(part.nbytes for part in packed.payload)
        if size > MAX_PAYLOAD_BYTES:
            raise ValueError(f"the inputs have {size} bytes, over {MAX_PAYLOAD_BYTES}")
        late = f"the model did not answer within {RUN_TIMEOUT_S:g} s and was ended"
        with self._ending(late):
            answer = self._pipe.exchange(header, packed.payload, deadline)
        if "error" in answer.header:
            text = excerpt(answer.header["error"], 400)
            raise (ValueError if answer.header.get("input") else RuntimeError)(text)
        return answer

    def _receive_description(self, check: WaitCheck) -> Mapping[str, Any]:
        while not self._pipe.can_read(POLL_S) and time.monotonic() < self._load_ends:
            check()
        with self._ending(f"the model was not loaded within {LOAD_TIMEOUT_S:g} s"):
            # Once it is loaded, the process writes the whole frame at once.
            header = self._pipe.receive(self._load_ends).header
        if "error" in header:
            raise ValueError(excerpt(header["error"], 400))
        return header

    @contextlib.contextmanager
    def _ending(self, late: str) -> Iterator[None]:
        """End the process if a frame isn't received whole.

        The next request would receive the rest, or the pending answer.

        Args:
            late: what to say if the time is over.
        """
        try:
            yield
        except TimeoutError:
            self._child.kill()
            raise NetworkEndedError(late) from None
        except OSError:
            raise self._death() from None
        except FrameError as error:
            raise self._nonsense(error) from error
        except BaseException:
            self._child.kill()
            raise

    def _nonsense(self, error: Exception) -> NetworkEndedError:
        self._child.kill()
        return NetworkEndedError(f"the model's process sent an invalid answer: {error}")

    def _death(self) -> NetworkEndedError:
        """Return how the process ended; kill it if it still runs."""
        try:
            code = self._child.process.wait(1)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return NetworkEndedError("the model's process hung and was ended")
        line = self._log.last_line()
        complaint = f" ({excerpt(line, 200)})" if line else ""
        fault = NetworkEndedError(
            f"the model's process ended with {describe_end(code)}{complaint}"
        )
        fault.by_system = ended_by_system(code)
        return fault

    def _remove(self) -> None:
        self._log.close()
        self._work.remove()


def _command(settings: NetworkSettings, folder: Path) -> list[str]:
    limit = settings.memory_bytes + settings.file_bytes + SPARE_BYTES
    request = {
        "model": str(settings.folder),
        "threads": settings.threads,
        "rules": rules_of_engine([settings.folder], sys.executable, folder),
        "data_limit": limit,
    }
    module = "pocketserve.runtimes.hugging_face.task_child"
    return [sys.executable, "-P", "-m", module, json.dumps(request)]
