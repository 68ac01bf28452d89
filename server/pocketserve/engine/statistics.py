"""Counters per version, for the statistics extension.

Times are monotonic nanoseconds. One lock per version is held for a few additions only.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from pocketserve_wire import ErrorCode

MAX_BATCH_SIZES = 64  # itemized batch sizes: clients must not make the table grow

LATENCY_BOUNDS_NS = tuple(
    int(ms * 1e6)
    for ms in (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
)
"""Upper ends of the classes by which answered requests are counted, from a fast model's time to a patient user's."""

UNANSWERED = {
    ErrorCode.SUPERSEDED: "superseded",
    ErrorCode.CANCELLED: "cancelled",
    ErrorCode.DEADLINE_EXCEEDED: "expired",
    ErrorCode.QUEUE_FULL: "refused",
    ErrorCode.LOW_POWER: "refused",
}
"""Ends of requests that say nothing against the model; they count as failures too, as in Triton."""


class Timing(NamedTuple):
    """Phases of one request in nanoseconds, with rows and runs."""

    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    rows: int = 1  # its own rows
    executions: int = 1  # runs of the model on its account; a batch counts for the request that led it
    batch: int | None = (
        None  # rows of the batch that it led; 0 for a request that was led; None for one that ran alone
    )


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class _RunTotals:
    """The number of answered requests, and their total times."""

    count: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    rows: int = 0
    executions: int = 0

    def add(self, other: _RunTotals) -> None:
        """Add another counter's values."""
        self.count += other.count
        self.queue_ns += other.queue_ns
        self.input_ns += other.input_ns
        self.infer_ns += other.infer_ns
        self.output_ns += other.output_ns
        self.rows += other.rows
        self.executions += other.executions

    @property
    def total_ns(self) -> int:
        """Return the time of all phases together."""
        return self.queue_ns + self.input_ns + self.infer_ns + self.output_ns

    def to_json(self) -> dict[str, dict[str, int]]:
        phases = {
            "compute_input": self.input_ns,
            "compute_infer": self.infer_ns,
            "compute_output": self.output_ns,
        }
        return {phase: {"count": self.count, "ns": ns} for phase, ns in phases.items()}


