"""The report of a simulation: tables, and a JSON file with every request."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pocketserve_simulate.scenarios.record import (
    LOST,
    REFUSED,
    RIGHT,
    SILENT,
    WRONG,
    Record,
)
from pocketserve_simulate.scenarios.verdict import promises, recoveries
from pocketserve_simulate.timeline import draw

Rows = list[list[str]]


STREAMS_HEADER = [
    "APP",
    "ASKS BY",
    "SENT",
    "RIGHT",
    "REFUSED",
    "LOST",
    "SKIPPED",
    "p50 ms",
    "p99 ms",
]
EVENTS_HEADER = [
    "EVENT",
    "FROM s",
    "TO s",
    "FAILED",
    "RECOVERY s",
    "SLOWEST APP",
]


def to_json(record: Record) -> dict[str, Any]:
    """Return the record with its promises and recoveries, as plain JSON values."""
    judged = []
    for promise in promises(record):
        judged.append(
            {"promise": promise.text, "kept": promise.holds, "detail": promise.detail}
        )
    recovered = []
    for recovery in recoveries(record):
        recovered.append(
            {
                "kind": recovery.event.kind,
                "since": recovery.since,
                "seconds": recovery.seconds,
                "slowest": recovery.slowest,
            }
        )
    return {
        "kept": all(promise["kept"] for promise in judged),
        "promises": judged,
        "recoveries": recovered,
        **record.to_json(),
    }


def write_report(record: Record, folder: Path, log: str = "") -> list[Path]:
    """Write the report and the server's log; return the paths.

    With Pillow, the timeline is drawn, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.json"
    report.write_text(json.dumps(to_json(record)), encoding="utf-8")
    server_log = folder / "server.log"
    server_log.write_text(log, encoding="utf-8")
    picture = folder / "timeline.png"
    try:
        draw(record).save(picture, optimize=True)
    except ImportError:
        return [report, server_log]
    return [report, server_log, picture]


def tables(record: Record) -> list[tuple[list[str], Rows]]:
    """Return header and rows of the tables: streams, events, promises."""
    judged = []
    for promise in promises(record):
        mark = "NO"
        if promise.holds:
            mark = "yes"
        judged.append([mark, promise.text, promise.detail])
    return [
        (STREAMS_HEADER, [_stream_row(record, name) for name in record.streams]),
        (EVENTS_HEADER, _event_rows(record)),
        (["KEPT", "PROMISE", "SEEN"], judged),
    ]


def _stream_row(record: Record, name: str) -> list[str]:
    counts: Counter[str] = Counter()
    waits = []
    for sample in record.samples:
        if sample.stream != name:
            continue
        counts[sample.outcome] += 1
        if sample.outcome == RIGHT:
            waits.append(1000 * (sample.ended - sample.sent))
    waits.sort()
    failures = counts[LOST] + counts[SILENT] + counts[WRONG]
    return [
        name,
        str(record.streams[name]["client"]),
        f"{counts.total():,}",
        f"{counts[RIGHT]:,}",
        f"{counts[REFUSED]:,}",
        f"{failures:,}",
        f"{record.skipped.get(name, 0):,}",
        _quantile(waits, 0.5),
        _quantile(waits, 0.99),
    ]


def _quantile(values: list[float], share: float) -> str:
    """Return a quantile of sorted values as text."""
    if not values:
        return "-"
    index = min(len(values) - 1, int(share * len(values)))
    return f"{values[index]:.1f}"


def _event_rows(record: Record) -> Rows:
    rows = []
    for recovery in recoveries(record):
        event = recovery.event
        failed = 0
        for sample in record.samples:
            if sample.outcome == RIGHT or record.is_allowed(sample):
                continue
            failed += event.meets(sample, record.recovery)
        took = "never" if recovery.seconds is None else f"{recovery.seconds:.2f}"
        rows.append(
            [
                event.kind,
                f"{event.begun:.1f}",
                f"{event.ended:.1f}",
                f"{failed:,}",
                took,
                recovery.slowest,
            ]
        )
    return rows
