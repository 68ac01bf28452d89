"""Test the phone: cores, environment, processes and their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve_simulate.phone.detached_children import descendants
from pocketserve_simulate.phone.device import DEVICES, PhoneModel, map_cores
from pocketserve_simulate.phone.events import Condition, PhoneEvent, combine
from pocketserve_simulate.phone.phone import Phone
from pocketserve_simulate.phone.processes import PhoneError
from pocketserve_simulate.phone.throttle import DutyCycle

from .conftest import QUICK, eventually


def phone_with(fast: int, slow: int) -> PhoneModel:
    return PhoneModel("one", fast, slow, 1.0, 1000)


CORE_MAPPINGS = [
    (4, 4, 8, ((0, 1, 2, 3), (4, 5, 6, 7))),
    (4, 4, 16, ((0, 1, 2, 3), (4, 5, 6, 7))),
    (2, 6, 4, ((0,), (1, 2, 3))),
    (2, 6, 2, ((0,), (1,))),
    (5, 3, 2, ((0,), (1,))),
    (8, 0, 2, ((0, 1), ())),
    (4, 4, 1, ((0,), (0,))),
    (1, 0, 1, ((0,), ())),
]


@pytest.mark.parametrize(
    ("fast", "slow", "desktop", "expected"),
    CORE_MAPPINGS,
)
def test_cores_are_mapped_to_the_desktops(fast, slow, desktop, expected):
    cores = map_cores(phone_with(fast, slow), range(desktop))
    assert (cores.fast, cores.slow) == expected
    assert bool(set(cores.fast) & set(cores.slow)) == (desktop == 1 and slow > 0)


@given(
    st.integers(1, 16),
    st.integers(0, 16),
    st.sets(st.integers(0, 63), min_size=1, max_size=24),
)
def test_every_phone_fits_every_desktop(fast, slow, desktop):
    listed = sorted(desktop)
    cores = map_cores(phone_with(fast, slow), listed)
    assert cores.fast
    assert len(cores.fast) <= fast
    assert len(cores.slow) <= slow
    assert bool(cores.slow) == bool(slow)
    assert set(cores.all) <= desktop
    assert set(cores.background) <= desktop
    assert cores.background
    assert len(listed) == 1 or not set(cores.fast) & set(cores.slow)


def test_knobs_have_limits():
    changed = DEVICES["mid"].with_knobs(speed=0.1, fast_cores=None)
    assert changed.speed == 0.1
    assert changed.fast_cores == 4
    assert changed.name == "mid, changed"
    assert DEVICES["mid"].with_knobs(speed=None) == DEVICES["mid"]
    for wrong in (
        {"speed": 0.0},
        {"speed": 1.5},
        {"fast_cores": 0},
        {"memory_mb": 1},
        {"slow_cores": -1},
    ):
        with pytest.raises(ValueError, match="of a phone must be between"):
            DEVICES["mid"].with_knobs(**wrong)


def test_conditions_are_combined():
    heat = Condition(speed=0.5, heat=80.0)
    low = Condition(battery={"percentage": 8})
    both = combine(
        [
            heat,
            Condition(speed=0.5, memory_mb=100),
            low,
            Condition(frozen=True, memory_mb=50, clock=3.0),
        ]
    )
    assert both.speed == 0.25
    assert both.heat == 80.0
    assert both.memory_mb == 50
    assert both.frozen is True
    assert both.clock == 3.0
    assert both.battery == {"percentage": 8}
    assert both.api_answers
    assert not both.background
    assert combine([]).speed == 1.0
    assert combine([]).memory_mb is None


class Sent:
    """Records signals, and the resulting state of the processes."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.enough = threading.Event()

    def __call__(self, number: int) -> bool:
        self.signals.append(number)
        if len(self.signals) > 20:
            self.enough.set()
        return True

    @property
    def stopped(self) -> bool:
        return self.signals[-1] == signal.SIGSTOP


def test_the_duty_cycle_stops_and_continues():
    """It stops processes for a share of the time, pauses in a freeze, and ends with
    them running.
    """
    sent = Sent()
    cycle = DutyCycle(sent)
    try:
        cycle.set(0.5, False)
        assert sent.enough.wait(120)
        cycle.set(0.5, True)
        assert sent.stopped
        after = len(sent.signals)
        cycle.set(0.5, True)
        # Nothing else was sent in between.
        assert sent.signals[after:] == [signal.SIGSTOP]
    finally:
        cycle.close()
    pairs = list(zip(sent.signals, sent.signals[1:], strict=False))
    assert pairs.count((signal.SIGSTOP, signal.SIGCONT)) >= 8
    assert not sent.stopped
    after = len(sent.signals)
    cycle.set(1.0, False)
    assert len(sent.signals) == after + 1