class Traffic:
    """Counts responses by transport, route and status, and connections.

    No client's data is kept: a request without a route or access counts for route "".
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: Counter[tuple[str, Any, int]] = Counter()
        # By transport; each active transport adds its own.
        self.connections: dict[str, Callable[[], int]] = {}
        self.log_request: Callable[..., None] | None = (
            None  # RequestLog.write; None where requests are not logged
        )
        self.close_log: Callable[[], None] | None = None  # sends traces in memory

    def count(self, transport: str, route: Any, status: int) -> None:
        """Count a response; ``route`` is None if none matched."""
        with self._lock:
            self._answers[transport, route, status] += 1

    def answers(self) -> list[tuple[tuple[str, str, str, int], int]]:
        """Return counts by transport, method, pattern and status.

        The order is fixed.
        """
        with self._lock:
            counts = list(self._answers.items())
        answers = []
        for (transport, route, status), count in counts:
            method = pattern = ""
            if route is not None:
                method, pattern = route.method, route.pattern
            answers.append(((transport, method, pattern, status), count))
        return sorted(answers)


class VersionStatistics:
    """Counters of one version, which survive reloads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_inference_s = 0.0
        self.fail = _Duration()
        self.unanswered = {name: _Duration() for name in UNANSWERED.values()}
        self.batches: dict[int, _RunTotals] = {}
        self.latencies = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        self.loads = _Duration()
        self.failed_loads = 0
        # Requests that another one led, and batches of sizes that are not itemised.
        self._other_runs = _RunTotals()

    @property
    def runs(self) -> _RunTotals:
        """Return the totals of all answered requests."""
        with self._lock:
            return self._sum()

    def _sum(self) -> _RunTotals:
        total = _RunTotals()
        for runs in (self._other_runs, *self.batches.values()):
            total.add(runs)
        return total

    @property
    def inference_count(self) -> int:
        """Return how many rows were answered."""
        return self.runs.rows

    @property
    def execution_count(self) -> int:
        """Return how often the model ran."""
        return self.runs.executions

    @property
    def last_inference_ms(self) -> int:
        """Return the epoch time of the last answer in ms, or 0."""
        return int(self._last_inference_s * 1000)

    def record_success(
        self, timing: tuple[int, int, int, int, int, int, int | None]
    ) -> None:
        """Count an answered request, from its :class:`Timing` fields."""
        queue_ns, input_ns, infer_ns, output_ns, rows, executions, batch = timing
        size = rows if batch is None else batch
        whole_ns = queue_ns + input_ns + infer_ns + output_ns
        with self._lock:
            runs = self.batches.get(size) or self._runs_of(size)
            runs.count += 1
            runs.rows += rows
            runs.executions += executions
            runs.queue_ns += queue_ns
            runs.input_ns += input_ns
            runs.infer_ns += infer_ns
            runs.output_ns += output_ns
            self.latencies[bisect_left(LATENCY_BOUNDS_NS, whole_ns)] += 1
            # An epoch time for display, not for computation.
            self._last_inference_s = time.time()

    def _runs_of(self, size: int) -> _RunTotals:
        """Return new counters for a batch size.

        0 stands for requests that another one led.
        """
        if not size or len(self.batches) >= MAX_BATCH_SIZES:
            return self._other_runs
        batch = self.batches[size] = _RunTotals()
        return batch

    def latency_classes(self) -> list[tuple[str, int]]:
        """Return answered requests by latency, cumulative as in Prometheus."""
        with self._lock:
            counts = list(accumulate(self.latencies))
        bounds = [f"{ns / 1e9:g}" for ns in LATENCY_BOUNDS_NS]
        return list(zip([*bounds, "+Inf"], counts, strict=True))

    def record_load(self, ns: int, *, failed: bool = False) -> None:
        """Count a load, or one that failed."""
        with self._lock:
            if failed:
                self.failed_loads += 1
            else:
                self.loads.add(ns)

    def record_failure(self, ns: int, code: ErrorCode | None = None) -> None:
        """Count a failed request."""
        with self._lock:
            self.fail.add(ns)
            if code in UNANSWERED:
                self.unanswered[UNANSWERED[code]].add(ns)

    def phase_ns(self) -> dict[str, int]:
        """Return nanoseconds of all successful requests together, by phase."""
        runs = self.runs
        phases = {"queue": runs.queue_ns}
        for phase, document in runs.to_json().items():
            phases[phase] = document["ns"]
        return phases

    def to_json(self, name: str, version: str, memory_bytes: int) -> dict[str, Any]:
        """Return one entry of ``model_stats``."""
        memory = []
        if memory_bytes:
            memory.append({"type": "CPU", "id": 0, "byte_size": memory_bytes})
        with self._lock:
            total = self._sum()
            batches = []
            for size, runs in sorted(self.batches.items()):
                batches.append({"batch_size": size, **runs.to_json()})
            return {
                "name": name,
                "version": version,
                "last_inference": self.last_inference_ms,
                "inference_count": total.rows,
                "execution_count": total.executions,
                "inference_stats": self._inference_stats(total),
                "response_stats": {},
                "batch_stats": batches,
                "memory_usage": memory,
            }

    def _inference_stats(self, total: _RunTotals) -> dict[str, dict[str, int]]:
        never = {"count": 0, "ns": 0}
        stats = {
            "success": {"count": total.count, "ns": total.total_ns},
            "fail": asdict(self.fail),
        }
        for name, duration in self.unanswered.items():
            stats[name] = asdict(duration)
        stats["queue"] = {"count": total.count, "ns": total.queue_ns}
        stats |= total.to_json()
        stats["cache_hit"] = stats["cache_miss"] = never
        return stats
