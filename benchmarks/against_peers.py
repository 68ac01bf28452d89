"""P1: the same work on other servers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks import calls, peers, reference
from benchmarks.load import closed_loop
from benchmarks.overhead import models, values_for
from benchmarks.processes import (
    ALL_CORES,
    CLIENT_CORE,
    NO_TOKEN,
    Ours,
    StartError,
    module,
    our_server,
    pinned,
    release,
    stopped,
)
from benchmarks.samples import Comparison, Curve, Missing, Result, growth
from benchmarks.timing import QUICK, Effort, interleave, say
from pocketserve.messages import plural

CONNECTIONS = (1, 8, 64)
MORE_CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
"""For the picture, with the photo."""

CONNECTION_BLOCKS, CONNECTION_BLOCK_S = 3, 0.5
OURS = ("pocketserve, socket", "pocketserve, HTTP")
FLOORS = {
    "floor: bare framed handler": ("bare", "framed"),
    "floor: plain WSGI on waitress": ("wsgi", "plain"),
}
"""In the curves by size only: one of them serves one connection after the other."""

RELEASED_CONNECTIONS = (1, 8)
MEGABYTE_MODEL = "echo-1048576"
AT_CONNECTIONS = {
    reference.SMALL_MODEL: "64 B",
    reference.PHOTO_MODEL: "150,528 B",
    MEGABYTE_MODEL: "1,048,576 B",
}
SMALL_GOAL, PHOTO_GOAL, TUTORIAL_GOAL = 6.0, 45.0, 200.0
Make = Callable[[str], calls.Call]
"""Opens a connection for requests to the model of that name."""
BLOCKS, BLOCKS_OF_LARGE = 5, 2
LARGE = 1_000_000
"""Elements from which JSON takes seconds."""

CALL_S = 20.0
"""A call that takes longer is given up; that side is then not asked for more of this size, nor for larger ones."""

PIXELS = "pixels"
"""In the place of a model's name: the photo as 150,528 numbers from 0 to 255, which is how a server that takes JSON is
sent a photo. The same bytes go to us as they are."""

SLOW_S = 1.0
"""Of a side whose first call takes longer, that call is the block: one sample instead of many."""


@dataclass(frozen=True)
class Side:
    """A running server, and how to connect to it."""

    pid: int
    make: Make


Sides = dict[str, Side]
Samples = dict[str, list[float]]
GivenUp = dict[str, str]
"""Sides that are not asked any more, and why."""


def run(effort: Effort) -> list[Result]:
    """Start all sides, then measure them in alternating blocks."""
    results: list[Result] = []
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        sides = _start_sides(stack, ours, effort, results)
        results += _whole_calls(sides, ours, effort)
        by_size = dict(_by_size({**sides, **_floors(stack)}, effort, results))
        for model, size in (
            (reference.SMALL_MODEL, "64 B"),
            (reference.PHOTO_MODEL, "150,528 B"),
        ):
            title = f"{size}, bytes to bytes"
            results += _comparisons(by_size[model], title, with_goals=True)
        pixels = _at_size(_json_sides(sides), PIXELS, effort, {})
        title = "150,528 pixels, bytes to bytes"
        results += _comparisons(pixels, title, with_goals=True)
        results += _http_everywhere(by_size)
        results += _size_curves(by_size)
        for model, size in AT_CONNECTIONS.items():
            if effort is not QUICK or model == reference.PHOTO_MODEL:
                # JSON of a megabyte would take minutes.
                candidates = sides
                if model == MEGABYTE_MODEL:
                    candidates = _raw(sides)
                results += _at_connections(candidates, model, size, effort)
        if len(ALL_CORES) > 1:
            results += _released(sides, effort)
    curves = [item for item in results if isinstance(item, Curve)]
    return results + [_growth(curve) for curve in curves if len(curve.points) > 1]


def _start_sides(
    stack: ExitStack, ours: Ours, effort: Effort, results: list[Result]
) -> Sides:
    """Start all peers; those that can't be started become missing results."""
    sides = {
        OURS[0]: Side(ours.pid, _socket(ours)),
        OURS[1]: Side(ours.pid, _http(ours)),
    }
    for peer in peers.PEERS:
        try:
            peers.ensure(peer, install=effort is not QUICK)
            pid, port = stack.enter_context(peers.running(peer))
            sides[peer.name] = Side(pid, _peer(peer, port))
        except StartError as error:
            results.append(Missing("P1", peer.name, str(error)))
    return sides


