"""Run ``pocketserve serve`` with trials forked from a preloaded process.

Run as ``python tests/forked_trials.py PACKAGES serve ...``, with commas between the
packages. A trial is still a separate process, with the usual confinement and limits.
Only Python's start and the imports, which are the same for each file, are left out, so
that thousands of files can be tried in minutes.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from pocketserve.cli import main
from pocketserve.quarantine import sandbox
from pocketserve.runtimes.framework_import import FRAMEWORK_ENVIRONMENT

MAX = 1 << 20
SANDBOX = "pocketserve.quarantine.sandbox"


class Trial:
    """A forked trial with the part of ``Popen`` that ``process.py`` uses."""

    def __init__(
        self, control: socket.socket, command: list[str], cwd: str, env: dict[str, str]
    ) -> None:
        self._control = control
        (its_input, our_end), (its_end, its_output) = os.pipe(), os.pipe()
        socket.send_fds(
            control,
            [json.dumps([command[-1], cwd, env]).encode()],
            [its_input, its_output],
        )
        os.close(its_input)
        os.close(its_output)
        self.stdin, self.stdout = (
            os.fdopen(our_end, "wb", 0),
            os.fdopen(its_end, "rb", 0),
        )
        self.returncode: int | None = None
        self.pid = self._number()

    def _number(self) -> int:
        data = self._control.recv(8)
        assert len(data) == 8, "the process that forks trials has ended"
        return array.array("q", data)[0]

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, as ``Popen`` gives it."""
        if self.returncode is None:
            if not select.select([self._control], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(SANDBOX, timeout or 0)
            self.returncode = self._number()
        return self.returncode

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def fork_trials(control: socket.socket) -> None:
    """Report that all is imported; then fork one trial per request until the server
    ends.
    """
    control.send(bytes(8))
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, MAX, 2)
        if not request:
            return
        child = os.fork()
        if child == 0:
            _become(control, *json.loads(request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        control.send(array.array("q", [os.waitstatus_to_exitcode(status)]).tobytes())


def _become(
    control: socket.socket,
    rules: str,
    cwd: str,
    env: dict[str, str],
    descriptors: list[int],
) -> None:
    code = 1
    try:
        os.setsid()
        control.send(array.array("q", [os.getpid()]).tobytes())
        control.close()
        for number, descriptor in enumerate(
            [*descriptors, os.open(os.devnull, os.O_WRONLY)]
        ):
            os.dup2(descriptor, number)
        os.closerange(3, 1024)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        code = sandbox.main([rules])
    finally:
        os._exit(code)


def serve(packages: list[str], arguments: list[str]) -> int:
    """Serve, after starting the forking process while there are no other threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        os.environ.update(FRAMEWORK_ENVIRONMENT)
        for package in packages:
            importlib.import_module(package)
        fork_trials(theirs)
        os._exit(0)
    theirs.close()
    started = subprocess.Popen
    ready = False

    def start(command: list[str], **options: Any) -> Any:
        nonlocal ready
        if SANDBOX not in command:
            return started(command, **options)
        ready = ready or bool(ours.recv(8))
        assert ready, "a package cannot be imported"
        return Trial(ours, command, str(options["cwd"]), options["env"])

    subprocess.Popen = start  # type: ignore[misc, assignment]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1].split(","), sys.argv[2:]))
