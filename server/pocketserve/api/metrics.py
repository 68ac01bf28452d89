"""``/metrics``: the counters in Prometheus text form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve import __version__
from pocketserve.api.describe import device_of
from pocketserve.api.messages import ApiRequest, ApiResponse
from pocketserve.engine.device.power import REASONS
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.statistics import VersionStatistics
from pocketserve.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from pocketserve.engine.replica import Replica

VERSION = ("model", "version")


@dataclass
class MetricRow:
    """A metric and its samples.

    Attributes:
        kind: ``Gauge``, ``Counter`` or ``Histogram``.
        labels: names of the labels.
    """

    kind: str
    name: str
    text: str
    labels: Sequence[str] = ()
    samples: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, labels: Sequence[str], *values: Any) -> None:
        """Add a sample: the labels' values, and the measured value."""
        self.samples.append(([*labels], *values))


class UsedVersion(NamedTuple):
    """A version with counters.

    Attributes:
        key: model and version.
        handle: None if it is not loaded.
    """

    key: tuple[str, str]
    counters: VersionStatistics
    handle: ModelHandle | None


def metrics(service: Service, request: ApiRequest) -> ApiResponse:
    """Counters and gauges of the server and of every used version."""
    # Imported late: only scraped servers need the library.
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry()
    # ProcessCollector adds memory, processor time, open files and the start time.
    registry.register(
        _Labelled(
            [_Collector(service), ProcessCollector(registry=None)], service.replica
        )
    )
    return ApiResponse(
        content_type=CONTENT_TYPE_PLAIN_0_0_4, chunks=[generate_latest(registry)]
    )


class _Collector:
    """Reads the engine's counters at scrape time."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import core

        for row in _rows(self._service):
            family = getattr(core, f"{row.kind}MetricFamily")
            metric: Any = family(f"pocketserve_{row.name}", row.text, labels=row.labels)
            for sample in row.samples:
                metric.add_metric(*sample)
            yield metric


class _Labelled:
    """Adds the worker's name to every sample."""

    def __init__(
        self, collectors: Sequence[Collector], replica: Replica | None
    ) -> None:
        self._collectors = collectors
        self._labels = {} if replica is None else {"worker": replica.name}

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            for metric in collector.collect():
                samples = []
                for sample in metric.samples:
                    labels = {**sample.labels, **self._labels}
                    samples.append(sample._replace(labels=labels))
                metric.samples = samples
                yield metric


def _rows(service: Service) -> Iterator[MetricRow]:
    yield MetricRow("Gauge", "info", "The server", ["version"], [([__version__], 1)])
    yield from _values_of_server(service)
    yield _low_power(service)
    yield _open_connections(service)
    yield _responses(service)
    used = list(_used(service))
    yield from _gauges(used)
    yield from _counters(used)
    yield _latencies(used)
    yield from _loads(used)


def _values_of_server(service: Service) -> Iterator[MetricRow]:
    engine = service.engine
    rows = {
        ("models_memory_bytes", "Estimated memory of loaded models"): (
            engine.memory_held()
        ),
        ("memory_budget_bytes", "Memory limit of all loaded models"): (
            engine.memory_budget
        ),
        ("usable_cores", "Cores that the server may use now"): engine.usable_cores,
    }
    for (name, text), value in rows.items():
        yield MetricRow("Gauge", name, text, (), [((), value)])
    reading = service.power.reading
    if reading is None:
        return
    if reading.charge is not None:
        sample = ((), reading.charge / 100)
        text = "Charge, last read"
        yield MetricRow("Gauge", "battery_charge_ratio", text, (), [sample])
    if reading.heat is not None:
        sample = ((), reading.heat)
        text = "Temperature, last read"
        yield MetricRow("Gauge", "battery_celsius", text, (), [sample])


def _low_power(service: Service) -> MetricRow:
    text = "Whether low power is on, by reason"
    row = MetricRow("Gauge", "low_power", text, ["reason"])
    for reason in REASONS:
        row.add([reason], float(reason in service.power.reasons))
    return row


