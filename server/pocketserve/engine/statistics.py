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
    ErrorCode.LOW_POWER: "refused",
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


def _add_run(phases: dict[str, _Duration], timing: Timing) -> None:
    phases["compute_input"].add(timing.input_ns)
    phases["compute_infer"].add(timing.infer_ns)
    phases["compute_output"].add(timing.output_ns)


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
        size = timing.rows if timing.batch is None else timing.batch
        with self._lock:
            self.inference_count += timing.rows
            self.execution_count += timing.executions
            self.last_inference_ms = int(time.time() * 1000)  # an epoch time for people, never used to compute
            self.success.add(timing.total_ns)
            self.phases["queue"].add(timing.queue_ns)
            _add_run(self.phases, timing)
            batch = self.batches.get(size) or self._new_batch(size)
            if batch is not None:
                _add_run(batch, timing)

    def _new_batch(self, size: int) -> dict[str, _Duration] | None:
        """The counters of a batch size that was not seen before; None for a request that another one led."""
        if not size or len(self.batches) >= MAX_BATCH_SIZES:
            return None
        batch = self.batches[size] = {phase: _Duration() for phase in PHASES[1:]}
        return batch

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
