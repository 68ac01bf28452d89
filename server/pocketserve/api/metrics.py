"""``/metrics``: the counters in Prometheus text form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pocketserve import __version__
from pocketserve.api.describe import device_of
from pocketserve.api.messages import ApiRequest, ApiResponse
from pocketserve.engine.device.power import REASONS
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.statistics import VersionStatistics
from pocketserve.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric

VERSION = ["model", "version"]


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
        yield _family("Info", "pocketserve", "The server", (), [([], {"version": __version__})])
        yield from _of_server(self._service)
        used = list(self._used())
        loaded = [(key, float(running is not None)) for key, _, running in used]
        waiting = [(key, float(running.queue.waiting if running is not None else 0)) for key, _, running in used]
        # A model that is closed at this moment has no sessions.
        models = [(key, running.model) for key, _, running in used if running is not None]
        opened = [(key, model, model.sessions) for key, model in models if model.sessions]
        devices = [([*key, device_of(sessions), sessions[0].runtime], 1) for key, _, sessions in opened]
        threads = [(key, model.threads) for key, model, _ in opened if not model.fixed_threads]
        yield _gauge("model_loaded", "Whether a version is in memory", VERSION, loaded)
        yield _gauge("queue_length", "Requests in line", VERSION, waiting)
        text = "1 for what really runs a version that is in memory"
        yield _gauge("model_device", text, [*VERSION, "device", "runtime"], devices)
        yield _gauge("model_threads", "Threads that one run of a version may use", VERSION, threads)
        yield from _of_versions([(key, counters) for key, counters, _ in used])

    def _used(self) -> Iterator[tuple[list[str], VersionStatistics, ModelHandle | None]]:
        engine = self._service.engine
        for status in self._service.statuses():
            if status.version:
                counters = engine.statistics(status.model, status.version)
                running = engine.running(status.model, status.version)
                if counters.last_inference_ms or counters.fail.count or counters.failed_loads or running:
                    yield [status.model, status.version], counters, running


def _of_server(service: Service) -> Iterator[Metric]:
    engine, power, traffic = service.engine, service.power, service.traffic
    yield _value("models_memory_bytes", "Memory that loaded models hold, estimated", engine.memory_held())
    yield _value("memory_budget_bytes", "Memory that they may hold together", engine.memory_budget)
    reasons = [([reason], float(reason in power.reasons)) for reason in REASONS]
    text = "Whether there are fewer threads and no background requests, by reason"
    yield _gauge("low_power", text, ["reason"], reasons)
    reading = power.reading
    if reading is not None and reading.charge is not None:
        yield _value("battery_charge_ratio", "Charge, last read", reading.charge / 100)
    if reading is not None and reading.heat is not None:
        yield _value("battery_celsius", "Temperature, last read", reading.heat)
    connections = [([transport], count()) for transport, count in traffic.connections.items()]
    yield _gauge("open_connections", "Connections that are open", ["transport"], connections)
    answers = [([*map(str, labels)], count) for labels, count in traffic.answers()]
    text = "Answers; route is empty where none was reached or let in"
    yield _counter("responses", text, ["transport", "method", "route", "status"], answers)
    yield _value("usable_cores", "Cores that it may use now", engine.usable_cores)


def _of_versions(used: list[tuple[list[str], VersionStatistics]]) -> Iterator[Metric]:
    requests = [([*key, outcome], count) for key, each in used for outcome, count in _outcomes(each).items()]
    phases = [([*key, phase], ns / 1e9) for key, each in used for phase, ns in each.phase_ns().items()]
    times = [(key, each.latency_classes(), sum(each.phase_ns().values()) / 1e9) for key, each in used]
    counts = [(key, {"success": each.loads.count, "failure": each.failed_loads}) for key, each in used]
    loads = [([*key, outcome], count) for key, by_outcome in counts for outcome, count in by_outcome.items()]
    rows = [(key, each.inference_count) for key, each in used]
    yield _counter("requests", "Requests by outcome", [*VERSION, "outcome"], requests)
    yield _counter("inferences", "Batch rows that were computed", VERSION, rows)
    yield _counter("executions", "Runs of the model", VERSION, [(key, each.execution_count) for key, each in used])
    yield _counter("phase_seconds", "Time spent by phase", [*VERSION, "phase"], phases)
    text = "Answered requests by time, from their arrival at the model"
    yield _family("Histogram", "pocketserve_request_seconds", text, VERSION, times)
    yield _counter("loads", "Loads by outcome", [*VERSION, "outcome"], loads)
    yield _counter("load_seconds", "Time spent loading", VERSION, [(key, each.loads.ns / 1e9) for key, each in used])


def _outcomes(counters: VersionStatistics) -> dict[str, int]:
    unanswered = {outcome: duration.count for outcome, duration in counters.unanswered.items()}
    failures = max(0, counters.fail.count - sum(unanswered.values()))
    return {"success": counters.runs.count, **unanswered, "failure": failures}


def _value(name: str, text: str, value: float) -> Metric:
    return _gauge(name, text, (), [([], value)])


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Any, ...]]) -> Metric:
    return _family("Gauge", f"pocketserve_{name}", text, labels, samples)


def _counter(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Any, ...]]) -> Metric:
    return _family("Counter", f"pocketserve_{name}", text, labels, samples)


def _family(kind: str, name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Any, ...]]) -> Metric:
    """Return a metric with its samples, each the values of the labels and what is counted."""
    from prometheus_client import core

    family: Any = getattr(core, f"{kind}MetricFamily")(name, text, labels=labels)
    for sample in samples:
        family.add_metric(*sample)
    return cast("Metric", family)
