"""Run the benchmarks without asserting any time."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from conftest import ROOT

sys.path.append(str(ROOT))

from benchmarks import (
    battery,
    calls,
    camera,
    imports,
    pictures,
    report,
    results,
    revisions,
)
from benchmarks.__main__ import BENCHMARKS, choose, keep_to_loopback, main
from benchmarks.against_peers import Side, in_blocks
from benchmarks.grpc_call import (
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    GrpcCall,
    frame,
)
from benchmarks.peers import reason_of
from benchmarks.processes import NotHere, arrange
from benchmarks.protobuf import field, fields
from benchmarks.samples import Comparison, Missing, Result, growth, summary
from benchmarks.timing import FULL, QUICK, Effort


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
def test_a_ratio_is_compared_with_its_goal(rule, ours, floor, goal, ratio, verdict):
    found = Comparison(
        "X1",
        "work",
        "µs",
        ours,
        floor,
        goal,
        rule,
    )
    assert found.ratio == pytest.approx(ratio)
    assert found.verdict == verdict
    assert found.to_json()["ours"] == ours


def test_a_straight_line_is_found():
    found = growth(
        "X1",
        "memory",
        "kB",
        "model",
        [1, 2, 4],
        [12.0, 14.0, 18.0],
    )
    assert (found.slope, found.start, found.r2) == (
        pytest.approx(2),
        pytest.approx(10),
        pytest.approx(1),
    )


def test_the_99th_percentile_is_near_the_end():
    assert summary([float(number) for number in range(1000)], "p99") == 990.0


def test_percentiles_are_reported_with_the_raw_samples():
    found = Comparison(
        "X1", "work", "µs", [float(number) for number in range(100)], [2.0], None
    ).to_json()
    assert found["percentiles"]["ours"] == {
        "p50": 50.0,
        "p90": 90.0,
        "p99": 99.0,
        "samples": 100,
    }
    assert found["percentiles"]["floor"]["samples"] == 1


def test_the_steepest_step_is_named():
    found = growth(
        "X1",
        "latency",
        "µs",
        "MB",
        [1, 2, 8, 4],
        [3.0, 3.0, 24.0, 6.0],
    )
    assert found.steepest == (4, 8, pytest.approx(2))
    assert (
        growth(
            "X1",
            "latency",
            "µs",
            "MB",
            [0, 2],
            [3.0, 3.0],
        ).steepest
        is None
    )


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        ("", list(BENCHMARKS)),
        ("s1, h1,S1", ["S1", "H1"]),
        (" g1 ", ["G1"]),
        ("R1 C1", ["R1", "C1"]),
    ],
)
def test_benchmarks_are_chosen_by_name(only: str, chosen: list[str]):
    assert choose(only) == chosen


def test_an_unknown_benchmark_is_refused_with_the_known_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["--only", "S1,S9", "--output", str(tmp_path / "none.json")]) == 2
    assert "there is no benchmark S9; there are S1, S2," in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "127.0.0.1"),
        ("a.example", "a.example,127.0.0.1"),
    ],
)
def test_benchmarks_ignore_proxies(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, before)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert not urllib.request.proxy_bypass("127.0.0.1")
    keep_to_loopback()
    assert urllib.request.proxy_bypass("127.0.0.1")
    assert os.environ["no_proxy"] == after


def _stop(effort: Effort) -> list[Result]:
    raise KeyboardInterrupt


def _absent(effort: Effort) -> list[Result]:
    raise NotHere("this system does not tell")


def _broken(effort: Effort) -> list[Result]:
    raise ValueError("a fault")


def test_results_before_ctrl_c_are_shown_and_stored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    one = Comparison(
        "A1",
        "work",
        "µs",
        [2.0],
        [4.0],
        1.0,
        against="limit",
    )
    output = tmp_path / "found.json"
    assert (
        main(
            ["--output", str(output)],
            {
                "A1": lambda effort: [one],
                "B1": _stop,
                "C1": _broken,
            },
        )
        == 130
    )
    told = capsys.readouterr()
    assert "stopped during B1" in told.err
    assert "0.50" in told.out
    assert "goals: 1 met, 0 missed" in told.out
    assert [
        item["name"]
        for item in json.loads(output.read_text(encoding="utf-8"))["results"]
    ] == ["A1"]


def test_an_impossible_measurement_is_not_a_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["--output", str(tmp_path / "found.json")], {"A1": _absent}) == 0
    assert "not measured: this system does not tell" in capsys.readouterr().out
    assert (
        main(
            ["--output", str(tmp_path / "found.json")],
            {"A1": _broken, "B1": lambda effort: []},
        )
        == 1
    )
    told = capsys.readouterr()
    assert "not measured: ValueError: a fault" in told.out
    assert "B1 (2 of 2)" in told.err


PHONE = {
    0: 1800,
    1: 1800,
    2: 1800,
    3: 1800,
    4: 2400,
    5: 2400,
    6: 2400,
    7: 3000,
}
HALVES = {core: {core, core ^ 1} for core in range(8)}


@pytest.mark.parametrize(
    ("cores", "speeds", "twins", "first"),
    [
        ([], {}, {}, []),
        ([3], {}, {}, [3]),
        ([0, 1], {}, {}, [0, 1]),
        (range(8), PHONE, {}, [7, 4]),  # the only fastest one, then the next
        (range(7), PHONE, {}, [4, 5]),
        (range(8), {}, HALVES, [0, 2]),
        ([0, 1], {}, HALVES, [0, 1]),  # there is no other
    ],
)
def test_two_equal_cores_are_measured_on(cores, speeds, twins, first):
    arranged = arrange(cores, speeds.get, lambda core: twins.get(core, {core}))
    assert arranged[:2] == first
    assert sorted(arranged) == sorted(cores)


def test_a_failed_environment_is_explained():
    output = "WARNING: retrying\nERROR: No matching distribution found for mlserver==1.7.1\n.bench/mlserver could not"
    assert reason_of(output) == "No matching distribution found for mlserver==1.7.1"
    assert reason_of("a\nOSError: no space left\n") == "OSError: no space left"
    killed = "a\nKilled\npython cannot create .bench/mlserver: see its error above"
    assert reason_of(killed) == "Killed"
    assert reason_of("") == "no reason given"


LOG = """import time: self [us] | cumulative | imported package
import time:       120 |        120 |   encodings
a line of the program's own
import time:        30 |         50 |     pocketserve.config
import time:        90 |        140 |   pocketserve
import time:         7 |          7 | pocketserve_wire.limits
import time:         5 |          5 | pocketservers
"""


def test_the_lowest_of_import_times_is_used(capsys: pytest.CaptureFixture[str]):
    first = imports.self_times(LOG)
    assert first["encodings"] == 120
    assert len(first) == 5
    found = imports.compare(
        "X1",
        imports.lowest([first, {"pocketserve": 60, "late": 4}]),
        {"encodings": 110},
    )
    assert list(found.own.items()) == [
        ("pocketserve", 60),
        ("pocketserve.config", 30),
        ("pocketserve_wire.limits", 7),
    ]
    assert found.to_json()["ours"]["late"] == 4
    report.show([found])
    shown = capsys.readouterr().out
    assert "0.2 ms for 6 modules, 0.1 ms of it for 3 of our own" in shown
    assert "the script's 0.1 ms for 1" in shown
    assert "0.06 ms  pocketserve\n" in shown


@pytest.mark.live
# the environment without ONNX has no ai-edge-litert either, whose schema makes the
# models
@pytest.mark.onnx
def test_a_quick_run_measures_both_transports_against_their_floors(tmp_path: Path):
    output = tmp_path / "benchmarks.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--only",
        "H1,S1,C1",
        "--output",
        str(output),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "against" in done.stdout
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["machine"]["cores"]
    assert {item["kind"] for item in content["results"]} == {"comparison", "imports"}, (
        done.stdout + done.stderr
    )
    modules = next(item for item in content["results"] if item["kind"] == "imports")
    assert "pocketserve.server" in modules["ours"]
    assert "numpy" in modules["floor"]
    assert not any(name.startswith("pocketserve") for name in modules["floor"])
    assert f"ms  {next(iter(modules['own']))}" in done.stdout
    assert {item["name"] for item in content["results"]} == {"H1", "S1", "C1"}
    sides = [item for item in content["results"] if item["kind"] == "comparison"]
    assert all(len(item["ours"]) == len(item["floor"]) > 1 for item in sides)


def test_a_commit_is_unpacked_once_under_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository = tmp_path / "repository"
    for name in ("server/a.py", "client/b.py", "docs/c.md"):
        file = repository / name
        file.parent.mkdir(parents=True)
        file.write_text(name)
    author = (
        "-c",
        "user.name=tester",
        "-c",
        "user.email=tester@localhost",
        "-c",
        "commit.gpgsign=false",
    )
    for command in (
        ("init", "-q"),
        ("add", "."),
        (*author, "commit", "-q", "-m", "first"),
    ):
        subprocess.run(["git", *command], cwd=repository, check=True, timeout=120)
    monkeypatch.setattr(revisions, "ROOT", repository)
    monkeypatch.setattr(revisions, "BENCH_FOLDER", tmp_path / "bench")
    folder = revisions.unpacked("HEAD")
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*")) == [
        "client/b.py",
        "server/a.py",
    ]
    (folder / "kept").touch()
    assert revisions.unpacked("HEAD") == folder
    assert (folder / "kept").exists()
    with pytest.raises(ValueError, match="git has no commit 'nowhere'"):
        revisions.unpacked("nowhere")


@pytest.mark.live
@pytest.mark.onnx  # as above
def test_two_trees_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(revisions, "unpacked", lambda commit: ROOT)
    chosen = revisions.benchmarks("HEAD")
    found = [result for name in ("S2", "R1", "L1") for result in chosen[name](QUICK)]
    assert [result.name for result in found] == ["S2", "R1", *["L1"] * 4]
    assert all(isinstance(result, Comparison) for result in found)
    assert len(found[0].ours) == len(found[0].floor) == QUICK.rounds


@pytest.mark.live
@pytest.mark.onnx  # as above
@pytest.mark.assets
def test_frames_and_photos_are_labelled_alike_on_both_sides():
    shown = [*camera.run(QUICK), *pictures.run_v2(QUICK)]
    assert {result.name for result in shown} == {"V1", "V2"}
    assert {
        kind for kind in ("NV21", "JPEG") for result in shown if kind in result.what
    } == {"NV21", "JPEG"}
    plain, *drawn = [result for result in shown if result.name == "V2"]
    assert len(plain.floor) == QUICK.least
    assert [result.floor for result in drawn if result.against == "undrawn"] == [
        plain.ours
    ] * 2  # as PNG and as JPEG


def test_missing_public_models_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("POCKETSERVE_TEST_ASSETS", str(tmp_path))
    for run in (camera.run, pictures.run_v2):
        (result,) = run(QUICK)
        assert isinstance(result, Missing)
        assert "there is no MobileNet" in result.why


@pytest.mark.live
@pytest.mark.onnx  # as above
def test_scheduled_requests_cost_cpu_time():
    shown = battery.run(QUICK)
    assert [result.name for result in shown] == ["W1"] * 3
    assert all(cost > 0 for result in shown for cost in (*result.ours, *result.floor))


def test_wake_ups_of_ended_threads_still_count():
    from benchmarks.idle import count_wake_ups

    assert count_wake_ups({"1": 10, "2": 500}, {"1": 12, "3": 4}) == 2 + 4 + 1


def test_only_a_silent_side_is_given_up():
    # One process for both, so that neither is blocked.
    everywhere = Side(os.getpid(), lambda model: None)
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


def test_protobuf_fields_round_trip():
    tensor = field(1, "x") + field(3, 300) + field(5, field(8, bytes(200)))
    message = field(1, "echo") + field(5, tensor)
    assert fields(message)[1] == b"echo"
    assert fields(fields(fields(message)[5])[5])[8] == bytes(200)


USUAL_WINDOW = 65_535
USUAL_FRAME = 16_384
NARROW = 30_000
GRANT = 20_000


class Http2Server(threading.Thread):
    """Answers each request with its message's length, with small windows and PINGs.

    Attributes:
        broken: the limits that a client exceeded.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self._listening = listening
        self.acknowledged = 0
        self.broken: list[str] = []

    def run(self) -> None:
        connected, _ = self._listening.accept()
        connected.settimeout(120)
        settings = struct.pack(
            ">HIHI", INITIAL_WINDOW_SIZE, NARROW, MAX_FRAME_SIZE, 1 << 24
        )
        with connected, connected.makefile("rb") as incoming:
            assert incoming.read(len(PREFACE)) == PREFACE
            connected.sendall(frame(SETTINGS, 0, 0, settings))
            message = bytearray()
            room = USUAL_WINDOW
            own = USUAL_WINDOW
            while head := incoming.read(9):
                content = incoming.read(int.from_bytes(head[:3], "big"))
                kind = head[3]
                flags = head[4]
                stream = int.from_bytes(head[5:9], "big")
                self.acknowledged += kind in (PING, SETTINGS) and flags == 1
                if kind != DATA:
                    continue
                message += content
                room -= len(content)
                own -= len(content)
                self._check(len(content), room, own)
                room += GRANT
                own += GRANT
                connected.sendall(self._grants(stream))
                if flags:
                    connected.sendall(self._answer(stream, len(message)))
                    message.clear()
                    own = NARROW

    def _grants(self, stream: int) -> bytes:
        grant = GRANT.to_bytes(4, "big")
        for_connection = frame(WINDOW_UPDATE, 0, 0, grant)
        for_stream = frame(WINDOW_UPDATE, 0, stream, grant)
        return for_connection + for_stream + frame(PING, 0, 0, bytes(8))

    def _answer(self, stream: int, length: int) -> bytes:
        message = b"\0\0\0\0\4" + length.to_bytes(4, "big")
        return frame(DATA, 0, stream, message) + frame(HEADERS, 5, stream)

    def _check(self, size: int, room: int, own: int) -> None:
        found = {
            "connection": room < 0,
            "stream": own < 0,
            "frame": size > USUAL_FRAME and not self.acknowledged,
        }
        self.broken += [name for name, is_broken in found.items() if is_broken]


