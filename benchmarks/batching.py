"""B1: gains and costs of batching, by framework."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import calls, peers, reference
from benchmarks.load import closed_loop
from benchmarks.processes import (
    BENCH_FOLDER,
    CLIENT_CORE,
    Ours,
    StartError,
    our_server,
    pinned,
)
from benchmarks.protobuf import field
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort, interleave, say

CONNECTIONS = (8, 32)
LAYERS = 24
GAIN_GOAL, ALONE_GOAL = 1.0, 1.05
FLOAT, ONNX_VERSION, ONNX_OPERATORS = 1, 8, 13
"""FP32 in ONNX's numbering, its file format's version, and that of its operators."""

MODULE = f"""import torch


class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.empty({reference.WORK_WIDTH}, {reference.WORK_WIDTH}))

    def forward(self, x):
        for _ in range({LAYERS}):
            x = x @ self.matrix
        return x


def build():
    return Chain()
"""
MANIFEST = f"""[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, {reference.WORK_WIDTH}]

[versions.torch]
file = "model.py"
weights = "weights.safetensors"
"""


def run(effort: Effort) -> list[Result]:
    """Compare two servers, with and without batching, in each framework."""
    results: list[Result] = []
    makers = dict(MAKERS)
    try:
        python = peers.ensure_environment("frameworks", install=effort is not QUICK)
    except StartError as error:
        python = sys.executable
        lacking = [name for name in makers if name != "TFLite"]
        results = [Missing("B1", name, str(error)) for name in lacking]
        makers = {"TFLite": makers["TFLite"]}
    folder = BENCH_FOLDER / "batches"
    for make in makers.values():
        make(folder)
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        servers = {
            way: stack.enter_context(
                our_server(folder, "--threads", "1", *options, python=python)
            )
            for way, options in (("together", ()), ("one by one", ("--no-batching",)))
        }
        for framework in makers:
            say(f"batches of {framework}")
            results += _framework(framework, servers, effort)
    return results


def _framework(name: str, servers: Mapping[str, Ours], effort: Effort) -> list[Result]:
    model = f"chain-{name.lower()}"
    values = np.random.default_rng(7).random((1, reference.WORK_WIDTH), np.float32)
    results: list[Result] = []
    with ExitStack() as stack:
        opened: dict[str, list[calls.Call]] = {way: [] for way in servers}
        for way, server in servers.items():
            for _ in range(max(CONNECTIONS)):
                call = calls.framed(server.socket, model, values, greet=True)
                stack.callback(call.close)
                opened[way].append(call)
            calls.check(opened[way][0])
        for count in CONNECTIONS:
            results.append(
                _under_load(
                    name,
                    model,
                    servers,
                    {way: each[:count] for way, each in opened.items()},
                    effort,
                )
            )
        alone = interleave(
            {way: each[0] for way, each in opened.items()}, effort.of(0.3)
        )
    what = f"{name}, 1 connection, batching on"
    against = "the same with --no-batching"
    return [
        *results,
        Comparison(
            "B1",
            what,
            "µs",
            alone["together"],
            alone["one by one"],
            ALONE_GOAL,
            against=against,
        ),
    ]


def _under_load(
    name: str,
    model: str,
    servers: Mapping[str, Ours],
    opened: Mapping[str, list[calls.Call]],
    effort: Effort,
) -> Result:
    seconds, rounds = (0.2, 2) if effort is QUICK else (0.8, 5)
    rates: dict[str, list[float]] = {way: [] for way in opened}
    for way in opened:
        # The first batches are compared with single runs.
        closed_loop(opened[way], seconds)
    before = _runs(servers["together"], model)
    for _ in range(rounds):
        for way, each in opened.items():
            rates[way].append(closed_loop(each, seconds).rate)
    after = _runs(servers["together"], model)
    rows = (after[0] - before[0]) / max(1, after[1] - before[1])
    what = f"{name}, {len(opened['together'])} connections, {rows:.1f} rows a run"
    return Comparison(
        "B1",
        what,
        "/s",
        rates["together"],
        rates["one by one"],
        GAIN_GOAL,
        "least",
        "one by one",
    )


def _runs(server: Ours, model: str) -> tuple[int, int]:
    """Requests answered and runs of the model, so far."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.http}/v2/models/{model}/stats", timeout=30
    ) as answer:
        found = json.loads(answer.read())["model_stats"][0]
    return int(found["inference_count"]), int(found["execution_count"])


def _tflite(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "chain-tflite.tflite"
    reference.write_once(file, lambda: reference.work_model(LAYERS, free=True))


def _onnx(folder: Path) -> None:
    reference.write_once(folder / "chain-onnx.onnx", onnx_model)


def onnx_model() -> bytes:
    """Return the chain of layers as ONNX, without a package."""
    width = reference.WORK_WIDTH
    names = ["x", *(f"y{layer}" for layer in range(1, LAYERS)), "y"]
    graph = field(2, "chain")
    for before, after in itertools.pairwise(names):
        graph += field(
            1,
            field(1, before)
            + field(1, "weights")
            + field(2, after)
            + field(4, "MatMul"),
        )
    sizes = field(1, width) * 2
    graph += field(
        5,
        sizes
        + field(2, FLOAT)
        + field(8, "weights")
        + field(9, reference.work_matrix().tobytes()),
    )
    for number, name in ((11, "x"), (12, "y")):
        shape = field(1, field(2, "rows")) + field(1, field(1, width))
        graph += field(
            number,
            field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, shape))),
        )
    return (
        field(1, ONNX_VERSION)
        + field(7, graph)
        + field(8, field(1, "") + field(2, ONNX_OPERATORS))
    )


def _torch(folder: Path) -> None:
    own = folder / "chain-torch"
    own.mkdir(exist_ok=True)
    data = reference.work_matrix().tobytes()
    described = {
        "dtype": "F32",
        "shape": [reference.WORK_WIDTH] * 2,
        "data_offsets": [0, len(data)],
    }
    head = json.dumps({"matrix": described}).encode()
    reference.write_once(
        own / "weights.safetensors", lambda: struct.pack("<Q", len(head)) + head + data
    )
    reference.write_once(own / "model.py", MODULE.encode)
    reference.write_once(own / "model.toml", MANIFEST.encode)
    # Trusts the models in the state folder of this run's servers.
    words = ["trust", str(own), "--yes", "--state-dir", str(BENCH_FOLDER / "state")]
    subprocess.run(
        [sys.executable, "-m", "pocketserve", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )


MAKERS: Mapping[str, Callable[[Path], None]] = {
    "TFLite": _tflite,
    "ONNX": _onnx,
    "Torch": _torch,
}