def run_python(folder: Path, code: str, **options) -> str:
    """Run Python on the phone and return its output."""
    with Phone(QUICK, folder, **options) as phone:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=phone.image.environment(os.environ),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_the_phone_looks_like_android(tmp_path):
    """Our own code, platformdirs and Termux's programs agree."""
    code = (
        "import os, subprocess, tempfile, platformdirs; from pocketserve import system;"
        "from pocketserve.engine.device.cores import count_fast, readable_memory, top_speed_khz, usable_cores;"
        "print(system.platform(), platformdirs.user_state_path('x'), tempfile.gettempdir(), readable_memory());"
        "print(top_speed_khz(usable_cores()[0]), subprocess.check_output(['termux-battery-status'])[:20]);"
        "print(subprocess.check_output(['getprop', 'ro.build.version.sdk'], text=True))"
    )
    first, second, third, *_ = run_python(tmp_path / "phone", code).splitlines()
    files = tmp_path / "phone/data/data/com.termux/files"
    platform, state, temporary, memory = first.split()
    assert platform == "android"
    assert state == f"{files}/home/.local/state/x"
    assert temporary == f"{files}/usr/tmp"
    assert int(memory) == QUICK.memory_mb * 10**6 // 1024 * 1024
    assert second.startswith(str(QUICK.fast_khz))
    assert "present" in second
    assert third == str(QUICK.api)


def test_the_desktops_settings_do_not_apply(tmp_path, monkeypatch):
    """A phone has its own state and token, but the desktop's packages."""
    for name in ("STATE_DIR", "TOKEN_FILE", "TOKEN", "URL", "HTTP_PORT"):
        monkeypatch.setenv(f"POCKETSERVE_{name}", str(tmp_path / "desktop"))
    monkeypatch.setenv("POCKETSERVE_TFJS_MODULES", "/packages")
    code = "import os; print(sorted(name for name in os.environ if name.startswith('POCKETSERVE')))"
    seen = run_python(tmp_path / "phone", code)
    assert seen == "['POCKETSERVE_SIMULATION', 'POCKETSERVE_TFJS_MODULES']\n"
    code = (
        "from pocketserve.config import load_config; c = load_config({}); "
        "print(c.state_dir, c.token_file, c.http_port)"
    )
    home = tmp_path / "phone/data/data/com.termux/files/home/.local/state/pocketserve"
    assert run_python(tmp_path / "phone", code) == f"{home} {home / 'token'} 8470\n"


