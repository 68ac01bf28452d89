"""A1 to A3: the cost from array to array, by client and server.

Every side makes its request from an array, and its answer's array from what comes back, each time. The floor does so
with ten lines of its own, over a bare handler of the same frames.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks import calls as call_to
from benchmarks import reference, triton
from benchmarks.overhead import CASES, models, values_for
from benchmarks.peers import ensure_environment
from benchmarks.processes import (
    CLIENT_CORE,
    NO_TOKEN,
    StartError,
    module,
    our_server,
    pinned,
)
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort, interleave
from pocketserve_client import Client
from pocketserve_wire.frames import HEADER, HEADER_BYTES, FrameType

FLOOR, SOCKET, HTTP = "bare framed handler", "our client, socket", "our client, HTTP"
TRITONCLIENT, TRITON = "tritonclient, our server", "tritonclient, Triton"
PLAIN, TRITON_PLAIN = "http.client, our server", "http.client, Triton"
A1_GOAL, A1_TRITON_GOAL, A2_GOAL, A3_GOAL = 1.5, 3.0, 1.0, 1.0
ROUNDS_SHARE = 0.6  # share of the effort for each of two sizes
Ask = Callable[[], Any]
"""Sends the array and returns the answer's."""


def run(effort: Effort) -> list[Result]:
    """Measure all sides in turns, with Triton if available."""
    return [result for size in CASES for result in _compare(size, effort)]


def _compare(size: str, effort: Effort) -> Iterator[Result]:
    model, what = CASES[size]
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        sides = stack.enter_context(_our_sides(model))
        try:
            ensure_environment("triton", install=effort is not QUICK)
            sides |= stack.enter_context(_sides_of_triton(model))
        except StartError as error:
            yield Missing("A1", f"Triton, {what}", str(error))
        expected = reference.ramp_times(values_for(model)).ravel()
        for ask in sides.values():
            np.testing.assert_allclose(np.ravel(ask()), expected, rtol=1e-6)
        samples = interleave(sides, effort.of(ROUNDS_SHARE))
    yield from _rows(what, samples, is_small=size == "small")


def _rows(
    what: str, samples: dict[str, list[float]], *, is_small: bool
) -> Iterator[Result]:
    pairs = [
        ("A1", SOCKET, FLOOR, A1_GOAL, "most"),
        ("A1", SOCKET, TRITON, A1_TRITON_GOAL, "faster"),
        ("A2", HTTP, TRITONCLIENT, A2_GOAL, "most"),
        ("A2", HTTP, TRITON, A2_GOAL, "most"),
    ]
    if is_small:
        pairs.append(("A3", PLAIN, TRITON_PLAIN, A3_GOAL, "most"))
    for name, ours, floor, goal, rule in pairs:
        if floor in samples:
            row = f"{ours}, {what}"
            yield Comparison(
                name,
                row,
                "µs",
                samples[ours],
                samples[floor],
                goal,
                rule,
                against=floor,
            )


@contextmanager
def _our_sides(model: str) -> Iterator[dict[str, Ask]]:
    values = values_for(model)
    with ExitStack() as stack:
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        _, bare = stack.enter_context(
            module("bare", "framed", str(models() / f"{model}.tflite"))
        )
        sides = {FLOOR: stack.enter_context(_framed(bare, model, values))}
        for name, url in (
            (SOCKET, f"socket://127.0.0.1:{ours.socket}"),
            (HTTP, f"http://127.0.0.1:{ours.http}"),
        ):
            client = stack.enter_context(Client(url, token_file=NO_TOKEN))
            sides[name] = lambda client=client: client.infer(model, {"x": values})[
                "scores"
            ]  # type: ignore[misc]
        sides[TRITONCLIENT] = stack.enter_context(
            _tritonclient(ours.http, model, values)
        )
        sides[PLAIN] = stack.enter_context(_plain_http(ours.http, model, values))
        yield sides


@contextmanager
def _sides_of_triton(model: str) -> Iterator[dict[str, Ask]]:
    values = values_for(model)
    with triton.triton(models()) as port, ExitStack() as stack:
        yield {
            TRITON: stack.enter_context(_tritonclient(port, model, values)),
            TRITON_PLAIN: stack.enter_context(_plain_http(port, model, values)),
        }


@contextmanager
def _framed(port: int, model: str, values: np.ndarray) -> Iterator[Ask]:
    """Return the floor's client: manual JSON, no checks, one buffer."""
    buffer = bytearray(1 << 20)
    view, target = memoryview(buffer), f"POST /v2/models/{model}/infer".encode()
    with call_to.connect(port) as connected:

        def ask() -> np.ndarray:
            tensor = {"name": "x", "datatype": "FP32", "shape": list(values.shape)}
            inputs = [{**tensor, "parameters": {"binary_data_size": values.nbytes}}]
            text = json.dumps(
                {"parameters": {"binary_data_output": True}, "inputs": inputs}
            ).encode()
            size = len(text) + values.nbytes
            head = HEADER.pack(
                b"OI", FrameType.REQUEST, 0, 1, 0, len(target), 0, len(text), size
            )
            connected.sendall(b"".join((head, target, text, values.data.cast("B"))))
            have = connected.recv_into(buffer)
            while (end := call_to.frame_length(buffer, have)) is None or have < end:
                have += connected.recv_into(view[have:])
            start = HEADER_BYTES + HEADER.unpack_from(buffer)[7]
            [output] = json.loads(buffer[HEADER_BYTES:start])["outputs"]
            return np.frombuffer(buffer[start:end], "<f4").reshape(output["shape"])

        yield ask


@contextmanager
def _tritonclient(port: int, model: str, values: np.ndarray) -> Iterator[Ask]:
    from tritonclient import http as triton_http

    with triton_http.InferenceServerClient(f"127.0.0.1:{port}") as client:

        def ask() -> np.ndarray:
            tensor = triton_http.InferInput("x", values.shape, "FP32")
            tensor.set_data_from_numpy(values)
            answer: np.ndarray = client.infer(model, [tensor]).as_numpy("scores")
            return answer

        yield ask


@contextmanager
def _plain_http(port: int, model: str, values: np.ndarray) -> Iterator[Ask]:
    """Return Python's own client with a prepared body."""
    body, json_length = call_to.oip_body(values)
    headers = {
        "Inference-Header-Content-Length": str(json_length),
        "Content-Type": "application/octet-stream",
    }
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=call_to.TIMEOUT_S
    )

    def ask() -> np.ndarray:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = connection.getresponse()
        return np.frombuffer(
            answer.read(),
            "<f4",
            offset=int(answer.headers["Inference-Header-Content-Length"]),
        )

    try:
        yield ask
    finally:
        connection.close()
