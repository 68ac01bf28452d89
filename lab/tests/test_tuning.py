"""Test ``bench --tune`` with given times, and with one short real run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import MODELS
from pocketserve.cli import main
from pocketserve.repository.manifest import Manifest, parse_manifest
from pocketserve_lab import tuning
from pocketserve_lab.measurement import MIN_GAIN, MIN_ROUNDS, choose, interleave
from pocketserve_lab.tuning import thread_candidates


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("POCKETSERVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(tuning, "load_now", lambda: 0.0)


@pytest.fixture
def digits(tmp_path) -> Path:
    """Return the embedded digits with their TFLite file only."""
    folder = tmp_path / "models" / "digits"
    folder.mkdir(parents=True)
    shutil.copy(MODELS / "digits" / "digits.tflite", folder)
    return folder


def jitter(base: float, rounds: int = 20, share: float = 0.02) -> list[float]:
    """Return times around a base, alike for all candidates of a round."""
    return [base * (1 + share * ((turn * 7) % 5 - 2)) for turn in range(rounds)]


# --- The choice


def test_a_clear_gain_is_taken() -> None:
    found = choose(
        {
            1: jitter(2.0),
            2: jitter(1.0),
            4: jitter(1.5),
        },
        current=1,
    )
    assert found.best == 2
    assert found.recommended == 2
    assert found.changed is True
    assert found.gain == pytest.approx(0.5)


def test_the_fastest_setting_is_kept() -> None:
    found = choose({1: jitter(1.0), 2: jitter(2.0)}, current=1)
    assert found.best == 1
    assert found.recommended == 1
    assert found.changed is False
    assert found.gain == 0.0


def test_a_small_gain_is_ignored() -> None:
    found = choose({1: jitter(1.0), 2: jitter(0.98)}, current=1)
    assert found.best == 2
    assert found.recommended == 1
    assert 0 < found.gain < MIN_GAIN


def test_a_gain_within_the_noise_is_ignored() -> None:
    noisy = [1.0, 0.6, 1.6, 0.7, 1.5, 0.5, 1.4, 0.8]
    found = choose({1: [1.0] * 8, 2: noisy}, current=1)
    assert found.gain >= MIN_GAIN
    assert found.noise > found.gain
    assert found.recommended == 1


def test_a_gain_that_is_mostly_chance_is_ignored() -> None:
    """On a busy machine a third less time may be nearly all chance."""
    found = choose(
        {
            1: [1.0] * 9,
            2: [
                0.66 + step for step in (-0.3, -0.2, -0.1, 0.0, 0.0, 0.0, 0.1, 0.2, 0.3)
            ],
        },
        1,
    )
    assert found.gain > found.noise > found.gain / 2
    assert found.recommended == 1


def test_slow_phases_of_both_settings_are_ignored() -> None:
    phases = [1.0, 9.0, 1.0, 4.0, 2.0, 7.0, 1.0, 3.0]
    found = choose({1: phases, 2: [0.9 * phase for phase in phases]}, current=1)
    assert found.recommended == 2
    assert found.noise < 0.001


def test_a_few_rounds_decide_nothing() -> None:
    rounds = MIN_ROUNDS - 1
    assert choose({1: [2.0] * rounds, 2: [1.0] * rounds}, current=1).recommended == 1


times = st.lists(st.floats(1e-6, 1e6), min_size=10, max_size=10)


@given(st.dictionaries(st.integers(1, 64), times, min_size=1, max_size=6), st.data())
def test_any_times_give_a_decision(measured: dict[int, list[float]], data: Any) -> None:
    current = data.draw(st.sampled_from(sorted(measured)))
    found = choose(measured, current)
    assert found.recommended in measured
    assert found.recommended == current or (
        found.gain >= MIN_GAIN and found.gain > 2 * found.noise
    )


@pytest.mark.parametrize(
    ("current", "fast", "usable", "expected"),
    [
        (1, 1, 1, [1]),
        (2, 2, 2, [2, 1]),
        (4, 4, 8, [4, 1, 2, 8]),
        (3, 3, 6, [3, 1, 2, 4, 6]),
        (16, 2, 2, [16, 1, 2]),
    ],
)
def test_the_tried_numbers_of_threads(
    current: int, fast: int, usable: int, expected: list[int]
) -> None:
    assert thread_candidates(current, fast, usable) == expected


def test_candidates_take_turns() -> None:
    called: list[int] = []
    calls = {key: lambda key=key: called.append(key) for key in (1, 2, 3)}
    shares: list[float] = []
    found = interleave(calls, 60.0, 4, shares.append, min_sample_s=0.002)
    assert {key: len(kept) for key, kept in found.items()} == {
        1: 4,
        2: 4,
        3: 4,
    }
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    # A sample is many calls.
    runs = [
        key for turn, key in enumerate(called) if not turn or called[turn - 1] != key
    ]
    assert runs[-12:] == [1, 2, 3, 2, 3, 1, 3, 1, 2, 1, 2, 3] or len(runs) < 12


# --- The command


def result_of(capsys, *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_real_run_prints_the_changes(capsys, digits, tmp_path) -> None:
    found = result_of(
        capsys,
        "bench",
        digits,
        "--tune",
        "--seconds",
        "2",
        "--json",
    )
    rows = found["max_batch"]
    assert set(rows["samples_ms"]) == {"1", "2", "4", "8", "16", "32"}
    changed = [key for key in ("threads", "max_batch") if found[key].get("changed")]
    assert tomllib.loads(found["manifest"]) == {
        key: found[key]["chosen"] for key in changed
    }
    assert not (tmp_path / "state" / "tuned.json").exists()


def test_only_changed_settings_are_printed(capsys, digits, monkeypatch) -> None:
    """One thread is twice as fast as two, and batches of 8 don't matter."""
    times = {
        "threads": {2: [2.0] * 20, 1: [1.0] * 20},
        "max_batch": {8: [1.0] * 20, 1: [1.0] * 20},
    }
    choices = {}
    for key, samples in times.items():
        choices[key] = choose(samples, next(iter(samples)))
    monkeypatch.setattr(tuning, "_tune_threads", lambda *arguments: choices["threads"])
    monkeypatch.setattr(tuning, "_tune_rows", lambda *arguments: choices["max_batch"])
    assert main(["bench", str(digits), "--tune"]) == 0
    printed = capsys.readouterr().out
    lines = printed.partition("model.toml, for this device:\n\n")[2]
    assert parse_manifest(tomllib.loads(lines)) == Manifest(threads=1)
    assert "threads 1 instead of 2: 50% less time" in printed


