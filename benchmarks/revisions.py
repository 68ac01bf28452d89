"""Speed and memory of another commit against this one.

``python -m benchmarks --against COMMIT`` runs the benchmarks below. The other commit's
sources are unpacked under ``.bench/revisions``. Both servers run with the packages of
this environment on one core, and get the same requests.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks import calls as call_to
from benchmarks import idle, model_work
from benchmarks.cold_start import MODELS, ask_digits
from benchmarks.load import closed_loop
from benchmarks.memory import resident_mb
from benchmarks.overhead import CASES, models, values_for
from benchmarks.processes import (
    BENCH_FOLDER,
    CLIENT_CORE,
    ROOT,
    Ours,
    our_server,
    pinned,
)
from benchmarks.samples import Comparison, Result
from benchmarks.servers.inprocess import random_input
from benchmarks.timing import QUICK, Effort, interleave

SPEED_GOAL, RATE_GOAL, START_GOAL, MEMORY_GOAL = 1.03, 0.97, 1.05, 1.03
CONNECTIONS = 8
START_ROUNDS, MEMORY_ROUNDS = 15, 5
SETTLE_S = 0.3
GIT_TIMEOUT_S = 60.0

Servers = dict[str, Ours]
Opener = Callable[[Ours], call_to.Call]
Case = tuple[str, Path, Opener]
"""What is asked, in words; the models folder; and how a connection for it is opened."""


def benchmarks(commit: str) -> Mapping[str, Callable[[Effort], list[Result]]]:
    """Return the benchmarks that compare this tree with a commit.

    Raises:
        ValueError: git knows no such commit.
    """
    other = unpacked(commit)
    sides = {"ours": ROOT, "other": other}
    against = f"commit {other.name}"
    return {
        "S1": lambda effort: list(
            _latencies("S1", [_case("photo", _socket)], sides, against, effort)
        ),
        "S2": lambda effort: list(
            _latencies("S2", [_case("small", _socket)], sides, against, effort)
        ),
        "H1": lambda effort: list(
            _latencies(
                "H1", [_case(size, _http) for size in CASES], sides, against, effort
            )
        ),
        "M1": lambda effort: list(
            _latencies("M1", _real_models(), sides, against, effort)
        ),
        "T1": lambda effort: list(_rates("T1", sides, against, effort)),
        "R1": lambda effort: [_memory("R1", sides, against, effort)],
        "C1": lambda effort: [_start("C1", sides, against, effort)],
        "L1": lambda effort: _idle("L1", sides, against, effort),
    }


def unpacked(commit: str) -> Path:
    """Unpack server and client of a commit once.

    Raises:
        ValueError: git knows no such commit.
    """
    try:
        name = _git("rev-parse", "--short=8", f"{commit}^{{commit}}").decode().strip()
        folder = BENCH_FOLDER / "revisions" / name
        if not folder.exists():
            archive = _git("archive", "--format=tar", name, "server", "client")
            half = folder.with_name(f"{name}.{os.getpid()}")
            with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
                opened.extractall(half, filter="data")
            half.rename(folder)
    except subprocess.CalledProcessError as error:
        raise ValueError(
            f"git has no commit {commit!r}: {error.stderr.decode(errors='replace').strip()}"
        ) from None
    return folder


def _git(*arguments: str) -> bytes:
    done = subprocess.run(
        ["git", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=GIT_TIMEOUT_S,
    )
    return done.stdout


def _server(tree: Path, folder: Path) -> AbstractContextManager[Ours]:
    """Start a tree's server with a state folder of its own."""
    path = os.pathsep.join(str(tree / part) for part in ("server", "client"))
    state = str(BENCH_FOLDER / "revisions" / f"state-{tree.name}")
    return our_server(
        folder,
        "--threads",
        "1",
        environment={"PYTHONPATH": path, "POCKETSERVE_STATE_DIR": state},
    )


@contextmanager
def _servers(sides: Mapping[str, Path], folder: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_server(tree, folder))
            for name, tree in sides.items()
        }


def _socket(size: str) -> Opener:
    model, _ = CASES[size]
    return lambda server: call_to.framed(
        server.socket, model, values_for(model), greet=True
    )


def _http(size: str) -> Opener:
    model, _ = CASES[size]
    return lambda server: call_to.http_binary(server.http, model, values_for(model))


@contextmanager
def _calls(
    sides: Mapping[str, Path], folder: Path, opener: Opener
) -> Iterator[dict[str, call_to.Call]]:
    """One connection to each server, over which one answer came."""
    with _servers(sides, folder) as servers, pinned(CLIENT_CORE), ExitStack() as stack:
        opened = {name: opener(server) for name, server in servers.items()}
        for call in opened.values():
            stack.callback(call.close)
            call_to.check(call)
        yield opened


