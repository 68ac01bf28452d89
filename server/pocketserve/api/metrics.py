"""``/metrics``: the counters in Prometheus text form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

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

VERSION = ["model", "version"]

Row = tuple[str, str, str, Sequence[str], Iterable[tuple[Any, ...]]]
"""A metric: its kind, name, text and labels, and its samples: the values of the labels, and what is counted."""


def metrics(service: Service, request: ApiRequest) -> ApiResponse:
    """Counters and gauges of every version that was ever used, and of the server."""
    # Imported here: a server that nobody scrapes need not hold the library.
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry()
    # The second tells memory, processor time, open files and the start, where /proc has them.
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

        for kind, name, text, labels, samples in (
            *_of_server(self._service),
            *_of_versions(self._service),
        ):
            metric: Any = getattr(core, f"{kind}MetricFamily")(
                f"pocketserve_{name}", text, labels=labels
            )
            for sample in samples:
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
                metric.samples = [
                    sample._replace(labels={**sample.labels, **self._labels})
                    for sample in metric.samples
                ]
                yield metric


def _of_server(service: Service) -> Iterator[Row]:
    engine, power, traffic = service.engine, service.power, service.traffic
    yield "Gauge", "info", "The server", ["version"], [([__version__], 1)]
    values: list[tuple[str, str, float]] = [
        (
            "models_memory_bytes",
            "Memory that loaded models hold, estimated",
            engine.memory_held(),
        ),
        (
            "memory_budget_bytes",
            "Memory that they may hold together",
            engine.memory_budget,
        ),
        ("usable_cores", "Cores that it may use now", engine.usable_cores),
    ]
    reading = power.reading
    if reading is not None and reading.charge is not None:
        values.append(
            ("battery_charge_ratio", "Charge, last read", reading.charge / 100)
        )
    if reading is not None and reading.heat is not None:
        values.append(("battery_celsius", "Temperature, last read", reading.heat))
    for name, text, value in values:
        yield "Gauge", name, text, (), [((), value)]
    reasons = [([reason], float(reason in power.reasons)) for reason in REASONS]
    text = "Whether there are fewer threads and no background requests, by reason"
    yield "Gauge", "low_power", text, ["reason"], reasons
    connections = [
        ([transport], count()) for transport, count in traffic.connections.items()
    ]
    yield (
        "Gauge",
        "open_connections",
        "Connections that are open",
        ["transport"],
        connections,
    )
    answers = [([*map(str, labels)], count) for labels, count in traffic.answers()]
    text = "Answers; route is empty where none was reached or let in"
    yield (
        "Counter",
        "responses",
        text,
        ["transport", "method", "route", "status"],
        answers,
    )


def _of_versions(service: Service) -> Iterator[Row]:
    used = list(_used(service))
    running = [(key, handle) for key, _, handle in used if handle is not None]
    # A model that is closed at this moment has no sessions.
    opened = [
        (key, handle.model, handle.model.sessions)
        for key, handle in running
        if handle.model.sessions
    ]
    devices = [
        ([*key, device_of(sessions), sessions[0].runtime], 1)
        for key, _, sessions in opened
    ]
    threads = [
        (key, model.threads) for key, model, _ in opened if not model.fixed_threads
    ]
    loaded = [(key, float(handle is not None)) for key, _, handle in used]
    waiting = [
        (key, float(handle.queue.waiting if handle is not None else 0))
        for key, _, handle in used
    ]
    yield "Gauge", "model_loaded", "Whether a version is in memory", VERSION, loaded
    yield "Gauge", "queue_length", "Requests in line", VERSION, waiting
    text = "1 for what really runs a version that is in memory"
    yield "Gauge", "model_device", text, [*VERSION, "device", "runtime"], devices
    yield (
        "Gauge",
        "model_threads",
        "Threads that one run of a version may use",
        VERSION,
        threads,
    )
    counters = [(key, each) for key, each, _ in used]
    requests = [
        ([*key, outcome], count)
        for key, each in counters
        for outcome, count in _outcomes(each).items()
    ]
    phases = [
        ([*key, phase], ns / 1e9)
        for key, each in counters
        for phase, ns in each.phase_ns().items()
    ]
    times = [
        (key, each.latency_classes(), sum(each.phase_ns().values()) / 1e9)
        for key, each in counters
    ]
    loads = [([*key, "success"], each.loads.count) for key, each in counters]
    loads += [([*key, "failure"], each.failed_loads) for key, each in counters]
    load_s = [(key, each.loads.ns / 1e9) for key, each in counters]
    rows = [(key, each.inference_count) for key, each in counters]
    runs = [(key, each.execution_count) for key, each in counters]
    yield "Counter", "requests", "Requests by outcome", [*VERSION, "outcome"], requests
    yield "Counter", "inferences", "Batch rows that were computed", VERSION, rows
    yield "Counter", "executions", "Runs of the model", VERSION, runs
    yield "Counter", "phase_seconds", "Time spent by phase", [*VERSION, "phase"], phases
    text = "Answered requests by time, from their arrival at the model"
    yield "Histogram", "request_seconds", text, VERSION, times
    yield "Counter", "loads", "Loads by outcome", [*VERSION, "outcome"], loads
    yield "Counter", "load_seconds", "Time spent loading", VERSION, load_s


def _used(
    service: Service,
) -> Iterator[tuple[list[str], VersionStatistics, ModelHandle | None]]:
    for status in service.statuses():
        if status.version:
            counters = service.engine.statistics(status.model, status.version)
            handle = service.engine.running(status.model, status.version)
            if (
                counters.last_inference_ms
                or counters.fail.count
                or counters.failed_loads
                or handle
            ):
                yield [status.model, status.version], counters, handle


def _outcomes(counters: VersionStatistics) -> dict[str, int]:
    unanswered = {
        outcome: duration.count for outcome, duration in counters.unanswered.items()
    }
    failures = max(0, counters.fail.count - sum(unanswered.values()))
    return {"success": counters.runs.count, **unanswered, "failure": failures}