@pytest.mark.parametrize("size", [0, 40, 65_530, 65_531, 700_000])
def test_grpc_messages_pass_small_windows(size: int):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = Http2Server(listening)
        server.start()
        call = GrpcCall(calls.connect(port), port, "/a/b", bytes(size))
        call.be_patient(20)
        for _ in range(3):
            calls.check(call)
            assert int.from_bytes(call.body(), "big") == size + 5
        call.close()
        server.join(120)
    assert not server.is_alive()
    assert server.acknowledged >= 3
    assert server.broken == []


def test_a_run_becomes_a_page_of_the_docs(tmp_path: Path):
    source = tmp_path / "found.json"
    target = tmp_path / "page.md"
    line = growth(
        "X1",
        "memory",
        "kB",
        "model",
        [1, 2, 4],
        [12.0, 14.0, 18.0],
    )
    work = Comparison(
        "X1",
        "work",
        "µs",
        [float(number) for number in range(400)],
        [100.0],
        1.5,
        against="a|b",
    )
    report.write(source, [work, Missing("X2", "peer", "there is no network"), line])
    assert results.main(source, target) == 0
    page = target.read_text(encoding="utf-8")
    assert (
        "| X1 | work | 199.5 µs | 396.0 | a/b | 100.0 µs |  | 2.00 | ≤ 1.5 | MISSED |\n"
        in page
    )
    assert "| X2 | peer | there is no network |\n" in page
    assert "| X1 | memory | 2 kB per model | 10 kB | 1.000 | 2 to 4 | 0.36 |\n" in page