def _json_sides(sides: Sides) -> Sides:
    """Return our sides, and the peers that take JSON."""
    raw = _raw(sides)
    return {
        name: side for name, side in sides.items() if name not in raw or name in OURS
    }


def _raw(sides: Sides) -> Sides:
    """Return our sides, and the peers that take raw bytes."""
    return {
        name: side
        for name, side in sides.items()
        if name in OURS or name.endswith(peers.RAW)
    }


def _floors(stack: ExitStack) -> Sides:
    """Return the cheapest frame and HTTP request in Python."""
    sides = {}
    for name, (server, mode) in FLOORS.items():
        child, port = stack.enter_context(module(server, mode, "numpy"))
        sides[name] = Side(child.pid, _floor(port, framed=server == "bare"))
    return sides


def _floor(port: int, *, framed: bool) -> Make:
    if framed:
        return lambda model: calls.framed(port, model, _values(model), greet=False)
    return lambda model: calls.http_binary(port, model, _values(model))


def _growth(curve: Curve) -> Result:
    """Return the cost of one more megabyte or connection."""
    per, scale = ("MB", 1e6) if curve.axis == "payload" else ("connection", 1.0)
    points = [point / scale for point in curve.points]
    return growth(
        "P1",
        f"{curve.side}, latency by {curve.axis}",
        curve.unit,
        per,
        points,
        curve.medians,
    )


def _sizes(effort: Effort) -> list[str]:
    """Return the sizes; a quick run omits slow ones."""
    return [
        model
        for model, count in reference.SIZES.items()
        if effort is not QUICK or count <= reference.PHOTO
    ]


def _socket(ours: Ours) -> Make:
    return lambda model: calls.framed(
        ours.socket, _ours(model), _values(_ours(model)), greet=True
    )


def _http(ours: Ours) -> Make:
    return lambda model: calls.http_binary(
        ours.http, _ours(model), _values(_ours(model))
    )


def _peer(peer: peers.Peer, port: int) -> Make:
    kept: dict[str, bytes] = {}

    def make(model: str) -> calls.Call:
        if model not in kept:  # encoding millions of numbers takes seconds
            kept.clear()
            kept[model] = peer.encode(_values(model))
        return peer.call(port, kept[model])

    return make


def _ours(model: str) -> str:
    if model == PIXELS:
        return reference.PHOTO_MODEL
    return model


def _values(model: str) -> np.ndarray:
    if model == PIXELS:
        return (
            np.random.default_rng(3).integers(0, 256, (1, 224, 224, 3)).astype(np.uint8)
        )
    return values_for(model)


@contextmanager
def _alone(sides: Sides, name: str) -> Iterator[Side]:
    """One side while all other servers are held still."""
    side = sides[name]
    say(f"asking {name}")
    with stopped(list({other.pid for other in sides.values()} - {side.pid})):
        yield side


def in_blocks(
    sides: Sides,
    effort: Effort,
    measure: Callable[[str, Side, Effort], list[float]],
    given_up: GivenUp,
    blocks: int = BLOCKS,
) -> Samples:
    """Measure alternating blocks of each side; drop failing sides."""
    samples: Samples = {name: [] for name in sides if name not in given_up}
    for _ in range(blocks if effort is not QUICK else 1):
        for name in [name for name in samples if name not in given_up]:
            with _alone(sides, name) as side:
                try:
                    samples[name] += measure(name, side, effort)
                except BlockingIOError:  # the socket's timeout
                    given_up[name] = f"no answer within {CALL_S:g} s"
                except (OSError, RuntimeError) as error:
                    given_up[name] = str(error)
    return {name: kept for name, kept in samples.items() if kept}


def _block(call: Callable[[], object], effort: Effort, share: float) -> list[float]:
    """Return samples of one side, after a warm-up."""
    part = Effort(
        max(2, int(effort.rounds * share)), max(2, int(effort.warm_up * share)), 2.0, 2
    )
    return interleave({"side": call}, part)["side"]


