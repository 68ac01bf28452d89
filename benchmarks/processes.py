"""Server processes for the benchmarks, pinned to a core."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pocketserve.engine.device.cores import top_speed_khz

START_TIMEOUT_S = 60.0
ROOT = Path(__file__).resolve().parents[1]
BENCH_FOLDER = ROOT / ".bench"
"""Environments of peers, generated models and the servers' state; git ignores it."""

NO_TOKEN = Path(os.devnull)
"""These servers need no token, and a client with one would reject them."""

CLIENT_CORE, SERVER_CORE = 0, 1
CPUCLOCK_SCHED = 2  # Linux's clock of a process, by its id


class NotHere(RuntimeError):
    """This system lacks something that a benchmark needs."""


class StartError(RuntimeError):
    """A server didn't start; the text is its log's end."""


@dataclass(frozen=True)
class Ours:
    """A running server of ours, which asks for no token."""

    pid: int
    http: int
    socket: int


def cores() -> list[int]:
    """Return this process's cores; empty if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


def arrange(
    cores: Sequence[int],
    speed: Callable[[int], int | None],
    twins: Callable[[int], set[int]],
) -> list[int]:
    """Return the cores, the two for measurements first.

    Args:
        speed: returns a core's top speed in kHz; None if unknown.
        twins: returns the hyper-threads of a core's physical core, including itself.
    """
    ordered = sorted(cores, key=lambda core: -(speed(core) or 0))
    top = [core for core in ordered if speed(core) == speed(ordered[0])]
    others = [
        core
        for core in (top if len(top) > 1 else ordered)[1:]
        if core not in twins(ordered[0])
    ]
    if not others:
        return ordered
    return [ordered[0], others[0], *(core for core in ordered[1:] if core != others[0])]


def twins_of(core: int) -> set[int]:
    """The cores that share one with this one, itself among them."""
    try:
        listed = Path(
            f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        ).read_text()
    except OSError:
        return {core}
    found: set[int] = set()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


ALL_CORES = arrange(cores(), top_speed_khz, twins_of)
"""The first is the client's, the second the servers'."""


def pinning() -> str:
    """In words, which cores are measured on."""
    if not ALL_CORES:
        return "not pinned: this system does not let a process choose its core"
    if len(ALL_CORES) == 1:
        return f"client and servers share core {ALL_CORES[0]}: there is no other"
    client, server = ALL_CORES[:2]
    halves = ""
    if server in twins_of(client):
        halves = ", which is a half of the same one (hyper-threading)"
    return f"client on core {client}, servers on core {server}{halves}"


def pin(pid: int, core: int) -> None:
    """Pin a process to one core."""
    if len(ALL_CORES) > 1:
        os.sched_setaffinity(pid, {ALL_CORES[core % len(ALL_CORES)]})


def cpu_seconds(pid: int) -> float:
    """Return a process's CPU time, ended threads included."""
    if not Path(
        "/proc/self/task"
    ).exists():  # elsewhere the number means another clock or none
        raise NotHere("this system does not tell what a process has had of the cores")
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def _surroundings() -> dict[str, str]:
    """Return the environment, with bytecode caching as on devices."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE"
    }


def release(pid: int) -> None:
    """Let a server's session use every core again."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that ended meanwhile
            session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
            for task in (process / "task").iterdir() if session == pid else ():
                os.sched_setaffinity(int(task.name), ALL_CORES)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin this thread and its new children to one core."""
    before = cores()
    pin(0, core)
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, set(before))


@contextmanager
def process(
    command: Sequence[str],
    core: int | None = SERVER_CORE,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    output: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child and its descendants on a separate core.

    Args:
        core: None lets it run on every core.
        output: gets its standard output; None leaves it to the caller.
        log: gets its standard error; None keeps it for the error message.

    Raises:
        StartError: with the end of the child's log.
    """
    surroundings = {
        **_surroundings(),
        "POCKETSERVE_STATE_DIR": str(BENCH_FOLDER / "state"),
        **(environment or {}),
    }
    paths = [
        (environment or {}).get("PYTHONPATH"),
        str(ROOT),
        os.environ.get("PYTHONPATH"),
    ]
    surroundings["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with (
        contextlib.nullcontext(log)
        if log is not None
        else tempfile.TemporaryFile() as log
    ):
        with contextlib.ExitStack() as stack:
            if core is not None:
                stack.enter_context(pinned(core))
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE
                if output is None
                else stack.enter_context(output.open("wb")),
                stderr=log,
                env=surroundings,
                start_new_session=True,
            )
        try:
            yield child
        except StartError as error:
            log.seek(0)
            raise StartError(
                f"{error}: {log.read()[-1000:].decode(errors='replace').strip()}"
            ) from None
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process with all its descendants."""
    _signal_group(child.pid, signal.SIGTERM)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
    finally:  # after a second Ctrl-C too
        _signal_group(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


@contextmanager
def our_server(
    models: Path,
    *options: str,
    core: int | None = SERVER_CORE,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    python: str = sys.executable,
) -> Iterator[Ours]:
    """A server of ours on free ports, without a token.

    Raises:
        StartError: it did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready.json")
        command = [
            python,
            "-m",
            "pocketserve",
            "serve",
            str(models),
            "--no-auth",
            "--log-level",
            "error",
        ]
        command += [
            "--http-port",
            "0",
            "--socket-port",
            "0",
            "--ready-file",
            str(ready),
        ]
        with process([*command, *options], core, environment, log) as child:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not ready.exists():
                if child.poll() is not None or time.monotonic() > deadline:
                    raise StartError("the server did not start")
                time.sleep(0.002)
            found = json.loads(ready.read_text())
            yield Ours(child.pid, found["http"]["port"], found["socket"]["port"])


@contextmanager
def pocketserve(models: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A server of ours; gives its process id and HTTP port."""
    with our_server(models, *options) as ours:
        yield ours.pid, ours.http


@contextmanager
def script(
    code: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> Iterator[tuple[int, str]]:
    """Run a Python script; yield pid and first line."""
    with process(
        [sys.executable, "-c", code, *arguments], environment=environment, log=log
    ) as child:
        assert child.stdout is not None
        yield child.pid, child.stdout.readline().decode().strip()


@contextmanager
def module(
    name: str,
    *arguments: str,
    core: int | None = SERVER_CORE,
    python: str = sys.executable,
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a module of ``benchmarks/servers``; yield process and port.

    Raises:
        StartError: it printed none.
    """
    with process(
        [python, "-m", f"benchmarks.servers.{name}", *arguments], core
    ) as child:
        assert child.stdout is not None
        # Some peers log to standard output too.
        for line in iter(child.stdout.readline, b""):
            if line.strip().isdigit():
                break
        else:
            raise StartError(f"{name} did not start")
        yield child, int(line)


def free_port() -> int:
    """Return a port for a server that must be told one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Suspend servers, some of which poll when idle."""
    for pid in pids:
        _signal_group(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _signal_group(pid, signal.SIGCONT)
