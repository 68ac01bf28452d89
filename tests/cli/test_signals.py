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
    """Return a process's start time, which tells apart reused ids; empty after its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


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
    """One signal ends its child processes and removes its folders, even if a second
    follows.
    """
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path / "tmp"),
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state"),
    }
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "pocketserve", *COMMANDS[name]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        deadline, never = time.monotonic() + LIMIT_S, threading.Event()
        while not (any((tmp_path / "tmp").iterdir()) and list(children(process.pid))):
            assert process.poll() is None and time.monotonic() < deadline
            never.wait(0.01)
        begun = {child: start_time_of(child) for child in children(process.pid)}
        process.send_signal(number)
        process.send_signal(number)
        said = process.communicate(timeout=LIMIT_S)[1].decode()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in said
    assert list((tmp_path / "tmp").iterdir()) == []
    while left := [
        child
        for child, known in begun.items()
        if known and start_time_of(child) == known
    ]:
        assert time.monotonic() < deadline, left
        never.wait(0.01)


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
    """Pressing Ctrl-C every second works, although each press follows soon after the
    previous.
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
