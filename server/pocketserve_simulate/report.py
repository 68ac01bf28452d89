"""The report of a simulation: tables for people, and a JSON file with every request for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pocketserve_simulate.scenarios.record import Happened, Record
from pocketserve_simulate.scenarios.traffic import LOST, REFUSED, RIGHT, SILENT, WRONG, Sample
from pocketserve_simulate.scenarios.verdict import Promise, promises, recoveries
from pocketserve_simulate.timeline import draw

REPORT_FILE: Final = "report.json"
LOG_FILE: Final = "server.log"
TIMELINE_FILE: Final = "timeline.png"

Rows = list[list[str]]


def to_json(record: Record) -> dict[str, Any]:
    """The record with what it shows."""
    judged = promises(record)
    return {
        "kept": all(promise.kept for promise in judged),
        "promises": [{"promise": p.text, "kept": p.kept, "detail": p.detail} for p in judged],
        "recoveries": [
            {"kind": r.event.kind, "since": r.since, "seconds": r.seconds, "slowest": r.slowest}
            for r in recoveries(record)
        ],
        **record.to_json(),
    }


def write_report(record: Record, folder: Path, log: str = "") -> list[Path]:
    """Write the JSON file, the timeline and the server's log into a folder, which is made where it is missing.

    Returns:
        The files; without the picture where Pillow is missing.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / REPORT_FILE, folder / LOG_FILE]
    written[0].write_text(json.dumps(to_json(record)), encoding="utf-8")
    written[1].write_text(log, encoding="utf-8")
    try:
        picture = draw(record)
    except ImportError:
        return written
    picture.save(folder / TIMELINE_FILE, optimize=True)
    return [*written, folder / TIMELINE_FILE]


def tables(record: Record) -> list[tuple[list[str], Rows]]:
    """Header and rows of the tables: streams, events, promises."""
    return [
        (["APP", "ASKS BY", "SENT", "RIGHT", "REFUSED", "LOST", "SKIPPED", "p50 ms", "p99 ms"], _stream_rows(record)),
        (["EVENT", "FROM s", "TO s", "FAILED", "RECOVERY s", "SLOWEST APP"], _event_rows(record)),
        (["KEPT", "PROMISE", "SEEN"], [_promise_row(promise) for promise in promises(record)]),
    ]


def _stream_rows(record: Record) -> Rows:
    rows = []
    for name, stream in record.streams.items():
        samples = [s for s in record.samples if s.stream == name]
        waits = sorted(1000 * (s.ended - s.sent) for s in samples if s.outcome == RIGHT)
        shown = [_quantile(waits, 0.5), _quantile(waits, 0.99)]
        counts = [_count(samples, RIGHT), _count(samples, REFUSED), _count(samples, LOST, SILENT, WRONG)]
        numbers = [len(samples), *counts, record.skipped.get(name, 0)]
        rows.append([name, str(stream["client"]), *(f"{number:,}" for number in numbers), *shown])
    return rows


def _count(samples: Sequence[Sample], *outcomes: str) -> int:
    return sum(sample.outcome in outcomes for sample in samples)


def _quantile(ordered: Sequence[float], share: float) -> str:
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.1f}" if ordered else "-"


def _event_rows(record: Record) -> Rows:
    rows = []
    for recovery in recoveries(record):
        event = recovery.event
        failed = sum(_failed(record, s) and _within(s, event, record.recovery) for s in record.samples)
        took = "never" if recovery.seconds is None else f"{recovery.seconds:.2f}"
        rows.append([event.kind, f"{event.begun:.1f}", f"{event.ended:.1f}", f"{failed:,}", took, recovery.slowest])
    return rows


def _failed(record: Record, sample: Sample) -> bool:
    """Return whether it has no answer, and the scenario does not say that this is as well at any time."""
    return sample.outcome != RIGHT and sample.code not in record.streams[sample.stream]["allow"]


def _within(sample: Sample, event: Happened, aftermath: float) -> bool:
    return event.begun <= sample.ended and sample.sent <= event.ended + aftermath


def _promise_row(promise: Promise) -> list[str]:
    return ["yes" if promise.kept else "NO", promise.text, promise.detail]
