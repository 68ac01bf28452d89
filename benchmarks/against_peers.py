"""P1: the same work on other servers, from 64 B to 16 MB and from 1 to 64 connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from benchmarks import calls, peers, reference
from benchmarks.load import closed_loop
from benchmarks.overhead import models, values_for
from benchmarks.processes import CLIENT_CORE, NO_TOKEN, Ours, StartError, our_server, pinned
from benchmarks.samples import Comparison, Curve, Missing, Result
from benchmarks.timing import QUICK, Effort, interleave

CONNECTIONS = (1, 8, 64)
OURS = ("pocketserve, socket", "pocketserve, HTTP")
SMALL_GOAL, PHOTO_GOAL, TUTORIAL_GOAL = 6.0, 45.0, 200.0
Make = Callable[[str], calls.Call]
"""Opens a connection for requests to the model of that name."""


def run(effort: Effort) -> list[Result]:
    """All sides are started, then asked in turn; what cannot be started is said."""
    results: list[Result] = []
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        sides: dict[str, Make] = {OURS[0]: _socket(ours), OURS[1]: _http(ours)}
        for peer in peers.PEERS:
            try:
                peers.ensure(peer, install=effort is not QUICK)
                sides[peer.name] = _peer(peer, stack.enter_context(peers.running(peer)))
            except StartError as error:
                results.append(Missing("P1", peer.name, str(error)))
        results += _whole_calls(sides, ours, effort)
        by_size = {model: _at_size(sides, model, effort) for model in _sizes(effort)}
        for model, what in ((reference.SMALL_MODEL, "64 B"), (reference.PHOTO_MODEL, "150,528 B")):
            results += _comparisons(by_size[model], f"{what}, bytes to bytes", with_goals=True)
        results += _http_everywhere(by_size)
        results += _size_curves(by_size)
        results += _connection_curves(sides, effort)
    return results


def _sizes(effort: Effort) -> list[str]:
    """All of them; a quick run leaves out those that take JSON seconds."""
    return [model for model, count in reference.SIZES.items() if effort is not QUICK or count <= reference.PHOTO]


def _socket(ours: Ours) -> Make:
    return lambda model: calls.framed(ours.socket, model, values_for(model), greet=True)


def _http(ours: Ours) -> Make:
    return lambda model: calls.http_binary(ours.http, model, values_for(model))


def _peer(peer: peers.Peer, port: int) -> Make:
    return lambda model: peer.call(port, values_for(model))


def _at_size(sides: dict[str, Make], model: str, effort: Effort) -> dict[str, list[float]]:
    open_calls = {}
    try:
        for name, make in sides.items():
            open_calls[name] = make(model)
            calls.check(open_calls[name], is_http=name != OURS[0])
        return interleave(open_calls, effort.of(0.25))
    finally:
        for call in open_calls.values():
            call.close()


def _comparisons(samples: dict[str, list[float]], what: str, *, with_goals: bool) -> list[Result]:
    """Ours against each peer, faster by how much."""
    results: list[Result] = []
    for transport in OURS:
        for name, theirs in samples.items():
            if name in OURS:
                continue
            goal = _goal(transport, name, what) if with_goals else None
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


def _goal(transport: str, peer: str, what: str) -> float:
    if transport == OURS[1]:
        return 1.0
    if what.startswith("64 B"):
        return SMALL_GOAL
    return TUTORIAL_GOAL if peer.startswith("tutorial") else PHOTO_GOAL


def _http_everywhere(by_size: dict[str, dict[str, list[float]]]) -> list[Result]:
    """HTTP against the fastest peer at the other sizes."""
    results: list[Result] = []
    for model, samples in by_size.items():
        theirs = {name: kept for name, kept in samples.items() if name not in OURS}
        if model in (reference.SMALL_MODEL, reference.PHOTO_MODEL) or not theirs:
            continue
        best = min(theirs, key=lambda name: float(np.median(theirs[name])))
        size = f"{4 * reference.SIZES[model]:,} B"
        results.append(
            Comparison(
                "P1",
                f"HTTP, {size}, fastest peer",
                "µs",
                samples[OURS[1]],
                theirs[best],
                1.0,
                "faster",
                against=best,
            )
        )
    return results


def _whole_calls(sides: dict[str, Make], ours: Ours, effort: Effort) -> list[Result]:
    """From array to array: the body is made and the answer read, as an application has to."""
    from pocketserve_client import Client

    results: list[Result] = []
    framed_url, http_url = f"socket://127.0.0.1:{ours.socket}", f"http://127.0.0.1:{ours.http}"
    with Client(framed_url, token_file=NO_TOKEN) as framed, Client(http_url, token_file=NO_TOKEN) as http:
        for model, what in ((reference.SMALL_MODEL, "64 B"), (reference.PHOTO_MODEL, "150,528 B")):
            values = values_for(model)
            turns: dict[str, Callable[[], object]] = {
                OURS[0]: lambda model=model, values=values: framed.infer(model, {"x": values}),
                OURS[1]: lambda model=model, values=values: http.infer(model, {"x": values}),
            }
            by_name = {peer.name: peer for peer in peers.PEERS}
            opened = {name: make(model) for name, make in sides.items() if name in by_name}
            turns |= {name: _whole(by_name[name], call, values) for name, call in opened.items()}
            results += _comparisons(interleave(turns, effort.of(0.1)), f"{what}, array to array", with_goals=False)
            for call in opened.values():
                call.close()
    return results


def _whole(peer: peers.Peer, call: calls.Call, values: np.ndarray) -> Callable[[], object]:
    head = bytes(call.request).split(b"\r\n\r\n", 1)[0]
    start, _, rest = head.partition(b"Content-Length: ")
    rest = rest.partition(b"\r\n")[2]

    def turn() -> object:
        body = peer.encode(values)
        call.request = bytearray(b"%bContent-Length: %d\r\n%b\r\n\r\n" % (start, len(body), rest) + body)
        call()
        return peer.decode(call.answer().split(b"\r\n\r\n", 1)[1])

    return turn


def _size_curves(by_size: dict[str, dict[str, list[float]]]) -> list[Result]:
    names = next(iter(by_size.values()))
    points = [4.0 * reference.SIZES[model] for model in by_size]
    return [
        Curve("P1", name, "payload", "µs", points, [samples[name] for samples in by_size.values()]) for name in names
    ]


def _connection_curves(sides: dict[str, Make], effort: Effort) -> list[Result]:
    """The photo over more and more connections, each side by itself."""
    seconds = 3.0 if effort is not QUICK else 0.2
    curves: list[Result] = []
    for name, make in sides.items():
        samples, rates, points = [], [], []
        for count in CONNECTIONS:
            opened: list[calls.Call] = []
            try:
                for _ in range(count):
                    opened.append(make(reference.PHOTO_MODEL))
                load = closed_loop(opened, seconds)
            except OSError as error:
                curves.append(Missing("P1", f"{name}, {count} connections", str(error)))
                continue
            finally:
                for call in opened:
                    call.close()
            points.append(float(count))
            samples.append(load.latencies)
            rates.append(load.rate)
            time.sleep(0.05)  # let the server see that they are closed
        if points:
            curves.append(Curve("P1", name, "connections", "µs", points, samples, rates))
    return curves
