"""Low power: the rule, battery readings, and the engine's reaction."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import MODELS
from pocketserve.engine.device import battery as battery_module
from pocketserve.engine.device.battery import PROGRAM, Battery, Reading, read_status
from pocketserve.engine.device.power import (
    ASK_RARELY_S,
    ASK_S,
    ASKED,
    BATTERY,
    CHECK_INTERVAL_S,
    HEAT,
    STALE_S,
    PowerWatch,
    reasons_for,
)
from pocketserve.engine.engine import Engine
from pocketserve.engine.lifecycle.handle import EngineOptions
from pocketserve.repository.scan import scan
from pocketserve.runtimes.registry import FORMATS, runtime_for
from pocketserve_wire import ApiError, ErrorCode

LOW = 15.0
HOT = 42.0
TIMEOUT_S = 120.0


# --- The policy


@pytest.mark.parametrize(
    ("reading", "before", "reasons"),
    [
        (Reading(), {BATTERY, HEAT}, set()),  # without readings, nothing changes
        (Reading(80, False, 30), set(), set()),
        (Reading(14.9, False, 30), set(), {BATTERY}),
        (Reading(15, False, 30), set(), set()),
        (Reading(5, True, 30), {BATTERY}, set()),  # a charger ends it at once
        (Reading(5, None, None), set(), {BATTERY}),  # unknown charging state
        (Reading(19, False), {BATTERY}, {BATTERY}),
        (Reading(20, False), {BATTERY}, set()),
        (Reading(19, False), {HEAT}, set()),
        (Reading(80, True, 42), set(), {HEAT}),
        (Reading(80, True, 41.9), set(), set()),
        (Reading(80, True, 39), {HEAT}, {HEAT}),
        (Reading(80, True, 38.9), {HEAT}, set()),
        (Reading(3, False, 50), set(), {BATTERY, HEAT}),
    ],
)
def test_low_power_reasons(reading, before, reasons):
    assert reasons_for(reading, frozenset(before), LOW, HOT) == reasons


def test_limits_of_zero_are_never_reached():
    assert reasons_for(Reading(0.0, False, 99.0), frozenset(), 0.0, 0.0) == set()


READINGS = st.builds(
    Reading,
    st.none() | st.floats(0, 100),
    st.none() | st.booleans(),
    st.none() | st.floats(-40, 120),
)


@given(READINGS, st.frozensets(st.sampled_from([BATTERY, HEAT])))
def test_a_repeated_reading_changes_nothing(reading, before):
    once = reasons_for(reading, before, LOW, HOT)
    assert reasons_for(reading, once, LOW, HOT) == once


@given(
    st.lists(st.floats(LOW, LOW + 4.9), min_size=1),
    st.lists(st.floats(HOT - 2.9, HOT - 0.1), min_size=1),
)
def test_readings_near_a_limit_do_not_toggle_low_power(charges, heats):
    for reasons in (frozenset(), frozenset([BATTERY, HEAT])):
        now = reasons
        for charge, heat in zip(charges, heats, strict=False):
            now = reasons_for(Reading(charge, False, heat), now, LOW, HOT)
            assert now == reasons


# --- Reading


def supply(root: Path, name: str = "battery", **files: str) -> None:
    folder = root / "sys/class/power_supply" / name
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text + "\n")


def zone(root: Path, number: int, kind: str, temp: str) -> None:
    folder = root / f"sys/class/thermal/thermal_zone{number}"
    folder.mkdir(parents=True)
    (folder / "type").write_text(kind + "\n")
    (folder / "temp").write_text(temp + "\n")


def nowhere(name: str) -> None:
    return None


def test_read_the_kernels_files(tmp_path):
    supply(
        tmp_path,
        type="Battery",
        capacity="14",
        status="Discharging",
        temp="431",
    )
    supply(tmp_path, "usb", type="USB", online="0")
    supply(
        tmp_path,
        "mouse",
        type="Battery",
        scope="Device",
        capacity="100",
        status="Charging",
    )
    zone(tmp_path, 0, "cpu-0-0", "95000")
    found = Battery(tmp_path, nowhere)
    assert found.read_files() == Reading(14.0, False, 43.1)
    assert not found.tells_nothing
    (tmp_path / "sys/class/power_supply/battery/capacity").write_text("50\n")
    assert found.read_files().charge == 50.0


def test_read_the_battery_thermal_zone(tmp_path):
    zone(tmp_path, 7, "battery", "44500")
    assert Battery(tmp_path, nowhere).read_files() == Reading(None, None, 44.5)


@pytest.mark.parametrize(
    ("files", "reading"),
    [
        ({}, Reading()),
        ({"capacity": "much", "status": "Unknown", "temp": "hot"}, Reading()),
        # A missing sensor reports 0.
        (
            {"capacity": "", "status": "", "temp": "0"},
            Reading(),
        ),
        ({"temp": "44500"}, Reading()),  # an unknown unit is ignored
        ({"temp": "--5", "capacity": "5e1"}, Reading()),
        # 0 K, and -1 from an unknown sensor.
        (
            {"capacity": "-1", "temp": "-2731"},
            Reading(),
        ),
        ({"capacity": "101"}, Reading()),
        # A charger that rests at a limit.
        (
            {"status": "Not charging"},
            Reading(None, True, None),
        ),
        ({"status": "Full", "capacity": "100"}, Reading(100.0, True, None)),
    ],
)
def test_malformed_files(tmp_path, files, reading):
    supply(tmp_path, type="Battery", **files)
    assert Battery(tmp_path, nowhere).read_files() == reading


def test_a_device_without_a_battery_has_no_reading(tmp_path):
    assert Battery(tmp_path, nowhere).tells_nothing
    zone(tmp_path, 0, "x86_pkg_temp", "60000")
    assert Battery(tmp_path, nowhere).tells_nothing


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (
            '{"percentage": 9, "plugged": "UNPLUGGED", "temperature": 31.5}',
            Reading(9.0, False, 31.5),
        ),
        ('{"percentage": 9, "plugged": "PLUGGED_AC"}', Reading(9.0, True, None)),
        ('{"percentage": "9", "plugged": 3, "temperature": NaN}', Reading()),
        ('{"percentage": -1, "temperature": 4310}', Reading()),
        ('{"percentage": true, "temperature": -273.1}', Reading()),
        ('{"percentage": 1%s}' % ("0" * 400), Reading()),  # exceeds every float
        ("", None),
        ("[]", None),
        ("{}", None),
        ("[" * 100_000, None),
    ],
)
def test_parse_the_output_of_termux(text, reading):
    assert read_status(text) == reading


def program(folder: Path, script: str) -> str:
    path = folder / PROGRAM
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path, monkeypatch):
    path = program(
        tmp_path,
        f"sleep 300 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/child; sleep 300",
    )
    # A busy machine may not start the child within the first one.
    for limit_s in (
        0.3,
        3.0,
        TIMEOUT_S,
    ):
        monkeypatch.setattr(battery_module, "PROGRAM_TIMEOUT_S", limit_s)
        assert Battery(tmp_path, lambda name: path).ask_program() is None
        if (tmp_path / "child").exists():
            break
    await_end(int((tmp_path / "child").read_text()))


def test_a_program_that_hangs_does_not_outlive_the_server(tmp_path):
    os.mkfifo(tmp_path / "begun")
    path = program(tmp_path, f"echo $$ > {tmp_path}/begun; sleep 300")
    watch = PowerWatch(
        "auto", LOW, HOT, open_battery=lambda: Battery(tmp_path, lambda name: path)
    )
    watch.look()
    pid = int((tmp_path / "begun").read_text())  # waits until it has started
    watch.close()
    await_end(pid)
    assert not watch.due(1e12)


def await_end(pid: int) -> None:
    """Wait until a killed process is gone or is a zombie."""
    deadline = os.times().elapsed + TIMEOUT_S
    while os.times().elapsed < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
    raise AssertionError(f"process {pid} still runs")


# --- The watch


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Planted(Battery):
    """A fake battery whose program answers at once; None is no answer."""

    def __init__(
        self, files: Reading, answer: Reading | None = None, program: str | None = None
    ) -> None:
        super().__init__(Path("/nowhere"), lambda name: program)
        self._supplies = [Path("/nowhere")]
        self.files = files
        self.answer = answer
        self.asked = 0

    def read_files(self) -> Reading:
        return self.files

    def ask_program(self) -> Reading | None:
        self.asked += 1
        return self.answer


def watch_of(battery: Battery, clock: Clock) -> PowerWatch:
    return PowerWatch("auto", LOW, HOT, clock, lambda: battery)


def check_battery(watch: PowerWatch) -> None:
    """Check the battery and wait for the program's answer."""
    watch.look()
    if watch._asker is not None:
        watch._asker.join(TIMEOUT_S)
        assert not watch._asker.is_alive()


