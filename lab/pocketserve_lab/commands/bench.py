"""``pocketserve bench``: measures a model's latency and memory."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pocketserve.child.memory import memory_of
from pocketserve.local.own_server import own_server
from pocketserve.messages import plural
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local, quiet_frameworks
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import (
    human_bytes,
    print_json,
    print_text,
    print_wide_table,
    printable,
)
from pocketserve.terminal.progress import Progress
from pocketserve_lab.arguments import parse_rounds, parse_seconds, parse_threads
from pocketserve_lab.measurement import interleave, load_now, load_warning

if TYPE_CHECKING:
    from pocketserve.service import Service
    from pocketserve.tensors import Array

WARM_UP = 10
MIN_SAMPLES_P99 = 100  # of fewer, the 99th percentile is the maximum
MEMORY_KINDS = ("resident", "proportional", "private", "anonymous")
WAYS = {
    "in_process": "in this process",
    "socket": "over the socket",
    "http": "over HTTP",
}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure a model's latency and memory on this device",
        description="Runs the model on random input of its own shape, in turns: in "
        "this process, and in a server started for it, over the socket and over HTTP.",
    )
    parser.add_argument(
        "model",
        metavar="FILE|MODEL",
        help="a model file or folder, or a name in the models folder",
    )
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="the version to measure"
    )
    add_folder_option(parser)
    parser.add_argument(
        "--rounds",
        type=parse_rounds,
        default=200,
        metavar="N",
        help="samples of each transport [200]",
    )
    parser.add_argument(
        "--seconds",
        type=parse_seconds,
        default=30.0,
        metavar="S",
        help="stop sampling after this time [30]",
    )
    parser.add_argument(
        "--threads",
        type=parse_threads,
        default=0,
        metavar="N",
        help="threads of one run [the fast cores]",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="find the best threads and batches on this device, for model.toml",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="with --tune: also tune settings that model.toml fixes",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with all samples"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.force and not options.tune:
        raise CommandError("--force belongs to --tune")
    if options.tune:
        from pocketserve_lab.tuning import tune

        return tune(options)
    from pocketserve_lab.language.comparison import is_for_text

    if is_for_text(options.model, options.models_dir):
        return _bench_language_model(options)
    result = _measure(options)
    if options.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def _bench_language_model(options: argparse.Namespace) -> int:
    from pocketserve_lab.language.bench import (
        BenchPlan,
        bench_language_model,
        print_language_bench,
    )

    plan = BenchPlan(
        options.model,
        options.models_dir,
        options.model_version,
        options.rounds,
        options.seconds,
        options.threads,
    )
    result = bench_language_model(plan)
    if options.json:
        print_json(result)
    else:
        print_language_bench(result)
    return 0


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from pocketserve_lab.random_inputs import random_inputs

    load = load_now()  # before our own work is part of it
    service, name, version = open_local(
        options.model, options.models_dir, threads=options.threads
    )
    version = options.model_version or version
    try:
        with quiet_frameworks(options), service.running(name, version) as (_, handle):
            model = handle.model
            facts = {
                "version": model.version.name,
                "runtime": model.runtime,
                "threads": model.threads,
            }
            inputs = random_inputs(model.inputs.specs)
        subject = _BenchSubject(name, version, inputs)
        samples = _measure_ways(service, subject, options)
    finally:
        service.close()
    latency = {}
    for way, times in samples.times.items():
        latency[way] = {**summary(times), "samples": times}
    return {
        "model": name,
        **facts,
        "inputs": _shapes(inputs),
        "first_answer_ms": samples.first_answer_ms,
        "warm_up": samples.warm_up,
        "latency_ms": latency,
        "server_memory_bytes": samples.memory,
        "load": load,
    }


def _shapes(inputs: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return the name and shape of each input."""
    shapes = []
    for name, array in inputs.items():
        shapes.append({"name": name, "shape": list(array.shape)})
    return shapes


@dataclass(frozen=True)
class _BenchSubject:
    """A model to measure, and its input."""

    name: str
    version: str | None
    inputs: dict[str, Array]


@dataclass(frozen=True)
class _BenchSamples:
    """Milliseconds by way, and figures of the server."""

    times: dict[str, list[float]]
    warm_up: int
    first_answer_ms: float
    memory: dict[str, Any]


