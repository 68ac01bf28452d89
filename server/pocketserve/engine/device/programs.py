"""Child programs with bounded time and output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MAX_OUTPUT_BYTES = 1 << 20
END_GRACE_S = 1.0


class Outcome(NamedTuple):
    """The end of a program.

    ``code`` is negative for a signal; None if it was missing or had to be killed.
    """

    code: int | None
    output: str
    timed_out: bool = False


def run_program(
    command: Sequence[str],
    timeout: float,
    environ: Mapping[str, str] | None = None,
    stop: int | None = None,
) -> Outcome:
    """Run a program until it ends or its time is over.

    All its children end with it. Never raises.

    Args:
        timeout: seconds; about one more passes until a program that had to be ended is gone.
        stop: a descriptor that becomes readable when the program is to be ended at once.
    """
    deadline = time.monotonic() + timeout
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,  # so that its own children end with it
        )
    except (OSError, ValueError):
        return Outcome(None, "")
    output = b""
    try:
        output = _read_until(process, deadline, stop)
        return Outcome(
            process.wait(max(0.0, deadline - time.monotonic())),
            output.decode(errors="replace"),
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, output.decode(errors="replace"), timed_out=True)
    finally:
        _end(process)


def _read_until(
    process: subprocess.Popen[bytes], deadline: float, stop: int | None
) -> bytes:
    """Return the output until its end or the deadline.

    Raises TimeoutExpired to stop the program.
    """
    assert process.stdout is not None
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if stop is not None:
            selector.register(stop, selectors.EVENT_READ)
        while (
            len(output) < MAX_OUTPUT_BYTES and (left := deadline - time.monotonic()) > 0
        ):
            ready = [key.fd for key, _ in selector.select(left)]
            if stop in ready:
                raise subprocess.TimeoutExpired(process.args, 0.0)
            if not ready:
                break
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            output += chunk
    return bytes(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Don't wait for a process that hangs in the kernel.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_GRACE_S)
    if process.stdout is not None:
        process.stdout.close()
