"""The report of a simulation: tables for people, and a JSON file with every request for programs."""

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


def to_json(record: Record) -> dict[str, Any]:
    """Return the record with what it shows."""
    judged = promises(record)
    return {
        "kept": all(promise.holds for promise in judged),
        "promises": [
            {"promise": p.text, "kept": p.holds, "detail": p.detail} for p in judged
        ],
        "recoveries": [
            {
                "kind": r.event.kind,
                "since": r.since,
                "seconds": r.seconds,
                "slowest": r.slowest,
            }
            for r in recoveries(record)
        ],
        **record.to_json(),
    }


def write_report(record: Record, folder: Path, log: str = "") -> list[Path]:
    """Write the JSON file, the server's log and, where Pillow is there, the timeline; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    report, server_log, picture = (
        folder / name for name in ("report.json", "server.log", "timeline.png")
    )
    report.write_text(json.dumps(to_json(record)), encoding="utf-8")
    server_log.write_text(log, encoding="utf-8")
    try:
        draw(record).save(picture, optimize=True)
    except ImportError:
        return [report, server_log]
    return [report, server_log, picture]


def tables(record: Record) -> list[tuple[list[str], Rows]]:
    """Return header and rows of the tables: streams, events, promises."""
    streams, events = [], []
    for name, stream in record.streams.items():
        samples = [s for s in record.samples if s.stream == name]
        counts = Counter(s.outcome for s in samples)
        failures = counts[LOST] + counts[SILENT] + counts[WRONG]
        numbers = [
            len(samples),
            counts[RIGHT],
            counts[REFUSED],
            failures,
            record.skipped.get(name, 0),
        ]
        waits = sorted(1000 * (s.ended - s.sent) for s in samples if s.outcome == RIGHT)
        quantiles = [
            f"{waits[min(len(waits) - 1, int(q * len(waits)))]:.1f}" if waits else "-"
            for q in (0.5, 0.99)
        ]
        streams.append(
            [
                name,
                str(stream["client"]),
                *(f"{number:,}" for number in numbers),
                *quantiles,
            ]
        )
    failed = [
        s for s in record.samples if s.outcome != RIGHT and not record.is_allowed(s)
    ]
    for recovery in recoveries(record):
        event = recovery.event
        count = sum(event.meets(sample, record.recovery) for sample in failed)
        took = "never" if recovery.seconds is None else f"{recovery.seconds:.2f}"
        events.append(
            [
                event.kind,
                f"{event.begun:.1f}",
                f"{event.ended:.1f}",
                f"{count:,}",
                took,
                recovery.slowest,
            ]
        )
    return [
        (
            [
                "APP",
                "ASKS BY",
                "SENT",
                "RIGHT",
                "REFUSED",
                "LOST",
                "SKIPPED",
                "p50 ms",
                "p99 ms",
            ],
            streams,
        ),
        (["EVENT", "FROM s", "TO s", "FAILED", "RECOVERY s", "SLOWEST APP"], events),
        (
            ["KEPT", "PROMISE", "SEEN"],
            [["yes" if p.holds else "NO", p.text, p.detail] for p in promises(record)],
        ),
    ]