def test_a_loaded_machine_gives_no_result(capsys, digits, monkeypatch) -> None:
    """Other work affected the times as much as the setting."""
    times = {
        "threads": {2: [2.0] * 20, 1: [1.0] * 20},
        "max_batch": {8: [1.0] * 20, 1: [1.0] * 20},
    }
    choices = {}
    for key, samples in times.items():
        choices[key] = choose(samples, next(iter(samples)))
    monkeypatch.setattr(tuning, "_tune_threads", lambda *arguments: choices["threads"])
    monkeypatch.setattr(tuning, "_tune_rows", lambda *arguments: choices["max_batch"])
    monkeypatch.setattr(tuning, "load_now", lambda: 1000.0)
    assert main(["bench", str(digits), "--tune"]) == 0
    printed = capsys.readouterr().out
    assert (
        "threads stays 2: 1 was 50.0% faster, which is not worth a change or may be chance (up to 100.0%)"
        in printed
    )
    assert "The load was 1000.0" in printed
    assert "No line for model.toml" in printed
    assert result_of(capsys, "bench", digits, "--tune", "--json")["manifest"] == ""


def test_output_without_a_terminal_is_plain(capsys, digits) -> None:
    assert (
        main(["bench", str(digits), "--tune", "--seconds", "0.2", "--rounds", "1"]) == 0
    )
    printed = capsys.readouterr()
    assert "trying batches …" in printed.err
    assert "\r" not in printed.err
    assert "max_batch stays 8" in printed.out
    assert "No line for model.toml" in printed.out


def test_settings_of_the_manifest_are_not_tried(capsys, digits) -> None:
    (digits / "model.toml").write_text("threads = 1\nmax_batch = 4\n")
    words = ("bench", digits, "--tune", "--seconds", "0.2", "--rounds", "1", "--json")
    found = result_of(capsys, *words)
    assert "model.toml says threads = 1" in found["threads"]["why_not_tried"]
    assert "model.toml says max_batch = 4" in found["max_batch"]["why_not_tried"]
    assert result_of(capsys, *words, "--force")["max_batch"]["current"] == 4


def test_disabled_batching_stays_disabled(capsys, digits) -> None:
    (digits / "model.toml").write_text("batching = false\n")
    found = result_of(
        capsys,
        "bench",
        digits,
        "--tune",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--json",
        "--force",
    )
    assert found["max_batch"]["why_not_tried"] == "batching is switched off"


def test_threads_cannot_be_both_given_and_tuned(capsys, digits) -> None:
    assert main(["bench", str(digits), "--tune", "--threads", "2"]) == 1
    assert "leave --threads out" in capsys.readouterr().err


@pytest.mark.live
def test_a_bar_is_shown_on_a_terminal(digits) -> None:
    """Standard error of the process is a pseudo-terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "bench",
        str(digits),
        "--tune",
        "--seconds",
        "0.5",
        "--rounds",
        "2",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
        assert process.wait(60) == 0
    os.close(ours)
    assert b"trying batches [" in shown
    assert b"\r" in shown
