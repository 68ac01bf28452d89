"""In-process invoke: the model alone, on the core where servers run. For each line on standard input, one line with
the microseconds of one run (set, invoke, get); a line with a number of seconds runs so long, and gives runs per second.
"""

from __future__ import annotations

import sys
import time

import numpy as np


def main(path: str) -> None:
    """Load, print 0 in the place of a port, serve."""
    from benchmarks.servers.bodies import work

    compute = work(path)
    values = np.zeros(_shape(path), np.float32)
    compute(values)
    print(0, flush=True)
    for line in sys.stdin:
        print(_rate(compute, values, float(line)) if line.strip() else _once(compute, values), flush=True)


def _shape(path: str) -> list[int]:
    from ai_edge_litert.interpreter import Interpreter

    return [int(size) for size in Interpreter(path).get_input_details()[0]["shape"]]


def _once(compute: object, values: np.ndarray) -> float:
    began = time.perf_counter()
    compute(values)  # type: ignore[operator]
    return (time.perf_counter() - began) * 1e6


def _rate(compute: object, values: np.ndarray, seconds: float) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        compute(values)  # type: ignore[operator]
        count += 1
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1])
