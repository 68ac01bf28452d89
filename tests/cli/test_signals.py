"""A terminated command leaves no process, folder or traceback behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import MODELS
from pocketserve.engine.device.signals import tidy_end, uninterrupted

LIMIT_S = 120.0
DIGITS = str(MODELS / "digits" / "digits.tflite")
COMMANDS = {
    "bench": ["bench", DIGITS, "--rounds", "1000000", "--seconds", "3600"],
    "demo": ["demo"],
    "a command on a phone": ["simulate", "--", "serve", str(MODELS)],
    "a scenario": ["simulate", "--scenario", "commute"],
}


def children(pid: int) -> Iterator[int]:
    """Return a process's descendants."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # a process that ends meanwhile has none
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(
                int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
            )
    for child in found:
        yield child
        yield from children(child)


def start_time_of(pid: int) -> str:
    """Return a process's start time, which tells apart reused ids.

    Empty after its end.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] in "ZX":
        return ""
    return fields[19]


def start_command(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start one of :data:`COMMANDS` with its own temporary and state folders."""
    (folder / "tmp").mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(folder / "tmp"),
        "POCKETSERVE_STATE_DIR": str(folder / "state"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pocketserve", *COMMANDS[name]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )


def await_work(process: subprocess.Popen[bytes], temporary: Path) -> dict[int, str]:
    """Wait for a child process and a temporary folder.

    Returns the start times of the child processes.
    """
    deadline = time.monotonic() + LIMIT_S
    never = threading.Event()
    while True:
        pids = list(children(process.pid))
        if pids and any(temporary.iterdir()):
            return {pid: start_time_of(pid) for pid in pids}
        assert process.poll() is None
        assert time.monotonic() < deadline
        never.wait(0.01)


def await_end(start_times: dict[int, str]) -> None:
    """Wait until all of these processes have ended."""
    deadline = time.monotonic() + LIMIT_S
    never = threading.Event()
    for pid, start_time in start_times.items():
        while start_time and start_time_of(pid) == start_time:
            assert time.monotonic() < deadline, pid
            never.wait(0.01)


@pytest.mark.live
@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="looks at processes as Linux shows them",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_cleans_everything_up(
    name: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Its child processes end and its folders are removed.

    A second signal changes nothing.
    """
    process = start_command(name, tmp_path)
    try:
        start_times = await_work(process, tmp_path / "tmp")
        process.send_signal(number)
        process.send_signal(number)
        errors = process.communicate(timeout=LIMIT_S)[1].decode()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in errors
    assert list((tmp_path / "tmp").iterdir()) == []
    await_end(start_times)


def test_ignored_signals_stay_ignored() -> None:
    """As under nohup; other signals are restored after the block."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with tidy_end():
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt), tidy_end():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_does_not_interrupt_the_cleanup() -> None:
    """A repetition soon after the first counts as the same signal."""
    tidied: list[bool] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            tidied.append(True)

    with pytest.raises(KeyboardInterrupt), tidy_end():
        work()
    assert tidied == [True]


def test_a_repeated_signal_takes_effect_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pressing Ctrl-C every second works.

    Each press follows soon after the previous one.
    """
    now = [0.0]
    monkeypatch.setattr(
        "pocketserve.engine.device.signals.time",
        SimpleNamespace(monotonic=lambda: now[0]),
    )
    heard: list[float] = []
    with tidy_end():
        for second in range(5):
            now[0] = float(second)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                heard.append(now[0])
    assert heard == [0.0, 2.0, 4.0]


def test_a_signal_is_deferred_until_a_resource_is_registered() -> None:
    """An unregistered child process would outlive the folder that it writes to."""
    made: list[bool] = []

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            made.append(True)
        made.append(False)

    with pytest.raises(KeyboardInterrupt), tidy_end():
        work()
    assert made == [True]
    with uninterrupted():
        made.append(True)
    assert made == [True, True], "nothing is left over of it"


def test_other_threads_receive_no_signals() -> None:
    """A command may run on such a thread."""
    found: list[bool] = []

    def run() -> None:
        with tidy_end():
            found.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    assert found == [True]