def _by_size(
    sides: Sides, effort: Effort, results: list[Result]
) -> Iterator[tuple[str, Samples]]:
    """Yield samples by model; sides that are too slow are dropped."""
    given_up: GivenUp = {}
    for model in _sizes(effort):
        before = set(given_up)
        yield model, _at_size(sides, model, effort, given_up)
        size = f"{4 * reference.SIZES[model]:,} B"
        for name, why in given_up.items():
            results.append(
                Missing(
                    "P1",
                    f"{name}, {size}",
                    why if name not in before else f"not asked: {why} before",
                )
            )


def _at_size(sides: Sides, model: str, effort: Effort, given_up: GivenUp) -> Samples:
    def measure(name: str, side: Side, effort: Effort) -> list[float]:
        call = side.make(model)
        try:
            call.be_patient(CALL_S)
            began = time.perf_counter()
            calls.check(call)
            first = time.perf_counter() - began
            if first > SLOW_S:
                return [first * 1e6]
            return _block(call, effort, 0.1)
        finally:
            call.close()

    blocks = BLOCKS
    if reference.SIZES.get(model, 0) >= LARGE:
        blocks = BLOCKS_OF_LARGE
    return in_blocks(sides, effort, measure, given_up, blocks)


def _comparisons(samples: Samples, what: str, *, with_goals: bool) -> list[Result]:
    """Compare our speed with each peer's."""
    results: list[Result] = []
    for transport in OURS:
        for name, theirs in samples.items():
            if name in OURS or name in FLOORS:
                continue
            goal = None
            if with_goals:
                goal = _goal(transport, name, what)
            results.append(
                Comparison(
                    "P1",
                    f"{transport.split(', ')[1]}, {what}",
                    "µs",
                    samples[transport],
                    theirs,
                    goal,
                    "faster",
                    against=name,
                )
            )
    return results


def _goal(transport: str, peer: str, what: str) -> float | None:
    """Return the goal against peers with JSON; raw ones are for comparison."""
    if transport == OURS[1]:
        return 1.0
    if peer.endswith(peers.RAW):
        return None
    if what.startswith("64 B"):
        return SMALL_GOAL
    if peer.startswith("tutorial"):
        return TUTORIAL_GOAL
    return PHOTO_GOAL


def _http_everywhere(by_size: dict[str, Samples]) -> list[Result]:
    """Compare HTTP with the fastest peer at the other sizes."""
    others = [
        model
        for model in by_size
        if model not in (reference.SMALL_MODEL, reference.PHOTO_MODEL)
    ]
    return [
        row
        for model in others
        for row in _fastest(by_size[model], f"HTTP, {4 * reference.SIZES[model]:,} B")
    ]


def _whole_calls(sides: Sides, ours: Ours, effort: Effort) -> list[Result]:
    """Measure from array to array, as applications do."""
    from pocketserve_client import Client

    results: list[Result] = []
    framed_url = f"socket://127.0.0.1:{ours.socket}"
    http_url = f"http://127.0.0.1:{ours.http}"
    with (
        Client(framed_url, token_file=NO_TOKEN) as framed,
        Client(http_url, token_file=NO_TOKEN) as http,
    ):
        ours_by_name = {OURS[0]: framed, OURS[1]: http}
        by_name = {peer.name: peer for peer in peers.PEERS}
        for model, what in (
            (reference.SMALL_MODEL, "64 B"),
            (reference.PHOTO_MODEL, "150,528 B"),
        ):
            values = values_for(model)

            def measure(
                name: str,
                side: Side,
                effort: Effort,
                model: str = model,
                values: np.ndarray = values,
            ) -> list[float]:
                if name in OURS:
                    return _block(
                        lambda: ours_by_name[name].infer(model, {"x": values}),
                        effort,
                        0.05,
                    )
                call = side.make(model)
                try:
                    return _block(_whole(by_name[name], call, values), effort, 0.05)
                finally:
                    call.close()

            samples = in_blocks(sides, effort, measure, {})
            results += _comparisons(
                samples, f"{what}, array to array", with_goals=False
            )
    return results


