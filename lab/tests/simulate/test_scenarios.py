"""Run scenarios to their end: all answers are right and service resumes."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import pytest

from pocketserve_simulate.cli import run_scenario
from pocketserve_simulate.scenarios.scenario import read_scenario, shipped

pytestmark = [pytest.mark.live, pytest.mark.simulated]

SHORT = """
# One freeze and one kill.
description = "short"
device = "mid"
seconds = 7
recovery = 5  # seconds; this test runs beside others
[server]
load = ["petals"]
[[streams]]
name = "keyboard"
model = "petals"
rate = 10
[[streams]]
name = "scanner"
client = "http"
model = "digits"
ask = "pictures"
rate = 5
[[events]]
kind = "freeze"
at = 0.5
seconds = 0.4
[[events]]
kind = "kill"
at = 1.5
seconds = 0.3
"""


def run(scenario: str, report: Path) -> dict:
    code = run_scenario(
        argparse.Namespace(scenario=scenario, report=str(report), json=False)
    )
    content = json.loads((report / "report.json").read_text())
    broken = [promise for promise in content["promises"] if not promise["kept"]]
    assert broken == [], content["recoveries"]
    assert code == 0
    assert (report / "timeline.png").stat().st_size > 10_000
    return content


def test_a_short_scenario_has_a_full_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has a freeze and a kill, tables, a report and a picture."""
    path = tmp_path / "short.toml"
    path.write_text(SHORT)
    content = run(str(path), tmp_path / "report")
    assert [event["kind"] for event in content["events"]] == ["freeze", "kill"]
    assert [item["cause"] for item in content["exits"]] == ["kill"]
    assert len(content["lives"]) == 2
    printed = capsys.readouterr().out
    assert "short on a mid phone: 7 s, 2 apps" in printed
    assert "every answer is right and belongs to its own request" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_freeze_leaves_nothing(tmp_path: Path, number: int) -> None:
    path = tmp_path / "frozen.toml"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path.write_text(
        'seconds = 60\n[[streams]]\nname = "a"\nmodel = "petals"\nrate = 9\ntimeout = 0.3\nreconnect = 0\n'
        '[[events]]\nkind = "freeze"\nat = 0\nseconds = 50\n'
    )
    command = [sys.executable, "-m", "pocketserve", "simulate", "--scenario", str(path)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stderr is not None
        assert any("freeze begins" in line for line in process.stderr)
        process.send_signal(number)
        assert process.wait(60) == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.soak
def test_shipped_scenarios_keep_every_promise(tmp_path: Path) -> None:
    """Three phones run at a time. Recovery may take longer than two seconds, since
    other work uses the cores and a start is mostly computing.
    """
    names = shipped()
    assert len(names) == 3
    with ThreadPoolExecutor(len(names)) as pool:
        endings = list(pool.map(run_patiently, names, [tmp_path] * len(names)))
    for name, done in zip(names, endings, strict=True):
        assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
        content = json.loads((tmp_path / name / "report.json").read_text())
        assert all(promise["kept"] for promise in content["promises"])
        assert (
            len(content["recoveries"])
            == len(content["events"])
            == len(read_scenario(name).events)
        )


def run_patiently(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a copy of a shipped scenario that allows ten seconds for each recovery."""
    text = (
        resources.files("pocketserve_simulate.scenarios") / f"{name}.toml"
    ).read_text()
    longer = re.compile(r"^seconds = (\d+)$", re.MULTILINE)
    path = folder / f"{name}.toml"
    path.write_text(
        longer.sub(
            lambda found: f"seconds = {int(found[1]) + 8}\nrecovery = 10", text, count=1
        )
    )
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "simulate",
        "--scenario",
        str(path),
        "--report",
        str(folder / name),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)
