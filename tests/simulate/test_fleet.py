"""``pocketserve simulate --fleet``: phones with an address each are started, asked the same, compared and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import MODELS
from pocketserve.cli import main
from pocketserve_simulate.fleet.addresses import AddressBlock
from pocketserve_simulate.fleet.asking import Failure, PhoneAnswers, percentile
from pocketserve_simulate.fleet.events import parse_timeline
from pocketserve_simulate.fleet.roll_out import copy_model, objections, set_default
from pocketserve_simulate.phone.events import EventError

from .conftest import eventually

FLEET = [sys.executable, "-m", "pocketserve", "simulate", "--fleet"]
live = [pytest.mark.live, pytest.mark.simulated]


def run_fleet(*words: str, code: int = 0) -> dict:
    """Run ``simulate --fleet WORDS --json``, and return its document."""
    done = subprocess.run(
        [*FLEET, words[0], "--json", *words[1:]], capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def processes_with(text: str) -> list[int]:
    """The processes whose command line holds a text."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


@pytest.fixture(scope="module")
def document():
    return run_fleet("3", "--ask", "digits", "--rate", "0.5")


class TestThreePhones:
    pytestmark = live

    def test_every_phone_answers_every_sample_alike(self, document):
        samples = len(list((MODELS / "digits/samples").iterdir()))
        assert document["kept"] and document["inputs"] == samples
        assert [answer["profile"] for answer in document["answers"]] == ["budget", "mid", "flagship"]
        for phone in document["answers"]:
            labels = [answer["predictions"][0]["label"] for answer in phone["answers"]]
            assert labels == [str(digit) for digit in range(10)] and phone["agreement"] == 1

    def test_each_has_an_address_of_its_own(self, document):
        hosts = [phone["host"] for phone in document["answers"]]
        assert len(set(hosts)) == 3
        assert all(host.startswith("127.1.") and host.endswith(f".{n}") for n, host in enumerate(hosts, 1))

    def test_profiles_say_how_fast_and_how_large(self, document):
        for facts in document["profiles"].values():
            assert facts["phones"] == 1 and facts["failures"] == 0 and facts["holds_rate"]
            assert 0 < facts["p50_ms"] <= facts["p95_ms"] and facts["memory_bytes"] > 10_000_000

    def test_nothing_runs_any_more(self, document):
        for phone in document["answers"]:
            assert not processes_with(f"--host\0{phone['host']}\0")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((phone["host"], 8471), 5).close()


@pytest.mark.live
@pytest.mark.simulated
def test_a_rate_that_no_phone_holds_is_a_failure():
    document = run_fleet("1", "--profiles", "budget", "--ask", "digits", "--rate", "1000", code=1)
    assert not document["profiles"]["budget"]["holds_rate"] and document["profiles"]["budget"]["agreement"] == 1


