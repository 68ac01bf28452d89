"""S1, S2 and H1: our transports against the barest handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks import calls as call_to
from benchmarks import reference
from benchmarks.processes import (
    BENCH_FOLDER,
    CLIENT_CORE,
    SERVER_CORE,
    module,
    our_server,
    pinned,
)
from benchmarks.samples import Comparison, Result
from benchmarks.timing import Effort, interleave

CASES = {
    "photo": (reference.PHOTO_MODEL, "150,528 B in / 4,004 B out"),
    "small": (reference.SMALL_MODEL, "64 B in / 4,004 B out"),
}
Sides = dict[str, call_to.Call]
S1_GOAL, S1_LOOP_GOAL, S2_GOAL, H1_GOAL, H1_WSGI_GOAL = 1.3, 2.0, 1.5, 1.0, 1.3


def run_s1(effort: Effort) -> list[Result]:
    """The socket, with the photo."""
    goals = {
        "framed": S1_GOAL,
        "framed+model": S1_GOAL,
        "loop": S1_LOOP_GOAL,
        "threads": None,
        "kept": None,
    }
    return list(_compare("S1", socket_sides, "photo", goals, effort))


def run_s2(effort: Effort) -> list[Result]:
    """The socket, with 64 B."""
    goals = {
        "framed": S2_GOAL,
        "framed+model": S2_GOAL,
        "loop": None,
        "threads": None,
        "kept": None,
    }
    return list(_compare("S2", socket_sides, "small", goals, effort))


def run_h1(effort: Effort) -> list[Result]:
    """HTTP, with both."""
    goals = {
        "flask": H1_GOAL,
        "flask+model": H1_GOAL,
        "plain": H1_WSGI_GOAL,
        "plain+model": H1_WSGI_GOAL,
    }
    return [
        result
        for size in CASES
        for result in _compare("H1", http_sides, size, goals, effort)
    ]


NAMES = {
    "framed": "bare framed handler, NumPy",
    "framed+model": "bare framed handler, TFLite",
    "loop": "bare socket loop, NumPy",
    "threads": "framed, second reading thread",
    "kept": "framed, TFLite, JSON part kept",
    "flask": "bare Flask on waitress, NumPy",
    "flask+model": "bare Flask on waitress, TFLite",
    "plain": "plain WSGI on waitress, NumPy",
    "plain+model": "plain WSGI on waitress, TFLite",
}


def _compare(
    name: str,
    sides: Callable[..., object],
    size: str,
    goals: dict[str, float | None],
    effort: Effort,
) -> Iterator[Result]:
    _, what = CASES[size]
    for core, where, share in (
        (SERVER_CORE, "", 1.0),
        (CLIENT_CORE, ", same core", 0.4),
    ):
        with pinned(CLIENT_CORE), sides(size, core) as calls:  # type: ignore[attr-defined]
            samples = interleave(calls, effort.of(share))
        for floor, goal in goals.items():
            if where and goal is None:
                continue
            yield Comparison(
                name,
                what + where,
                "µs",
                samples["ours"],
                samples[floor],
                None if where else goal,
                against=NAMES[floor],
            )


def models() -> Path:
    """The folder with the reference models."""
    return reference.write_models(BENCH_FOLDER / "models")


def values_for(model: str) -> np.ndarray:
    """Return an echo model's input: pixels from 0 to 1."""
    count = reference.SIZES[model]
    values = np.random.default_rng(3).integers(0, 256, count).astype(
        np.float32
    ) / np.float32(255)
    return values.reshape(
        (1, 3, 112, 112) if count == reference.PHOTO else (1, 1, 1, count)
    )


@contextmanager
def socket_sides(size: str, core: int) -> Iterator[Sides]:
    """Our socket and its floors, running."""
    model, _ = CASES[size]
    values = values_for(model)
    folder = models()
    with ExitStack() as stack:
        ours = stack.enter_context(our_server(folder, "--threads", "1", core=core))
        file = str(folder / f"{model}.tflite")
        calls = {"ours": call_to.framed(ours.socket, model, values, greet=True)}
        for name, mode, work in (
            ("framed", "framed", "numpy"),
            ("framed+model", "framed", file),
            ("threads", "threads", "numpy"),
            ("kept", "kept", file),
        ):
            _, port = stack.enter_context(module("bare", mode, work, core=core))
            calls[name] = call_to.framed(port, model, values, greet=False)
        _, port = stack.enter_context(
            module("bare", "loop", str(values.nbytes), core=core)
        )
        for call in calls.values():
            stack.callback(call.close)
            call_to.check(call)
        calls["loop"] = call_to.plain(port, values.tobytes(), 4 * reference.CLASSES)
        stack.callback(calls["loop"].close)
        yield calls


@contextmanager
def http_sides(size: str, core: int) -> Iterator[Sides]:
    """Our HTTP and its floors, running."""
    model, _ = CASES[size]
    values = values_for(model)
    folder = models()
    file = str(folder / f"{model}.tflite")
    with ExitStack() as stack:
        ports = {
            "ours": stack.enter_context(
                our_server(folder, "--threads", "1", core=core)
            ).http
        }
        for mode in ("flask", "plain"):
            for name, work in ((mode, "numpy"), (f"{mode}+model", file)):
                _, ports[name] = stack.enter_context(
                    module("wsgi", mode, work, core=core)
                )
        calls = {
            name: call_to.http_binary(port, model, values)
            for name, port in ports.items()
        }
        for call in calls.values():
            stack.callback(call.close)
            call_to.check(call)
        yield calls