def _whole(
    peer: peers.Peer, call: calls.Call, values: np.ndarray
) -> Callable[[], object]:
    def turn() -> object:
        call.replace_body(peer.encode(values))
        call()
        return peer.decode(call.body())

    return turn


def _size_curves(by_size: dict[str, Samples]) -> list[Result]:
    curves: list[Result] = []
    for name in next(iter(by_size.values())):
        answered = {}
        for model, samples in by_size.items():
            if name in samples:
                answered[model] = samples[name]
        points = [4.0 * reference.SIZES[model] for model in answered]
        curves.append(
            Curve("P1", name, "payload", "µs", points, list(answered.values()))
        )
    return curves


def _at_connections(
    sides: Sides, model: str, size: str, effort: Effort
) -> list[Result]:
    """Measure all sides at increasing numbers of connections."""
    results: list[Result] = []
    curves = {name: _ConnectionCurve() for name in sides}
    more = model == reference.PHOTO_MODEL and effort is not QUICK
    for count in MORE_CONNECTIONS if more else CONNECTIONS:
        rates: dict[str, list[float]] = {name: [] for name in sides}
        given_up: GivenUp = {}
        samples = in_blocks(
            sides, effort, _load(model, count, rates), given_up, CONNECTION_BLOCKS
        )
        title = f"{size}, {plural(count, 'connection')}"
        for name, reason in given_up.items():
            results.append(Missing("P1", f"{name}, {title}", reason))
        for name, latencies in samples.items():
            curves[name].points.append(float(count))
            curves[name].samples.append(latencies)
            curves[name].rates.append(statistics.fmean(rates[name]))
        if count in CONNECTIONS:
            results += _fastest(samples, f"HTTP, {title}")
    axis = "connections" if model == reference.PHOTO_MODEL else f"connections, {size}"
    for name, curve in curves.items():
        if curve.points:
            results.append(curve.result(name, axis))
    return results


@dataclass
class _ConnectionCurve:
    """Latencies and mean rates of a side, by number of connections."""

    points: list[float] = field(default_factory=list)
    samples: list[list[float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def result(self, name: str, axis: str) -> Curve:
        """Return the curve for the report."""
        return Curve("P1", name, axis, "µs", self.points, self.samples, self.rates)


def _released(sides: Sides, effort: Effort) -> list[Result]:
    """Run multi-process peers on all cores, ours on one."""
    results: list[Result] = []
    for name, side in sides.items():
        if name not in OURS:
            release(side.pid)
    for count in RELEASED_CONNECTIONS:
        measure = _load(reference.PHOTO_MODEL, count, {name: [] for name in sides})
        samples = in_blocks(sides, effort, measure, {}, CONNECTION_BLOCKS)
        what = f"HTTP, 150,528 B, {plural(count, 'connection')}, peer on all cores"
        results += [
            Comparison("P1", what, "µs", samples[OURS[1]], kept, 1.0, "faster", name)
            for name, kept in samples.items()
            if name not in OURS
        ]
    return results


def _load(
    model: str, count: int, rates: dict[str, list[float]]
) -> Callable[[str, Side, Effort], list[float]]:
    def measure(name: str, side: Side, effort: Effort) -> list[float]:
        opened: list[calls.Call] = []
        try:
            for _ in range(count):
                opened.append(side.make(model))
            load = closed_loop(
                opened, CONNECTION_BLOCK_S if effort is not QUICK else 0.2
            )
        finally:
            for call in opened:
                call.close()
        time.sleep(0.05)  # so that the server notices that they are closed
        rates[name].append(load.rate)
        return load.latencies

    return measure


def _fastest(samples: Samples, what: str) -> list[Result]:
    """HTTP against the fastest peer."""
    theirs = {
        name: float(np.median(kept))
        for name, kept in samples.items()
        if name not in (*OURS, *FLOORS)
    }
    if not theirs or OURS[1] not in samples:
        return []
    best = min(theirs, key=lambda name: theirs[name])
    return [
        Comparison(
            "P1",
            f"{what}, fastest peer",
            "µs",
            samples[OURS[1]],
            samples[best],
            1.0,
            "faster",
            best,
        )
    ]