def _open_connections(service: Service) -> MetricRow:
    text = "Open connections"
    row = MetricRow("Gauge", "open_connections", text, ["transport"])
    for transport, count in service.traffic.connections.items():
        row.add([transport], count())
    return row


def _responses(service: Service) -> MetricRow:
    row = MetricRow(
        "Counter",
        "responses",
        "Responses; route is empty for unknown paths and rejected requests",
        ["transport", "method", "route", "status"],
    )
    for labels, count in service.traffic.answers():
        row.add([str(label) for label in labels], count)
    return row


def _gauges(used: Sequence[UsedVersion]) -> list[MetricRow]:
    loaded = MetricRow("Gauge", "model_loaded", "Whether a version is loaded", VERSION)
    waiting = MetricRow("Gauge", "queue_length", "Requests in line", VERSION)
    device = MetricRow(
        "Gauge",
        "model_device",
        "1 for the device that runs a loaded version",
        [*VERSION, "device", "runtime"],
    )
    threads = MetricRow(
        "Gauge",
        "model_threads",
        "Threads of one run of a version",
        VERSION,
    )
    for key, _, handle in used:
        if handle is None:
            loaded.add(key, 0.0)
            waiting.add(key, 0.0)
            continue
        loaded.add(key, 1.0)
        waiting.add(key, float(handle.queue.waiting))
        model = handle.model
        sessions = model.sessions
        if not sessions:  # it is being closed
            continue
        device.add([*key, device_of(sessions), sessions[0].runtime], 1)
        if not model.fixed_threads:
            threads.add(key, model.threads)
    return [loaded, waiting, device, threads]


def _counters(used: Sequence[UsedVersion]) -> list[MetricRow]:
    requests = MetricRow(
        "Counter", "requests", "Requests by outcome", [*VERSION, "outcome"]
    )
    rows = MetricRow("Counter", "inferences", "Computed batch rows", VERSION)
    runs = MetricRow("Counter", "executions", "Runs of the model", VERSION)
    phases = MetricRow(
        "Counter", "phase_seconds", "Time spent by phase", [*VERSION, "phase"]
    )
    for key, counters, _ in used:
        for outcome, count in _outcomes(counters).items():
            requests.add([*key, outcome], count)
        rows.add(key, counters.inference_count)
        runs.add(key, counters.execution_count)
        for phase, ns in counters.phase_ns().items():
            phases.add([*key, phase], ns / 1e9)
    return [requests, rows, runs, phases]


def _latencies(used: Sequence[UsedVersion]) -> MetricRow:
    text = "Duration of answered requests, from arrival at the model"
    row = MetricRow("Histogram", "request_seconds", text, VERSION)
    for key, counters, _ in used:
        seconds = sum(counters.phase_ns().values()) / 1e9
        row.add(key, counters.latency_classes(), seconds)
    return row


def _loads(used: Sequence[UsedVersion]) -> list[MetricRow]:
    loads = MetricRow("Counter", "loads", "Loads by outcome", [*VERSION, "outcome"])
    seconds = MetricRow("Counter", "load_seconds", "Time spent loading", VERSION)
    for key, counters, _ in used:
        loads.add([*key, "success"], counters.loads.count)
        loads.add([*key, "failure"], counters.failed_loads)
        seconds.add(key, counters.loads.ns / 1e9)
    return [loads, seconds]


def _used(service: Service) -> Iterator[UsedVersion]:
    """Yield the versions that were ever used."""
    for status in service.statuses():
        if not status.version:
            continue
        counters = service.engine.statistics(status.model, status.version)
        handle = service.engine.running(status.model, status.version)
        has_counts = counters.last_inference_ms or counters.fail.count
        if has_counts or counters.failed_loads or handle is not None:
            yield UsedVersion((status.model, status.version), counters, handle)


def _outcomes(counters: VersionStatistics) -> dict[str, int]:
    outcomes = {"success": counters.runs.count}
    failures = counters.fail.count
    for outcome, duration in counters.unanswered.items():
        outcomes[outcome] = duration.count
        failures -= duration.count
    outcomes["failure"] = max(0, failures)
    return outcomes
