"""True counters of what each version did, as the Open Inference Protocol's statistics extension wants them.

Times are monotonic nanoseconds. One lock per version is held for a few additions only.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from pocketserve_wire import ErrorCode

MAX_BATCH_SIZES = 64
"""Batch sizes that are itemised; a caller who tries out thousands must not make the table grow."""

UNANSWERED = {
    ErrorCode.SUPERSEDED: "superseded",
    ErrorCode.CANCELLED: "cancelled",
    ErrorCode.DEADLINE_EXCEEDED: "expired",
    ErrorCode.QUEUE_FULL: "refused",
}
"""Ends of requests that say nothing against the model; they count as failures too, as in Triton."""

PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of one request's phases and the batch rows and runs it took.

    Attributes:
        rows: its own rows.
        executions: runs of the model on its account; a batch counts for the request that led it.
        batch: rows of the batch that it led; 0 for a request that was led; None for one that ran alone.
    """

    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    rows: int = 1
    executions: int = 1
    batch: int | None = None

    @property
    def total_ns(self) -> int:
        """All phases together."""
        return self.queue_ns + self.input_ns + self.infer_ns + self.output_ns


class _Duration:
    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class VersionStatistics:
    """Counters of one version. They survive unloading and loading again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        self.success = _Duration()
        self.fail = _Duration()
        self.unanswered = {name: _Duration() for name in UNANSWERED.values()}
        self.phases = {phase: _Duration() for phase in PHASES}
        self.batches: dict[int, dict[str, _Duration]] = {}

    def record_success(self, timing: Timing) -> None:
        """Count a request that was answered."""
        values = (timing.queue_ns, timing.input_ns, timing.infer_ns, timing.output_ns)
        with self._lock:
            self.inference_count += timing.rows
            self.execution_count += timing.executions
            self.last_inference_ms = int(time.time() * 1000)  # an epoch time for people, never used to compute
            self.success.add(timing.total_ns)
            for phase, value in zip(PHASES, values, strict=True):
                self.phases[phase].add(value)
            size = timing.rows if timing.batch is None else timing.batch
            if size:
                self._itemise(size, values[1:])

    def _itemise(self, rows: int, values: tuple[int, ...]) -> None:
        batch = self.batches.get(rows)
        if batch is None:
            if len(self.batches) >= MAX_BATCH_SIZES:
                return
            batch = self.batches[rows] = {phase: _Duration() for phase in PHASES[1:]}
        for phase, value in zip(PHASES[1:], values, strict=True):
            batch[phase].add(value)

    def record_failure(self, ns: int, code: ErrorCode | None = None) -> None:
        """Count a request that reached the model's name but was not answered with a result."""
        name = UNANSWERED.get(code) if code is not None else None
        with self._lock:
            self.fail.add(ns)
            if name is not None:
                self.unanswered[name].add(ns)

    def to_json(self, name: str, version: str, memory_bytes: int) -> dict[str, Any]:
        """One entry of ``model_stats``."""
        with self._lock:
            never = {"count": 0, "ns": 0}
            return {
                "name": name,
                "version": version,
                "last_inference": self.last_inference_ms,
                "inference_count": self.inference_count,
                "execution_count": self.execution_count,
                "inference_stats": {
                    "success": self.success.to_json(),
                    "fail": self.fail.to_json(),
                    **{name: duration.to_json() for name, duration in self.unanswered.items()},
                    **{phase: duration.to_json() for phase, duration in self.phases.items()},
                    "cache_hit": never,
                    "cache_miss": never,
                },
                "response_stats": {},
                "batch_stats": [
                    {"batch_size": size, **{phase: d.to_json() for phase, d in durations.items()}}
                    for size, durations in sorted(self.batches.items())
                ],
                "memory_usage": [{"type": "CPU", "id": 0, "byte_size": memory_bytes}] if memory_bytes else [],
            }
