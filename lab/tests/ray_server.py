"""Run ``pocketserve scale`` with a real local Ray on a free port."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conftest import Server
from gunicorn_server import server_variables, wait_until
from ports import free_port

COMMAND = (sys.executable, "-m", "pocketserve", "scale")
START_TIMEOUT_S = 180.0
"""Seconds for Ray to start, and for replicas to import frameworks and load models."""
END_TIMEOUT_S = 120.0


class RayServer(Server):
    """Ray with our application; the process is the command's."""

    @property
    def address(self) -> str:
        """Return the address that the first command prints for a second one."""
        match = re.search(r"--address (\S+)", self.log.read_text())
        assert match is not None, self.log.read_text()
        return match[1]

    def replicas(self, application: str = "pocketserve") -> list[int]:
        """Return the process ids of an application's replicas."""
        name = f"ray::ServeReplica:{application}:"
        return [
            pid
            for pid in descendants(self.process.pid)
            if command_line(pid).startswith(name)
        ]

    def change(self, models: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the command again, for this cluster."""
        command = [*COMMAND, str(models), "--address", self.address, *options]
        settings = own_settings(self.log.parent, models, self.port)
        return subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=END_TIMEOUT_S
        )


def own_settings(
    folder: Path, models: Path, port: int, **settings: str
) -> dict[str, str]:
    """Return the environment of a server or command."""
    return server_variables(folder, models, POCKETSERVE_HTTP_PORT=str(port), **settings)


def wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> Any:
    """Wait for the file of a started server; return its content."""
    wait_until(
        lambda: ready.exists() or process.poll() is not None, log, START_TIMEOUT_S
    )
    assert process.poll() is None, log.read_text(errors="replace")
    return json.loads(ready.read_text())


def is_any_running(processes: Sequence[int]) -> bool:
    """Return whether one of the processes exists."""
    return any(Path(f"/proc/{pid}").exists() for pid in processes)


def kill_leftovers(process: subprocess.Popen[bytes]) -> None:
    """Kill a hung command and its descendants."""
    for pid in [process.pid, *descendants(process.pid)]:
        command = ["kill", "-9", str(pid)]
        subprocess.run(command, capture_output=True, timeout=END_TIMEOUT_S)
    process.wait(END_TIMEOUT_S)


@contextlib.contextmanager
def ray_server(
    folder: Path, models: Path, *options: str, **settings: str
) -> Iterator[RayServer]:
    """Start Ray, wait for requests, stop it, and check that nothing is left."""
    log = folder / "server.log"
    ready = folder / "ready.json"
    port = free_port()
    command = [*COMMAND, str(models), *options]
    environment = own_settings(folder, models, port, **settings)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment
        )
    try:
        content = wait_until_ready(process, ready, log)
        token = (folder / "token").read_text().strip()
        yield RayServer(process, f"http://127.0.0.1:{port}", token, content, log)
        begun = descendants(process.pid)
        process.terminate()
        assert process.wait(END_TIMEOUT_S) == 0, log.read_text(errors="replace")
        wait_until(lambda: not is_any_running(begun), log)
        assert not ready.exists()
    finally:
        kill_leftovers(process)


def descendants(root: int) -> list[int]:
    """Return the descendants of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(
                stat.read_text().rpartition(")")[2].split()[1]
            )
    known = {root}
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= more
    return sorted(known - {root})


def command_line(pid: int) -> str:
    """Return a process's command line; empty if it has ended."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    except OSError:
        return ""