def _measure_ways(
    service: Service, subject: _BenchSubject, options: argparse.Namespace
) -> _BenchSamples:
    """Start a server, and measure all ways in turns."""
    from pocketserve_client import Client

    name, version, inputs = subject.name, subject.version, subject.inputs
    settings = ("--threads", str(options.threads), "--low-power", "off")
    with (
        own_server(service.config.models_dir, *settings) as server,
        Client(server.socket, token_file=server.token_file) as framed,
        Client(server.http, token_file=server.token_file) as http,
    ):
        ways: dict[str, Callable[[], object]] = {
            "in_process": _call_in_process(service, subject),
            "socket": partial(framed.infer, name, inputs, version=version),
            "http": partial(http.infer, name, inputs, version=version),
        }
        before = memory_of(server.pid)
        began = time.perf_counter()
        ways["socket"]()
        first_answer_ms = (time.perf_counter() - began) * 1e3
        warm_up = min(WARM_UP, options.rounds)
        progress = Progress()
        show = partial(progress.show, "measuring")
        interleave(ways, options.seconds, warm_up, lambda share: show(0.0))
        times = interleave(ways, options.seconds, options.rounds, show)
        progress.end()
        memory = {"before_loading": before, "after": memory_of(server.pid)}
    return _BenchSamples(times, warm_up, first_answer_ms, memory)


def _call_in_process(service: Service, subject: _BenchSubject) -> Callable[[], object]:
    from pocketserve.inference.blocking import submit_and_wait
    from pocketserve.inference.call import InferenceCall
    from pocketserve.inference.payload import TensorPayload
    from pocketserve_client.arrays import as_tensor
    from pocketserve_wire.oip import InferRequest

    tensors = [as_tensor(key, array) for key, array in subject.inputs.items()]
    request = InferRequest(inputs=tensors, binary_output=True)

    def call() -> object:
        payload = TensorPayload(request)
        options = service.request_options({})
        return submit_and_wait(
            service.submit,
            InferenceCall(subject.name, subject.version, payload, options),
        )

    return call


def summary(samples: list[float]) -> dict[str, float]:
    """Return median, 90th and 99th percentile, and mean."""
    ordered = sorted(samples)
    return {
        "p50": statistics.median(ordered),
        "p90": _percentile(ordered, 0.9),
        "p99": _percentile(ordered, 0.99),
        "mean": statistics.fmean(ordered),
    }


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _print_counts(result: Mapping[str, Any]) -> None:
    count = len(result["latency_ms"]["socket"]["samples"])
    print_text(
        f"{count} of each, after {result['warm_up']} for warm-up. "
        "The server's first answer, which loads the model, "
        f"took {result['first_answer_ms']:.0f} ms."
    )


def _percentiles(times: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the median, p90 and p99 of a way as texts."""
    p99 = "-"
    if len(times["samples"]) >= MIN_SAMPLES_P99:
        p99 = f"{times['p99']:.3f}"
    return f"{times['p50']:.3f}", f"{times['p90']:.3f}", p99


def _print_result(result: Mapping[str, Any]) -> None:
    _print_subject(result)
    print_text(load_warning(result["load"]))
    latency = result["latency_ms"]
    fastest = latency["in_process"]["p50"]
    rows = []
    for way, title in WAYS.items():
        added = ""
        if way != "in_process":
            added = f"{latency[way]['p50'] - fastest:+.3f}"
        rows.append([title, *_percentiles(latency[way]), added])
    print_wide_table(["WHOLE CALL", "p50 ms", "p90 ms", "p99 ms", "ADDED ms"], rows)
    _print_counts(result)
    _print_memory(result["server_memory_bytes"])


def _print_subject(result: Mapping[str, Any]) -> None:
    shapes = []
    for item in result["inputs"]:
        shapes.append(f"{printable(item['name'])} {item['shape']}")
    model = f"{result['model']}, version {result['version']}, {result['runtime']}"
    threads = plural(result["threads"], "thread")
    print_text(f"{printable(model)}, {threads}; random input: {', '.join(shapes)}")
    print()


def _print_memory(memory: Mapping[str, Any]) -> None:
    if not memory["before_loading"] or not memory["after"]:
        return
    rows = []
    for moment, sizes in memory.items():
        cells = [human_bytes(sizes[kind]) for kind in MEMORY_KINDS]
        rows.append([moment.replace("_", " "), *cells])
    print()
    print_wide_table(["SERVER'S MEMORY", *map(str.upper, MEMORY_KINDS)], rows)
