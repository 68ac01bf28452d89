"""``pocketserve demo``: a real server on the embedded models, asked real digits."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pocketserve.cli import CommandError
from pocketserve.cli.output import print_table
from pocketserve.config import embedded_models_dir
from pocketserve_client import Client

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's options: none of its own."""
    parser: argparse.ArgumentParser = commands.add_parser("demo", help="start a server, ask it ten digits, stop it")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the demo; fails unless every digit is read correctly."""
    models = embedded_models_dir()
    samples = sorted((models / "digits" / "samples").glob("*.png"))
    right = {}
    with _server(models) as (addresses, token):
        for transport, address in addresses.items():
            with Client(address, token_file=token) as client:
                print(f"over {transport}, at {address}:")
                rows, right[transport] = _ask_digits(client, samples)
                print_table(["PICTURE", "ANSWER", "SCORE", "MODEL ms", "WHOLE CALL ms"], rows)
                flower = client.predict("petals", [5.1, 3.5, 1.4])["predictions"][0]
                text = f"{flower['value']:.2f} {flower['unit']}"
                print(f"petals: sepal 5.1 x 3.5 cm, petal length 1.4 cm -> petal width {text}\n")
    for transport, count in right.items():
        print(f"{count} of {len(samples)} digits read correctly over {transport}")
    return 0 if samples and set(right.values()) == {len(samples)} else 1


def _ask_digits(client: Client, samples: list[Path]) -> tuple[list[list[str]], int]:
    client.load("digits")  # so that the first row does not pay for loading
    rows, right = [], 0
    for sample in samples:
        started = time.perf_counter()
        answer = client.predict("digits", sample.read_bytes(), top_k=1)
        elapsed = time.perf_counter() - started
        best = answer["predictions"][0]
        right += best["label"] == sample.stem
        mark = "" if best["label"] == sample.stem else f"  (it shows a {sample.stem})"
        timing = answer["timing_ms"]["infer"]
        rows.append(
            [
                sample.name,
                best["label"] + mark,
                f"{best['score']:.3f}",
                f"{timing:.2f}",
                f"{1e3 * elapsed:.2f}",
            ]
        )
    return rows, right


@contextmanager
def _server(models: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """A server process of its own, on free ports and with a token of its own: addresses by transport, token file."""
    with tempfile.TemporaryDirectory(prefix="pocketserve-demo-") as folder:
        ready, token = Path(folder, "ready.json"), Path(folder, "token")
        command = [sys.executable, "-m", "pocketserve", "serve", str(models), "--http-port", "0", "--socket-port", "0"]
        command += ["--ready-file", str(ready), "--token-file", str(token), "--log-level", "warning"]
        print(f"$ pocketserve serve {models.name} --http-port 0 --socket-port 0")
        process = subprocess.Popen(command)
        try:
            addresses = _await_ready(process, ready)
            print("a server answers and asks for its token\n")
            yield addresses, token
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen[bytes], ready: Path) -> dict[str, str]:
    ends = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends:
        if ready.exists():
            found = json.loads(ready.read_text())
            names = {"HTTP": "http", "the socket": "socket"}
            return {said: f"{name}://{found[name]['host']}:{found[name]['port']}" for said, name in names.items()}
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise CommandError("the demo's server ended before it was ready; its message stands above")
    raise CommandError(f"the demo's server was not ready within {START_TIMEOUT_S:g} s")
