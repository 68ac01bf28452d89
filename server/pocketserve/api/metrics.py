"""``/metrics``: the true counters in Prometheus text form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pocketserve import __version__
from pocketserve.api.describe import device_of
from pocketserve.api.messages import ApiRequest, ApiResponse
from pocketserve.engine.device.power import REASONS, PowerWatch
from pocketserve.engine.statistics import Traffic, VersionStatistics
from pocketserve.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def metrics(service: Service, request: ApiRequest) -> ApiResponse:
    """Counters and gauges of every version that was ever used, and of the server."""
    # Imported here: a server that nobody scrapes need not hold the library.
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(service))
    ProcessCollector(registry=registry)  # memory, processor time, open files and the start, where /proc tells them
    return ApiResponse(content_type=CONTENT_TYPE_PLAIN_0_0_4, chunks=[generate_latest(registry)])


class _Collector:
    """Reads the engine's counters at the moment of the scrape, so that there is no second book-keeping."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        info = InfoMetricFamily("pocketserve", "The server")
        info.add_metric([], {"version": __version__})
        yield info
        engine = self._service.engine
        yield GaugeMetricFamily(
            "pocketserve_models_memory_bytes",
            "Memory that loaded models hold, estimated",
            value=engine.memory_held(),
        )
        yield GaugeMetricFamily(
            "pocketserve_memory_budget_bytes", "Memory that they may hold together", value=engine.memory_budget
        )
        yield from _power(self._service.power)
        yield from _traffic(self._service.traffic)
        yield GaugeMetricFamily("pocketserve_usable_cores", "Cores that it may use now", value=engine.usable_cores)
        threads = GaugeMetricFamily(
            "pocketserve_model_threads", "Threads that one run of a version may use", labels=["model", "version"]
        )
        loaded = GaugeMetricFamily(
            "pocketserve_model_loaded", "Whether a version is in memory", labels=["model", "version"]
        )
        waiting = GaugeMetricFamily("pocketserve_queue_length", "Requests in line", labels=["model", "version"])
        devices = GaugeMetricFamily(
            "pocketserve_model_device",
            "1 for what really runs a version that is in memory",
            labels=["model", "version", "device", "runtime"],
        )
        used = list(self._used())
        for name, version, _ in used:
            running = engine.running(name, version)
            loaded.add_metric([name, version], float(running is not None))
            waiting.add_metric([name, version], float(running.queue.waiting if running is not None else 0))
            # A model that is closed at this moment has none.
            sessions = running.model.sessions if running is not None else ()
            if running is not None and sessions:
                if not running.model.fixed_threads:
                    threads.add_metric([name, version], running.model.threads)
                devices.add_metric([name, version, device_of(sessions), sessions[0].runtime], 1)
        yield loaded
        yield waiting
        yield devices
        yield threads
        yield from _counters(used)
        yield from _durations(used)

    def _used(self) -> Iterator[tuple[str, str, VersionStatistics]]:
        for status in self._service.statuses():
            if not status.version:
                continue
            found = self._service.engine.statistics(status.model, status.version)
            if (
                found.last_inference_ms
                or found.fail.count
                or found.failed_loads
                or self._service.engine.running(status.model, status.version)
            ):
                yield status.model, status.version, found


def _traffic(traffic: Traffic) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    connections = GaugeMetricFamily("pocketserve_open_connections", "Connections that are open", labels=["transport"])
    for transport, opened in traffic.connections.items():
        connections.add_metric([transport], opened())
    yield connections
    labels = ["transport", "method", "route", "status"]
    answers = CounterMetricFamily(
        "pocketserve_responses", "Answers; route is empty where none was reached or let in", labels=labels
    )
    for (transport, method, route, status), number in traffic.answers():
        answers.add_metric([transport, method, route, str(status)], number)
    yield answers


def _power(power: PowerWatch) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    low = GaugeMetricFamily(
        "pocketserve_low_power",
        "Whether there are fewer threads and no background requests, by reason",
        labels=["reason"],
    )
    for reason in REASONS:
        low.add_metric([reason], float(reason in power.reasons))
    yield low
    reading = power.reading
    if reading is not None and reading.charge is not None:
        yield GaugeMetricFamily("pocketserve_battery_charge_ratio", "Charge, last read", value=reading.charge / 100)
    if reading is not None and reading.heat is not None:
        yield GaugeMetricFamily("pocketserve_battery_celsius", "Temperature, last read", value=reading.heat)


def _counters(used: list[tuple[str, str, VersionStatistics]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    keys = ["model", "version"]
    requests = CounterMetricFamily("pocketserve_requests", "Requests by outcome", labels=[*keys, "outcome"])
    rows = CounterMetricFamily("pocketserve_inferences", "Batch rows that were computed", labels=keys)
    runs = CounterMetricFamily("pocketserve_executions", "Runs of the model", labels=keys)
    seconds = CounterMetricFamily("pocketserve_phase_seconds", "Time spent by phase", labels=[*keys, "phase"])
    for name, version, found in used:
        requests.add_metric([name, version, "success"], found.runs.count)
        known = 0
        for outcome, duration in found.unanswered.items():
            requests.add_metric([name, version, outcome], duration.count)
            known += duration.count
        requests.add_metric([name, version, "failure"], max(0, found.fail.count - known))
        rows.add_metric([name, version], found.inference_count)
        runs.add_metric([name, version], found.execution_count)
        for phase, ns in found.phase_ns().items():
            seconds.add_metric([name, version, phase], ns / 1e9)
    yield from (requests, rows, runs, seconds)


def _durations(used: list[tuple[str, str, VersionStatistics]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    keys = ["model", "version"]
    latency = HistogramMetricFamily(
        "pocketserve_request_seconds", "Answered requests by time, from their arrival at the model", labels=keys
    )
    loads = CounterMetricFamily("pocketserve_loads", "Loads by outcome", labels=[*keys, "outcome"])
    load_seconds = CounterMetricFamily("pocketserve_load_seconds", "Time spent loading", labels=keys)
    for name, version, found in used:
        latency.add_metric([name, version], found.latency_classes(), sum(found.phase_ns().values()) / 1e9)
        loads.add_metric([name, version, "success"], found.loads.count)
        loads.add_metric([name, version, "failure"], found.failed_loads)
        load_seconds.add_metric([name, version], found.loads.ns / 1e9)
    yield from (latency, loads, load_seconds)
