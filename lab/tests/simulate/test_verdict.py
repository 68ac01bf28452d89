"""Check kept and broken promises in a record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from pocketserve_simulate.phone.processes import ProcessExit
from pocketserve_simulate.report import tables, to_json, write_report
from pocketserve_simulate.scenarios.record import (
    LOST,
    REFUSED,
    RIGHT,
    SILENT,
    WRONG,
    Life,
    PastEvent,
    Record,
    Sample,
)
from pocketserve_simulate.scenarios.verdict import promises, recoveries
from pocketserve_simulate.timeline import BAND, PALETTE, SILENCE, draw

STREAMS = {
    "keys": {
        "client": "socket",
        "model": "petals",
        "ask": "tensors",
        "allow": ["SUPERSEDED"],
    },
    "settings": {"client": "http", "model": "diabetes", "ask": "loads", "allow": []},
}


def sample(
    sent: float,
    outcome: str = RIGHT,
    code: str = "",
    *,
    stream: str = "keys",
    took: float = 0.01,
) -> Sample:
    return Sample(stream, sent, sent + took, outcome, code)


GOOD = Record(
    scenario="day",
    description="a freeze and a kill",
    device="mid",
    seconds=20.0,
    recovery=2.0,
    streams=STREAMS,
    events=[PastEvent("freeze", 3.0, 5.0), PastEvent("kill", 10.0, 11.0)],
    samples=[
        sample(1.0),
        sample(1.0, stream="settings"),
        sample(3.5, took=1.6),
        sample(5.2, stream="settings"),
        sample(10.5, LOST, "ConnectionLost"),
        sample(11.5, took=0.5),
        sample(12.3, stream="settings"),
        sample(13.0, REFUSED, "SUPERSEDED"),
        sample(18.0),
    ],
    memory=[
        (1.0, 50_000_000),
        (10.5, None),
        (12.0, 40_000_000),
        (13.0, 41_000_000),
    ],
    lives=[Life(7, 0.0), Life(8, 11.1)],
    exits=[ProcessExit(10.0, -9, "kill")],
    skipped={"keys": 3},
    successes={"petals": 2},
    strangers=0,
    machine={},
)


def with_sample(more: Sample) -> Record:
    return dataclasses.replace(GOOD, samples=[*GOOD.samples, more])


def broken(record: Record) -> list[str]:
    return [promise.text for promise in promises(record) if not promise.holds]


def test_a_good_run_keeps_every_promise() -> None:
    assert broken(GOOD) == []
    assert [(r.event.kind, r.since, r.slowest) for r in recoveries(GOOD)] == [
        ("freeze", 5.0, "settings"),
        ("kill", 11.0, "settings"),
    ]
    assert [r.seconds for r in recoveries(GOOD)] == [
        pytest.approx(0.21),
        pytest.approx(1.31),
    ]


BREAKING: dict[str, tuple[Callable[[], Record], str]] = {
    "wrong": (
        lambda: with_sample(sample(7, WRONG)),
        "every answer is right and belongs to its own request",
    ),
    "silent": (
        lambda: with_sample(sample(7, SILENT)),
        "every request ended in an answer or an error, in time",
    ),
    "refused without reason": (
        lambda: with_sample(sample(8, REFUSED, "QUEUE_FULL")),
        "requests fail only during events and their aftermath",
    ),
    "lost without reason": (
        lambda: with_sample(sample(17, LOST, "ConnectionLost")),
        "requests fail only during events and their aftermath",
    ),
    "forgotten": (
        lambda: with_sample(sample(7, WRONG, stream="settings")),
        "acknowledged loads and unloads take effect",
    ),
    "crash": (
        lambda: dataclasses.replace(GOOD, exits=[ProcessExit(7.0, -11, "")]),
        "no process of the server ended by itself",
    ),
    "outgrown": (
        lambda: dataclasses.replace(GOOD, exits=[ProcessExit(7.0, -9, "memory")]),
        "no process of the server ended by itself",
    ),
    "late": (
        lambda: dataclasses.replace(GOOD, recovery=1.0),
        "every app has right answers again within 1 s",
    ),
    "never": (
        lambda: dataclasses.replace(
            GOOD, samples=[s for s in GOOD.samples if s.sent < 12 or s.stream == "keys"]
        ),
        "every app has right answers again within 2 s",
    ),
    "too few counted": (
        lambda: dataclasses.replace(GOOD, successes={"petals": 1}),
        "the server's counters agree with the apps",
    ),
    "too many counted": (
        lambda: dataclasses.replace(GOOD, successes={"petals": 3}),
        "the server's counters agree with the apps",
    ),
    "not counted": (
        lambda: dataclasses.replace(GOOD, successes=None),
        "the server's counters agree with the apps",
    ),
}


@pytest.mark.parametrize("fault", BREAKING)
def test_a_broken_promise_is_found(fault: str) -> None:
    make, promise = BREAKING[fault]
    assert broken(make()) == [promise]


def test_recovery_is_measured_from_the_end_of_the_outage() -> None:
    """Other events may end while the server is frozen."""
    events = [
        PastEvent("thermal", 2.0, 4.0),
        PastEvent("freeze", 3.0, 5.0),
        PastEvent("squatter", 4.5, 5.1),
    ]
    assert [r.since for r in recoveries(dataclasses.replace(GOOD, events=events))] == [
        5.1,
        5.1,
        5.1,
    ]


def test_a_start_on_a_taken_port_is_not_a_crash() -> None:
    record = dataclasses.replace(
        GOOD,
        events=[PastEvent("squatter", 3.0, 5.0)],
        exits=[ProcessExit(4.0, 1, "squatter")],
    )
    assert "no process of the server ended by itself" not in broken(record)


def test_a_kill_by_memory_pressure_is_not_a_crash() -> None:
    pressed = [PastEvent("memory_pressure", 3.0, 5.0)]
    record = dataclasses.replace(
        GOOD,
        events=pressed,
        exits=[ProcessExit(4.0, -9, "memory"), ProcessExit(5.5, -9, "memory")],
    )
    assert "no process of the server ended by itself" not in broken(record)


def test_the_report_contains_the_record(tmp_path: Any) -> None:
    """Its files have every request and the picture."""
    written = write_report(GOOD, tmp_path / "new" / "folder", "a log")
    assert [path.name for path in written] == [
        "report.json",
        "server.log",
        "timeline.png",
    ]
    content = json.loads(written[0].read_text())
    assert content["kept"]
    assert content["samples"]["sent"] == [s.sent for s in GOOD.samples]
    with Image.open(written[2]) as picture:
        assert picture.tobytes() == draw(GOOD).tobytes()


def test_the_tables_show_the_record() -> None:
    streams, events, kept = tables(GOOD)
    assert streams[1][0] == [
        "keys",
        "socket",
        "6",
        "4",
        "1",
        "1",
        "3",
        "500.0",
        "1600.0",
    ]
    assert events[1] == [
        ["freeze", "3.0", "5.0", "0", "0.21", "settings"],
        ["kill", "10.0", "11.0", "1", "1.31", "settings"],
    ]
    assert {row[0] for row in kept[1]} == {"yes"}
    assert [
        "NO",
        "no process of the server ended by itself",
        "exit code -11 at 7.0 s",
    ] in tables(BREAKING["crash"][0]())[2][1]
    assert to_json(GOOD)["recoveries"][1]["slowest"] == "settings"


def test_the_picture_shows_events_apps_and_memory() -> None:
    seen = {colour for _, colour in draw(GOOD).getcolors(1 << 24)}
    assert {
        SILENCE,
        PALETTE[0],
        PALETTE[1],
    } <= seen
    hot = dataclasses.replace(GOOD, events=[PastEvent("thermal", 3.0, 5.0)])
    assert BAND in {colour for _, colour in draw(hot).getcolors(1 << 24)}


def test_an_empty_record_can_be_drawn() -> None:
    """Nothing was answered and nothing happened."""
    empty = dataclasses.replace(
        GOOD, events=[], samples=[], memory=[], lives=[], successes=None
    )
    assert draw(empty).size[0] == 1500


@pytest.mark.parametrize("took", [0.0, 1e-9, 99.0, 150.0, 1e6])
def test_a_single_answer_can_be_drawn(took: float) -> None:
    """Its time may be outside the usual axes."""
    single = dataclasses.replace(GOOD, samples=[sample(1.0, took=took)])
    assert draw(single).size[0] == 1500
    assert len(tables(single)[0][1]) == len(STREAMS)