def test_files_are_read_once_a_minute(caplog):
    caplog.set_level("INFO")
    clock = Clock()
    battery = Planted(Reading(10, False, 30))
    watch = watch_of(battery, clock)
    changes: list[frozenset[str]] = []
    watch.on_change = lambda: changes.append(watch.reasons)
    assert watch.due(clock.now)
    assert not watch.low
    check_battery(watch)
    assert watch.low
    assert watch.describe() == "the battery is at 10 %"
    assert not watch.due(clock.now)
    battery.files = Reading(10, True, 30)
    check_battery(watch)
    assert watch.low  # not read yet
    clock.now += CHECK_INTERVAL_S
    check_battery(watch)
    assert not watch.low
    assert changes == [{BATTERY}, frozenset()]
    assert [record.getMessage() for record in caplog.records] == [
        "low power (the battery is at 10 %): fewer threads, and background requests "
        "are rejected",
        "power is no longer low",
    ]
    clock.now += CHECK_INTERVAL_S
    check_battery(watch)
    assert len(caplog.records) == 2


def test_a_failing_program_is_run_less_and_less_often():
    clock = Clock()
    battery = Planted(Reading(), Reading(50, False, 45), program="x")
    watch = watch_of(battery, clock)
    check_battery(watch)
    assert battery.asked == 1
    assert watch.reasons == {HEAT}
    clock.now += ASK_S - 1
    check_battery(watch)
    assert battery.asked == 1
    battery.answer = None
    waits = []
    for _ in range(6):
        before = clock.now
        while not watch.due(clock.now):
            clock.now += 1
        waits.append(clock.now - before)
        check_battery(watch)
    assert waits == [1, 2 * ASK_S, 4 * ASK_S, 8 * ASK_S, ASK_RARELY_S, ASK_RARELY_S]
    assert not watch.low  # its first answer is stale by now


