"""Server processes for the benchmarks, pinned to a core where the system allows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0


def pin(pid: int, core: int) -> None:
    """Keep a process on one core, so that the scheduler's choices are not what is measured."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(pid, {cores[core % len(cores)]})


def _surroundings() -> dict[str, str]:
    """Ours, but bytecode is kept as on any device: else each start compiles our sources, and ours only."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A child on core 1 that is ended at the end."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=_surroundings()
        )
        pin(child.pid, 1)
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def pocketserve(models: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A server without a token; gives its process id and port."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready.json")
        command = [sys.executable, "-m", "pocketserve", "serve", str(models), "--http-port", "0", "--socket-port", "0"]
        command += ["--no-auth"]
        with process([*command, "--log-level", "error", "--ready-file", str(ready), *options]) as child:
            ends = time.monotonic() + START_TIMEOUT_S
            while not ready.exists():
                if child.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError("the server did not start")
                time.sleep(0.005)
            yield child.pid, json.loads(ready.read_text())["http"]["port"]


@contextmanager
def script(code: str, *arguments: str) -> Iterator[tuple[int, str]]:
    """A Python script; gives its process id and the first line that it prints."""
    with process([sys.executable, "-c", code, *arguments]) as child:
        assert child.stdout is not None
        yield child.pid, child.stdout.readline().decode().strip()