@pytest.mark.live
@pytest.mark.simulated
def test_an_end_by_a_signal_leaves_nothing(tmp_path):
    """SIGTERM while the servers start: all of them end, and so does the folder."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*FLEET, "3", "--ask", "digits"], env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: processes_with(str(tmp_path)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait(30)
    assert not processes_with(str(tmp_path)) and not list(tmp_path.iterdir())


@pytest.fixture
def models(tmp_path):
    """A models folder of digits alone, with a version whose file is damaged."""
    folder = shutil.copytree(MODELS / "digits", tmp_path / "models" / "digits")
    (folder / "broken.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(500))
    with (folder / "model.toml").open("a") as file:
        file.write('\n[versions.broken]\nfile = "broken.tflite"\n')
    return folder.parent


@pytest.mark.live
@pytest.mark.simulated
def test_a_good_version_goes_to_all(models):
    manifest = (models / "digits/model.toml").read_bytes()
    words = ["--ask", "digits", "--roll-out", "tflite-int8", "--share", "0.34"]
    document = run_fleet("3", *words, "--", "serve", str(models))
    rolled = document["roll_out"]
    assert rolled["decision"] == "on" and rolled["first_phones"] == [1, 2] and rolled["restored"] is None
    assert [phone["versions"] for phone in rolled["answers"]] == [["tflite-int8"]] * 3
    assert [phone["versions"] for phone in document["answers"]] == [["tflite"]] * 3
    assert (models / "digits/model.toml").read_bytes() == manifest  # phones have copies of their own


@pytest.mark.parametrize("way", ["absolute", "relative"])
def test_a_manifest_behind_a_link_stays_the_users(models, tmp_path, way):
    """A phone's copy has its own, though the user's is a symbolic link."""
    path, real = models / "digits/model.toml", tmp_path / "real.toml"
    path.rename(real)
    manifest = real.read_bytes()
    path.symlink_to(real if way == "absolute" else os.path.relpath(real, path.parent))
    copy_model(models, "digits", tmp_path / "phone")
    set_default(SimpleNamespace(number=1, folder=tmp_path / "phone"), "digits", "tflite-int8")
    assert real.read_bytes() == manifest
    assert b"tflite-int8" in (tmp_path / "phone/models/digits/model.toml").read_bytes()


@pytest.mark.live
@pytest.mark.simulated
def test_a_broken_version_goes_back(models):
    words = ["--ask", "digits", "--profiles", "flagship", "--roll-out", "broken"]
    document = run_fleet("3", *words, "--", "serve", str(models), code=1)
    rolled = document["roll_out"]
    assert rolled["decision"] == "back" and rolled["restored"] and rolled["first_phones"] == [1]
    assert len(rolled["answers"]) == 1 and rolled["reasons"][0].startswith("phone 1: 10 of 10 fail")


@pytest.mark.live
@pytest.mark.simulated
def test_events_on_single_phones_while_each_is_asked():
    """The one that is killed and the one whose ports are taken answer again; their neighbour answers throughout."""
    events = "1:kill@0.5+0.5,2:squatter@0.5+1"
    document = run_fleet("3", "--profiles", "flagship", "--ask", "digits", "--events", events)
    kill, squatter, calm = document["events"]
    assert [phone["phone"] for phone in (kill, squatter, calm)] == [1, 2, 3]
    assert kill["events"][0]["kind"] == "kill" and squatter["events"][0]["kind"] == "squatter" and not calm["events"]
    assert all(phone["kept"] and phone["right"] for phone in (kill, squatter, calm))
    assert calm["sent"] == calm["right"]


def answers_of(labels: str, times: list[float]) -> PhoneAnswers:
    """Answers of a classifier; a blank stands for an input that has none."""
    phone = SimpleNamespace(number=1)
    listed = [
        Failure("TIMEOUT", "too late")
        if label == " "
        else {"task": "x-classification", "predictions": [{"label": label}]}
        for label in labels
    ]
    return PhoneAnswers(phone, [b""] * len(labels), listed, times)


@pytest.mark.parametrize(
    ("labels", "times", "expected"),
    [
        ("abcdefghij", [9.0], []),
        ("abcdefghiX", [9.0], ["phone 1: 90% of the answers are as before"]),
        ("abcdefghi ", [9.0], ["phone 1: 1 of 10 fail: TIMEOUT too late"]),
        ("abcdefghij", [101.0], ["phone 1: it does not hold 10/s any more"]),
    ],
)
def test_the_rule_of_a_roll_out(labels, times, expected):
    assert objections(answers_of("abcdefghij", [5.0]), answers_of(labels, times), 10.0) == expected


def test_a_rate_that_was_not_held_before_is_no_objection():
    assert objections(answers_of("ab", [500.0]), answers_of("ab", [600.0]), 10.0) == []


def test_a_timeline_of_a_fleet():
    timeline = parse_timeline("2:kill@3, 1:battery@1+2:percent=5,2:freeze@5", 2)
    assert {number: [event.kind for event in events] for number, events in timeline.items()} == {
        1: ["battery"],
        2: ["kill", "freeze"],
    }
    assert timeline[1][0].options == {"percent": 5.0} and parse_timeline("", 2) == {}


@pytest.mark.parametrize(
    "text", ["kill@3", "0:kill@3", "3:kill@3", "x:kill@3", "1:dance@3", "1:kill", "9" * 99 + ":kill@1"]
)
def test_what_is_no_event_of_a_fleet(text):
    with pytest.raises(EventError):
        parse_timeline(text, 2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fleet", "3"], "name the model"),
        (["--fleet", "0", "--ask", "digits"], "1 to 250 phones"),
        (["--fleet", "251", "--ask", "digits"], "1 to 250 phones"),
        (["--fleet", "2", "--ask", "digits", "--profiles", "mid,budge"], "did you mean 'budget'?"),
        (["--fleet", "2", "--ask", "petals"], "no folder of samples"),
        (["--fleet", "2", "--ask", "digits", "--rate", "0"], "0.1 to 1,000"),
        (["--fleet", "2", "--ask", "digits", "--share", "0"], "above 0 and up to 1"),
        (["--fleet", "2", "--ask", "digits", "--events", "freeze@1"], "as in 2:kill@3"),
        (["--fleet", "2", "--ask", "digits", "--scenario", "commute"], "no scenario"),
        (["--fleet", "2", "--ask", "digits", "--", "doctor"], "a fleet runs servers"),
        (["--fleet", "2", "--ask", "digits", "--", "serve", "no-such-folder"], "is not there"),
    ],
)
def test_wrong_usage(capsys, words, expected):
    assert main(["simulate", *words]) == 1
    assert expected in capsys.readouterr().err.replace("\n", " ")


def test_two_fleets_have_different_addresses():
    first, second = AddressBlock(), AddressBlock()
    try:
        assert first.host(1) != second.host(1)
    finally:
        first.close()
        second.close()


def test_percentiles():
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([7.0], 0.95) == 7.0