def test_one_failure_of_the_program_keeps_its_last_answer():
    clock = Clock()
    battery = Planted(Reading(), Reading(5, False, 30), program="x")
    watch = watch_of(battery, clock)
    check_battery(watch)
    battery.answer = None
    clock.now += ASK_S
    check_battery(watch)
    assert watch.low
    assert battery.asked == 2


def test_a_desktop_is_checked_only_once():
    clock = Clock()
    watch = watch_of(Battery(Path("/nowhere"), nowhere), clock)
    watch.look()
    assert not watch.low
    assert not watch.due(1e12)


@pytest.mark.parametrize(
    ("mode", "low"),
    [
        ("on", True),
        ("off", False),
    ],
)
def test_a_setting_disables_the_checks(mode, low):
    def never() -> Battery:
        raise AssertionError("the battery was looked for")

    watch = PowerWatch(mode, LOW, HOT, open_battery=never)
    watch.look()
    assert watch.low is low
    assert not watch.due(1e12)
    assert watch.reasons == ({ASKED} if low else set())


def refusal(watch: PowerWatch) -> ApiError | None:
    try:
        watch.refuse_background()
    except ApiError as error:
        return error
    return None


def test_a_rejection_says_when_to_retry():
    clock = Clock()
    battery = Planted(Reading(10, False, 43))
    watch = watch_of(battery, clock)
    assert refusal(watch) is None
    check_battery(watch)
    clock.now += 20
    refused = refusal(watch)
    assert refused is not None
    assert refused.code is ErrorCode.LOW_POWER
    assert refused.retry_after_s == CHECK_INTERVAL_S - 20
    assert "the battery is at 10 % and the battery has 43 °C" in refused.message
    clock.now += STALE_S
    assert refusal(watch) is None  # no longer known
    asked = refusal(PowerWatch("on"))
    assert asked is not None
    assert asked.retry_after_s
    assert "setting low_power" in asked.message


# --- The engine


@pytest.fixture
def opened():
    engines: list[Engine] = []

    def start(watch: PowerWatch, **options: int) -> Engine:
        settings = {
            "memory_budget": 10**9,
            "keep_alive": 0.0,
            "threads": 4,
            "queue_limit": 4,
            "max_image_pixels": 10**6,
        }
        engines.append(
            Engine(EngineOptions(**settings | options), watch._clock, power=watch)
        )
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def threads_of(engine: Engine, models: Path = MODELS) -> int:
    entry = scan(models)["petals"]
    with engine.use(entry, entry.versions["tflite"], 1e9) as running:
        return running.model.threads


def until(condition) -> None:
    done = threading.Event()
    deadline = os.times().elapsed + TIMEOUT_S
    while not condition():
        assert os.times().elapsed < deadline
        done.wait(0.005)


def test_low_power_halves_a_models_threads(opened):
    clock = Clock()
    battery = Planted(Reading(10, False, 30))
    engine = opened(watch_of(battery, clock))
    assert threads_of(engine) == 2
    slots = engine._scheduler.policy.slots
    battery.files = Reading(10, True, 30)
    clock.now += CHECK_INTERVAL_S
    # a request notices the change, the reaper applies it
    until(lambda: threads_of(engine) == 4)
    assert engine._scheduler.policy.slots >= slots
    battery.files = Reading(90, False, 50)
    clock.now += CHECK_INTERVAL_S
    until(lambda: threads_of(engine) == 2)


def test_low_power_halves_a_manifests_threads(opened, models_copy):
    manifest = models_copy / "petals" / "model.toml"
    manifest.write_text("threads = 3\n" + manifest.read_text())
    clock = Clock()
    battery = Planted(Reading(90, False, 30))
    engine = opened(watch_of(battery, clock))
    assert threads_of(engine, models_copy) == 3
    battery.files = Reading(10, False, 30)
    clock.now += CHECK_INTERVAL_S
    until(lambda: threads_of(engine, models_copy) == 1)


def test_low_power_keeps_at_least_one_thread(opened):
    assert threads_of(opened(PowerWatch("on"), threads=1)) == 1


def test_runtimes_with_fixed_threads_are_skipped():
    fixed = set()
    for kind in FORMATS:
        if kind.runtime and getattr(runtime_for(kind), "fixed_threads", False):
            fixed.add(kind.name)
    assert fixed == {"executorch", "keras", "savedmodel"}
