"""In-process invoke: the model alone, on the core where servers run.

For each line on standard input, it prints the microseconds of one run (set, invoke,
get). A line with a number of seconds runs for that time, and prints runs per second.
"""

from __future__ import annotations

import sys
import time

import numpy as np


def main(path: str) -> None:
    """Load, print 0 in the place of a port, serve."""
    from benchmarks.servers.bodies import work

    compute = work(path)
    values = random_input(path)
    compute(values)
    print(0, flush=True)
    for line in sys.stdin:
        print(
            _rate(compute, values, float(line))
            if line.strip()
            else _once(compute, values),
            flush=True,
        )


def random_input(path: str) -> np.ndarray:
    """Return the model's input, here and over the socket.

    It has no zeros, for which the system would use a single page.
    """
    from ai_edge_litert.interpreter import Interpreter

    taken = Interpreter(path).get_input_details()[0]
    shape = [int(size) for size in taken["shape"]]
    draw = np.random.default_rng(5)
    if taken["dtype"] is np.uint8:
        return draw.integers(0, 256, shape, np.uint8)
    if taken["dtype"] is not np.float32:
        raise RuntimeError(f"{path} takes neither FP32 nor UINT8")
    return draw.random(shape, np.float32)


def _once(compute: object, values: np.ndarray) -> float:
    began = time.perf_counter()
    compute(values)  # type: ignore[operator]
    return (time.perf_counter() - began) * 1e6


def _rate(compute: object, values: np.ndarray, seconds: float) -> float:
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        compute(values)  # type: ignore[operator]
        count += 1
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1])
