"""``pocketserve bench``: the cost of a model on this device: in process, over the socket and over HTTP."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

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
from pocketserve_lab.measurement import interleave, load_now, load_warning

WARM_UP = 10
MIN_SAMPLES_P99 = 100  # of fewer, the 99th percentile is the maximum
MAX_ROUNDS = 1_000_000
MAX_SECONDS = 86_400
MAX_THREADS = 256
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
        description="Runs the model on random input of its own shape: in this process, and in a server that is "
        "started for it, over the socket and over HTTP. The three are asked in turn.",
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
        type=_rounds,
        default=200,
        metavar="N",
        help="samples of each way [200]",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="stop sampling after so long [30]",
    )
    parser.add_argument(
        "--threads",
        type=_threads,
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
        help="with --tune: also try what model.toml fixes",
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
    result = _measure(options)
    if options.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from pocketserve.inference.blocking import submit_and_wait
    from pocketserve.inference.call import InferenceCall
    from pocketserve.inference.payload import TensorPayload
    from pocketserve_client import Client
    from pocketserve_client.arrays import as_tensor
    from pocketserve_lab.random_inputs import random_inputs
    from pocketserve_wire.oip import InferRequest

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
        request = InferRequest(
            inputs=[as_tensor(key, value) for key, value in inputs.items()],
            binary_output=True,
        )
        settings = ("--threads", str(options.threads), "--low-power", "off")
        with (
            own_server(service.config.models_dir, *settings) as server,
            Client(server.socket, token_file=server.token_file) as framed,
            Client(server.http, token_file=server.token_file) as http,
        ):
            ways: dict[str, Callable[[], object]] = {
                "in_process": lambda: submit_and_wait(
                    service.submit,
                    InferenceCall(
                        name,
                        version,
                        TensorPayload(request),
                        service.request_options({}),
                    ),
                ),
                "socket": partial(framed.infer, name, inputs, version=version),
                "http": partial(http.infer, name, inputs, version=version),
            }
            before, began = memory_of(server.pid), time.perf_counter()
            ways["socket"]()
            first = (time.perf_counter() - began) * 1e3
            warm_up, progress = min(WARM_UP, options.rounds), Progress()
            show = partial(progress.show, "measuring")
            interleave(ways, options.seconds, warm_up, lambda share: show(0.0))
            samples = interleave(ways, options.seconds, options.rounds, show)
            progress.end()
            after = memory_of(server.pid)
    finally:
        service.close()
    return {
        "model": name,
        **facts,
        "inputs": [
            {"name": key, "shape": list(value.shape)} for key, value in inputs.items()
        ],
        "first_answer_ms": first,
        "warm_up": warm_up,
        "latency_ms": {
            way: {**summary(times), "samples": times} for way, times in samples.items()
        },
        "server_memory_bytes": {"before_loading": before, "after": after},
        "load": load,
    }


def summary(samples: list[float]) -> dict[str, float]:
    """Return median, 90th and 99th percentile, and mean."""
    ordered = sorted(samples)
    p90, p99 = (
        ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for share in (0.9, 0.99)
    )
    return {
        "p50": statistics.median(ordered),
        "p90": p90,
        "p99": p99,
        "mean": statistics.fmean(ordered),
    }


def _print_result(result: Mapping[str, Any]) -> None:
    shapes = ", ".join(
        f"{printable(item['name'])} {item['shape']}" for item in result["inputs"]
    )
    model = printable(
        f"{result['model']}, version {result['version']}, {result['runtime']}"
    )
    print_text(
        f"{model}, {plural(result['threads'], 'thread')}; random input: {shapes}"
    )
    print()
    print_text(load_warning(result["load"]))
    latency, rows = result["latency_ms"], []
    for way, title in WAYS.items():
        added = (
            ""
            if way == "in_process"
            else f"{latency[way]['p50'] - latency['in_process']['p50']:+.3f}"
        )
        p99 = (
            f"{latency[way]['p99']:.3f}"
            if len(latency[way]["samples"]) >= MIN_SAMPLES_P99
            else "-"
        )
        rows.append(
            [title, *(f"{latency[way][key]:.3f}" for key in ("p50", "p90")), p99, added]
        )
    print_wide_table(["WHOLE CALL", "p50 ms", "p90 ms", "p99 ms", "ADDED ms"], rows)
    counts = f"{len(latency['socket']['samples'])} of each, after {result['warm_up']} that do not count"
    print_text(
        f"{counts}. The server's first answer, which loads the model, took {result['first_answer_ms']:.0f} ms."
    )
    memory, kinds = (
        result["server_memory_bytes"],
        ("resident", "proportional", "private", "anonymous"),
    )
    if memory["before_loading"] and memory["after"]:
        print()
        rows = [
            [key.replace("_", " "), *(human_bytes(size[kind]) for kind in kinds)]
            for key, size in memory.items()
        ]
        print_wide_table(["SERVER'S MEMORY", *map(str.upper, kinds)], rows)


def _seconds(text: str) -> float:
    value = _number(float, text)
    if not 0 < value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"must lie above 0 and up to {MAX_SECONDS}")
    return value


def _rounds(text: str) -> int:
    value = _number(int, text)
    if not 1 <= value <= MAX_ROUNDS:
        raise argparse.ArgumentTypeError(f"must lie between 1 and {MAX_ROUNDS}")
    return int(value)


def _threads(text: str) -> int:
    value = _number(int, text)
    if not 0 <= value <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"must lie between 0 and {MAX_THREADS}")
    return int(value)


def _number(kind: Callable[[str], float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
