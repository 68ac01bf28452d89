"""The benchmarks work: not one time is asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

sys.path.append(str(ROOT))

from benchmarks.against_peers import Side, in_blocks
from benchmarks.samples import Comparison, growth, summary
from benchmarks.timing import FULL, Effort


@pytest.mark.parametrize(
    ("rule", "ours", "floor", "goal", "ratio", "verdict"),
    [
        ("most", [3.0, 1.0, 2.0], [2.0], 1.0, 1.0, "met"),
        ("most", [3.0], [2.0], 1.4, 1.5, "MISSED"),
        ("faster", [2.0], [12.0], 6.0, 6.0, "met"),
        ("faster", [2.0], [11.0], 6.0, 5.5, "MISSED"),
        ("least", [95.0], [100.0], 0.9, 0.95, "met"),
        ("least", [80.0], [100.0], 0.9, 0.8, "MISSED"),
        ("most", [9.0], [1.0], None, 9.0, ""),
    ],
)
def test_a_ratio_is_held_against_its_goal(rule, ours, floor, goal, ratio, verdict):
    found = Comparison("X1", "work", "µs", ours, floor, goal, rule)
    assert found.ratio == pytest.approx(ratio)
    assert found.verdict == verdict
    assert found.to_json()["ours"] == ours


def test_a_straight_line_is_found():
    found = growth("X1", "memory", "kB", "model", [1, 2, 4], [12.0, 14.0, 18.0])
    assert (found.slope, found.start, found.r2) == (pytest.approx(2), pytest.approx(10), pytest.approx(1))


def test_the_99th_percentile_is_near_the_end():
    assert summary([float(number) for number in range(1000)], "p99") == 990.0


@pytest.mark.live
@pytest.mark.onnx  # the environment that has no ONNX has no ai-edge-litert either, whose schema makes the models
def test_a_quick_run_measures_both_transports_against_their_floors(tmp_path: Path):
    output = tmp_path / "benchmarks.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "H1,S1", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "against" in done.stdout
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["machine"]["cores"]
    assert {item["kind"] for item in content["results"]} == {"comparison"}, done.stdout + done.stderr
    assert {item["name"] for item in content["results"]} == {"H1", "S1"}
    assert all(len(item["ours"]) == len(item["floor"]) > 1 for item in content["results"])


def test_wake_ups_of_threads_that_ended_are_not_taken_off():
    from benchmarks.idle import count_wake_ups

    assert count_wake_ups({"1": 10, "2": 500}, {"1": 12, "3": 4}) == 2 + 4 + 1


def test_who_does_not_answer_is_given_up_and_nobody_else():
    everywhere = Side(os.getpid(), lambda model: None)  # one process for all: nobody is held still
    asked: list[str] = []

    def measure(name: str, side: Side, effort: Effort) -> list[float]:
        asked.append(name)
        if name == "silent" or (name == "tired" and asked.count(name) > 1):
            raise BlockingIOError
        return [1.0]

    given_up = {"gone": "no answer before"}
    sides = dict.fromkeys(("quick", "silent", "tired", "gone"), everywhere)
    samples = in_blocks(sides, FULL, measure, given_up, 3)
    assert samples == {"quick": [1.0] * 3, "tired": [1.0]}
    assert [asked.count(name) for name in sides] == [3, 1, 2, 0]
    assert set(given_up) == {"gone", "silent", "tired"}
    assert "no answer within" in given_up["silent"]