def _latencies(
    name: str,
    cases: Iterable[Case],
    sides: Mapping[str, Path],
    against: str,
    effort: Effort,
) -> Iterator[Result]:
    for what, folder, opener in cases:
        with _calls(sides, folder, opener) as opened:
            samples = interleave(opened, effort)
        yield Comparison(
            name,
            what,
            "µs",
            samples["ours"],
            samples["other"],
            SPEED_GOAL,
            against=against,
        )


def _case(size: str, transport: Callable[[str], Opener]) -> Case:
    return CASES[size][1], models(), transport(size)


def _real_models() -> Iterator[Case]:
    """Return each available MobileNet, or the embedded digits."""
    found = [
        model_work.find_mobilenet(name)
        for name in (model_work.FLOAT, model_work.QUANTIZED)
    ]
    for file in [file for file in found if file] or [
        MODELS / "digits" / "digits.tflite"
    ]:
        folder = BENCH_FOLDER / "revisions" / "models" / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.name)
        values, name = random_input(str(file)), model_work.input_name(file)

        def opener(
            server: Ours,
            file: Path = file,
            values: np.ndarray = values,
            name: str = name,
        ) -> call_to.Call:
            return call_to.framed(
                server.socket, file.stem, values, greet=True, name=name
            )

        yield f"{file.stem}, {values.nbytes:,} B in, over the socket", folder, opener


def _rates(
    name: str, sides: Mapping[str, Path], against: str, effort: Effort
) -> Iterator[Result]:
    """Measure eight connections to each server in alternating blocks."""
    small, *over_http = _case("small", _http)
    for what, folder, opener in (
        _case("small", _socket),
        (f"{small}, HTTP", *over_http),
        *_real_models(),
    ):
        samples = _rate_samples(sides, folder, opener, effort)
        label = f"{what}, {CONNECTIONS} connections"
        yield Comparison(
            name,
            label,
            "/s",
            samples["ours"],
            samples["other"],
            RATE_GOAL,
            "least",
            against=against,
        )


def _rate_samples(
    sides: Mapping[str, Path], folder: Path, opener: Opener, effort: Effort
) -> dict[str, list[float]]:
    seconds, rounds = (0.2, 2) if effort is QUICK else (1.0, 12)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    with _servers(sides, folder) as servers, pinned(CLIENT_CORE), ExitStack() as stack:
        opened = {
            name: [opener(server) for _ in range(CONNECTIONS)]
            for name, server in servers.items()
        }
        for call in [call for side in opened.values() for call in side]:
            stack.callback(call.close)
            call_to.check(call)
        for turn in range(rounds):
            for name in _in_turn(sides, turn):
                samples[name].append(closed_loop(opened[name], seconds).rate)
    return samples


def _in_turn(sides: Mapping[str, Path], turn: int) -> list[str]:
    """Return the sides, in an order that alternates."""
    return list(sides)[:: 1 if turn % 2 else -1]


def _memory(
    name: str, sides: Mapping[str, Path], against: str, effort: Effort
) -> Result:
    """Measure resident memory with one loaded model."""
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(min(MEMORY_ROUNDS, effort.rounds)):
        with _servers(sides, models()) as servers:
            for side, server in servers.items():
                for opener in (_socket("small"), _http("small")):
                    call = opener(server)
                    call_to.check(call)
                    call.close()
                time.sleep(SETTLE_S)
                samples[side].append(resident_mb(server.pid))
    what = "resident memory, one model loaded"
    return Comparison(
        name,
        what,
        "MB",
        samples["ours"],
        samples["other"],
        MEMORY_GOAL,
        against=against,
    )


def _start(
    name: str, sides: Mapping[str, Path], against: str, effort: Effort
) -> Result:
    """Measure from process start to the first answer."""
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(min(START_ROUNDS, effort.rounds) + 1):
        for side in _in_turn(sides, turn):
            began = time.perf_counter()
            with _server(sides[side], MODELS) as server:
                ask_digits(server.http)
                samples[side].append((time.perf_counter() - began) * 1e3)
    what = "process start to first answer, digits"
    return Comparison(
        name,
        what,
        "ms",
        samples["ours"][1:],
        samples["other"][1:],
        START_GOAL,
        against=against,
    )


def _idle(
    name: str, sides: Mapping[str, Path], against: str, effort: Effort
) -> list[Result]:
    """Compare each idle server's CPU time with the limit."""
    found: list[Result] = []
    for side, tree in sides.items():
        of = "" if side == "ours" else f", {against}"
        found += idle.results(*idle.measure(_server(tree, models()), effort), of=of)
    return found
