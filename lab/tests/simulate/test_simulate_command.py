"""Use ``pocketserve simulate`` with commands, timelines, typed lines and Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.cli import main
from pocketserve.state.run_lock import killed
from pocketserve_client import Client, ServerUnreachableError

from .conftest import WIDTH, eventually, free_ports, width

pytestmark = [pytest.mark.live, pytest.mark.simulated]
SIMULATE = [sys.executable, "-m", "pocketserve", "simulate"]


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SIMULATE, *words],
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )


class Run:
    """A running ``pocketserve simulate … -- serve``."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.ports = free_ports()
        self.log = folder / "log"
        self.ready = folder / "ready.json"
        self.phone = folder / "phone"
        serve = [
            "serve",
            str(MODELS),
            f"--http-port={self.ports[0]}",
            f"--socket-port={self.ports[1]}",
        ]
        command = [
            *SIMULATE,
            "--speed",
            "1",
            "--folder",
            str(self.phone),
            *words,
            "--",
            *serve,
        ]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, f"--ready-file={self.ready}"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    def await_ready(self) -> None:
        eventually(lambda: self.ready.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.text

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def says(self, what: str) -> None:
        """Wait for a line of output."""
        eventually(lambda: what in self.text or self.process.poll() is not None)
        assert what in self.text, self.text

    def client(self, reconnect: float = 60.0) -> Client:
        return Client(
            f"socket://127.0.0.1:{self.ports[1]}",
            token_file=self.state / "token",
            reconnect=reconnect,
        )

    @property
    def state(self) -> Path:
        return self.phone / "data/data/com.termux/files/home/.local/state/pocketserve"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(120)
        if self.process.stdin is not None:
            self.process.stdin.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*words: str) -> Run:
        runs.append(Run(tmp_path, *words))
        return runs[-1]

    yield start
    for each in runs:
        each.close()


def test_the_doctor_examines_the_phone():
    """It finds Termux, cores, memory and a battery.

    Its exit code is passed on.
    """
    done = simulate(
        "--device", "budget", "--memory", "200M", "--", "doctor", str(MODELS), "--json"
    )
    findings = {}
    for finding in json.loads(done.stdout)["findings"]:
        findings[finding["subject"]] = finding["sentence"]
    assert "in Termux (android" in findings["python"]
    assert "GHz" in findings["cores"]
    assert "the battery has 76 %" in findings["battery"]
    assert "Android will end the server" in findings["memory"]
    assert "budget, changed: 2 fast and 6 slow cores" in done.stderr
    assert "200 MB" in done.stderr
    assert simulate("--", "predict").returncode == 2


def test_a_blocked_reader_does_not_delay_events() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b" " * 4096)
    done = subprocess.run(
        [*SIMULATE, "--", "token", "--help"],
        stdout=subprocess.PIPE,
        stderr=writer,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    assert b"usage: pocketserve token" in done.stdout
    os.close(reader)
    os.close(writer)


def test_typed_events_begin_and_end(run):
    """A killed server can be restarted; `quit` exits with 0."""
    one = run()
    one.await_ready()
    with one.client() as client:
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        one.type("background")
        one.says("background begins\n")
        one.type("status")
        one.says("speed 40%; under way: background")
        one.type("end background")
        one.says("background ends")
        one.type("freeze")
        one.says("freeze begins")
        one.type("thaw")
        one.says("freeze ends")
        one.type("kill")
        one.says("kill begins")
        one.type("status")
        one.says("no process; speed 100%; under way: kill")
        one.type("revive")
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        one.type("freeze 0.2")
        one.says("freeze begins, for 0.2 s")
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)  # thawed automatically
        for line, answer in {
            "quake": "there is no event 'quake'",
            "freeze soon": "seconds must be a number",
            "end background": "no background is under way",
            "end": "no event is under way",
            "help": "quit             ends the command",
        }.items():
            one.type(line)
            one.says(answer)
    one.type("quit")
    assert one.process.wait(60) == 0
    assert "was killed, most likely by Android" in one.text
    assert killed(one.state) is not None


def found(client: Client) -> bool:
    """Return whether the server is there.

    A client only searches for a server that it has found before.
    """
    try:
        return client.is_ready()
    except ServerUnreachableError:
        return False


def test_a_timeline_of_events_is_run(run):
    one = run("--events", "kill@1+0.1,freeze@1.5+0.2,clock_jump@2+0.1:by=60")
    one.await_ready()
    assert one.process.stdin is not None
    one.process.stdin.close()  # no input
    one.process.stdin = None
    for event in ("kill", "freeze", "clock_jump"):
        one.says(f"{event} begins, for 0.")
        one.says(f"{event} ends")
    with one.client() as client:
        # The new process may start later than all of these.
        eventually(lambda: found(client))
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(60) == 0
    assert "ended at once" not in one.text


def test_a_frozen_server_can_be_ended(run):
    """SIGTERM ends everything, though the server can't handle it."""
    one = run()
    one.await_ready()
    one.type("freeze")
    one.says("freeze begins")
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0


def test_a_server_too_large_for_the_phone_is_killed(run):
    """The run exits with 1 and explains it."""
    one = run("--memory", "32M")
    eventually(lambda: one.ready.exists() or one.process.poll() is not None)
    # The bare server fits, the runtime and a model don't.
    if one.process.poll() is None:
        with pytest.raises(ServerUnreachableError), one.client(0.0) as client:
            width(client)
    assert one.process.wait(60) == 1
    assert "ended by signal 9: it held more memory than the phone has" in one.text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "name either a command, as in simulate -- serve models, or a scenario"),
        (
            ["--device", "brick", "--", "doctor"],
            "there is no device 'brick'; there are budget, mid, flagship",
        ),
        (
            ["--device", "flagshp", "--", "doctor"],
            "mid, flagship; did you mean 'flagship'?",
        ),
        (["--events", "frezee@1", "--", "doctor"], "did you mean 'freeze'?"),
        (["--scenario", "comute"], "worst-day; did you mean 'commute'?"),
        (
            ["--speed", "2", "--", "doctor"],
            "speed of a phone must be between 0.02 and 1, not 2.0",
        ),
        (
            ["--memory", "much", "--", "doctor"],
            "--memory must be a size such as 700M, not 'much'",
        ),
        (["--events", "nap@1", "--", "doctor"], "there is no event 'nap'"),
    ],
)
def test_wrong_usage_is_explained(capsys, words, expected):
    assert main(["simulate", *words]) == 1
    assert expected in capsys.readouterr().err


def test_nothing_is_left_behind(tmp_path):
    """The phone's folder is removed unless it was named."""
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "POCKETSERVE_TOKEN_FILE": str(tmp_path / "desktop"),
    }
    command = [*SIMULATE, "--", "token"]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert re.search(
        rb"the phone has its own settings: .*POCKETSERVE_TOKEN_FILE.* stay on the desktop",
        done.stderr,
    )
