"""J1: the Java library against the Python client."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from typing import Any

from benchmarks import reference
from benchmarks.overhead import models, values_for
from benchmarks.processes import (
    BENCH_FOLDER,
    CLIENT_CORE,
    NO_TOKEN,
    ROOT,
    our_server,
    pinned,
)
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort
from pocketserve_client import Client

GOAL = 1.0
WHAT = "Java library over the socket"
SIZES = {"150,528 B": reference.PHOTO_MODEL, "64 B": reference.SMALL_MODEL}
RUN_TIMEOUT_S = 300


def run(effort: Effort) -> list[Result]:
    """Measure alternating blocks, after the JVM's warm-up."""
    builder = ROOT / "android_bridge" / "build.py"
    if shutil.which("javac") is None or not builder.exists():
        return [Missing("J1", WHAT, "there is no JDK")]
    try:
        command = _command(builder)
    except Exception as error:
        return [Missing("J1", WHAT, f"the library cannot be built: {error}")]
    return [_compare(size, model, command, effort) for size, model in SIZES.items()]


def _compare(size: str, model: str, command: list[str], effort: Effort) -> Result:
    rounds, requests = (1, 20) if effort is QUICK else (3, 1500)
    java: list[float] = []
    python: list[float] = []
    with our_server(models(), "--threads", "1") as ours, pinned(CLIENT_CORE):
        options = [
            "--model",
            model,
            "--port",
            str(ours.socket),
            "--requests",
            str(requests),
        ]
        options += ["--warmup", str(2 * requests)]
        for _ in range(rounds):
            done = subprocess.run(
                [*command, *options],
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
            )
            if done.returncode:
                return Missing("J1", WHAT, done.stderr.strip()[-300:])
            java += [sample / 1e3 for sample in json.loads(done.stdout)["samples_ns"]]
            python += _python(ours.socket, model, requests)
    return Comparison(
        "J1", f"{WHAT}, {size}", "µs", java, python, GOAL, against="Python client"
    )


def _command(builder: Any) -> list[str]:
    spec = importlib.util.spec_from_file_location("android_bridge_build", builder)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    build = module.Build(module.load_toolchain(), BENCH_FOLDER / "java")
    build.desktop()
    command: list[str] = build.desktop_command("Bench")
    return command


def _python(port: int, model: str, requests: int) -> list[float]:
    values = values_for(model)
    samples = []
    with Client(f"socket://127.0.0.1:{port}", token_file=NO_TOKEN) as client:
        for turn in range(requests + 100):
            began = time.perf_counter()
            client.infer(model, {"x": values})
            if turn >= 100:
                samples.append((time.perf_counter() - began) * 1e6)
    return samples