def test_a_sitecustomize_of_the_desktop_still_runs(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text(
        "import os; os.environ['SEEN'] = 'yes'"
    )
    path = os.pathsep.join(
        filter(None, [str(tmp_path / "own"), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("PYTHONPATH", path)
    assert (
        run_python(tmp_path / "phone", "import os; print(os.environ['SEEN'])")
        == "yes\n"
    )


def test_the_phone_has_its_own_clock(tmp_path):
    """All wall-clock functions and ``logging`` jump; monotonic time doesn't."""
    code = (
        "import logging, sys, time; from pocketserve.system import simulation; import struct;"
        "before, mono = time.time(), time.monotonic();"
        "open(simulation() / 'clock', 'r+b').write(struct.pack('d', 1e8));"
        "now = [time.time(), time.time_ns() / 1e9, time.mktime(time.localtime()),"
        " time.mktime(time.strptime(time.ctime())), time.mktime(time.strptime(time.strftime('%c')))];"
        "assert all(9e7 < t - before < 1.1e8 for t in now), now;"
        "assert time.gmtime(0).tm_year == 1970 and time.strftime('%Y', time.gmtime(0)) == '1970';"
        "assert time.monotonic() - mono < 9e7;"
        "logging.basicConfig(stream=sys.stdout, format='%(asctime)s'); logging.warning('x')"
    )
    assert run_python(tmp_path / "phone", code).strip()


def test_a_second_run_shares_the_phone(tmp_path):
    """It finds the first run's state.

    After both have ended, the phone is reset.
    """
    battery = tmp_path / "battery.json"
    with Phone(QUICK, tmp_path) as phone:
        phone.begin(PhoneEvent("battery"))
        with Phone(QUICK, tmp_path) as guest:
            assert guest.image.is_guest
            assert not phone.image.is_guest
        assert '"percentage": 8' in battery.read_text()
    with Phone(QUICK, tmp_path) as phone:
        assert not phone.image.is_guest
        assert '"percentage": 76' in battery.read_text()


@pytest.mark.live
def test_a_command_runs_and_ends(tmp_path):
    with Phone(QUICK, tmp_path / "phone", output=tmp_path / "log") as phone:
        assert phone.processes.pid is None
        assert phone.memory_bytes() is None
        phone.processes.start(["token"])
        assert phone.processes.wait(60) == 0
        assert [(gone.code, gone.cause) for gone in phone.processes.exits] == [(0, "")]
        phone.processes.start(["--version"])
        assert phone.processes.wait(60) == 0
        assert phone.summary().startswith("mid: 4 fast and 4 slow cores")
    assert len((tmp_path / "log").read_text().splitlines()[0]) > 40
    with pytest.raises(PhoneError, match="closed"):
        phone.processes.start(["token"])
    phone.processes.revive()
    phone.close()
    assert phone.processes.pid is None


@pytest.mark.live
def test_a_failing_command_is_started_again_by_the_supervisor_only(tmp_path):
    with Phone(QUICK, tmp_path / "phone", output=tmp_path / "log") as phone:
        phone.processes.start(["serve", str(tmp_path / "none")])
        assert phone.processes.wait(60) == 1
        phone.processes.revive()
        eventually(lambda: len(phone.processes.exits) >= 3)
        phone.processes.kill()
        assert phone.processes.wait(60) is not None


@pytest.mark.live
def test_processes_end_with_the_simulation(tmp_path):
    """A stopped process would otherwise stay forever."""
    code = (
        "import sys, os, pathlib; from pocketserve_simulate.phone.phone import Phone;"
        "from pocketserve_simulate.phone.events import PhoneEvent;"
        "from pocketserve_simulate.phone.device import DEVICES; phone = Phone(DEVICES['mid'], "
        "pathlib.Path(sys.argv[1]));"
        "phone.processes.start(['serve', '--http-port', '0', '--socket-port', '0']); phone.begin(PhoneEvent('freeze'));"
        "print(phone.processes.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "phone")]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )
    assert done.returncode == -9
    pid = int(done.stdout)

    def gone() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"

    eventually(gone)


@pytest.mark.live
def test_the_desktops_files_are_hidden(tmp_path):
    """This needs support by the system."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there/models").mkdir()
    absent = [
        tmp_path / "there",
        Path("/proc/stat"),
        tmp_path / "phone",
        tmp_path / "never",
    ]
    with Phone(
        QUICK, tmp_path / "phone", output=tmp_path / "log", absent=absent
    ) as phone:
        assert set(phone.covers) <= {str(tmp_path / "there"), "/proc/stat"}
        phone.processes.start(
            [
                "serve",
                str(tmp_path / "there/models"),
                "--http-port",
                "0",
                "--socket-port",
                "0",
            ]
        )
        if str(tmp_path / "there") in phone.covers:
            assert phone.processes.wait(60) == 1
            assert "cannot be read" in (tmp_path / "log").read_text()
        else:
            eventually(lambda: "serving" in (tmp_path / "log").read_text())


def state_of(pid: int) -> str:
    """Return Linux's process state: T is stopped, empty is ended."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    if found in "ZX":
        return ""
    return found


def start_strays_with_python(folder: Path, pids: Path) -> None:
    """Write a sitecustomize that starts a shell and a child in their own session."""
    new = f"{pids}.new"
    shell = f"sleep 600 & echo $$ $! > {new}; mv {new} {pids}; wait"
    start = f"subprocess.Popen(['sh', '-c', {shell!r}], start_new_session=True)"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import subprocess; {start}")


@pytest.mark.live
def test_detached_children_share_the_apps_state(tmp_path, monkeypatch):
    """They freeze, thaw and end with it, as on Android."""
    pids = tmp_path / "pids"
    start_strays_with_python(tmp_path / "own", pids)
    path = [str(tmp_path / "own")]
    if os.environ.get("PYTHONPATH"):
        path.append(os.environ["PYTHONPATH"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    with Phone(QUICK, tmp_path / "phone", output=tmp_path / "log") as phone:
        phone.processes.start(["serve", "--http-port", "0", "--socket-port", "0"])
        eventually(pids.exists)
        strays = [int(pid) for pid in pids.read_text().split()]
        assert descendants(phone.processes.pid) >= set(strays)

        def states() -> list[str]:
            return [state_of(pid) for pid in strays]

        freeze = PhoneEvent("freeze")
        phone.begin(freeze)
        eventually(lambda: states() == ["T", "T"])
        phone.end(freeze)
        eventually(lambda: "T" not in states())
        assert all(states())

        phone.begin(freeze)
        phone.processes.kill()
        eventually(lambda: not any(states()))
    assert descendants(os.getpid()).isdisjoint(strays)
