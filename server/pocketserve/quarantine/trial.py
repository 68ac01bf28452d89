"""The throw-away process: loads a model, runs it, and says how it went.

Run as ``python -m pocketserve.quarantine.trial``: the model's description comes as JSON on standard input, the result
goes as one JSON line to standard output. Whatever a framework prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Session
from pocketserve.runtimes.registry import kind_named, runtime_for
from pocketserve.tensors import Array, TensorSpec, zeros

MAX_TRIAL_ELEMENTS = 1 << 26
"""Inputs larger than this are not made up: the trial only loads such a model."""

MAX_REASON = 1000
"""Characters; a file's own words may be in it, and nobody reads the pipe before the trial has ended."""

_LARGER = 64
"""A size of which strides and windows leave something."""


def main() -> int:
    """Try the model that standard input describes."""
    request = json.load(sys.stdin)
    answer_to = os.dup(1)
    os.dup2(2, 1)  # frameworks print to standard output
    _limit(int(request["data_limit"]))
    signal.alarm(int(request["alarm"]))
    result = try_model(request)
    result["reason"] = result["reason"][:MAX_REASON]
    os.write(answer_to, json.dumps(result).encode())
    return 0


def describe(kind: str, source: ModelSource) -> dict[str, Any]:
    """A model source as JSON, for the process that tries it."""
    specs = {"inputs": source.inputs, "outputs": source.outputs}
    return {
        "kind": kind,
        "path": str(source.path),
        "threads": source.threads,
        "options": dict(source.options),
        **{key: [[s.name, s.datatype, list(s.shape)] for s in value] for key, value in specs.items()},
    }


def try_model(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load and run; returns ``outcome`` (good, missing, refused or hollow), ``reason`` and ``runtime``."""
    kind = kind_named(request["kind"])
    assert kind is not None
    source = ModelSource(
        path=Path(request["path"]),
        threads=request["threads"],
        options=request["options"],
        inputs=tuple(TensorSpec(name, datatype, tuple(shape)) for name, datatype, shape in request["inputs"]),
        outputs=tuple(TensorSpec(name, datatype, tuple(shape)) for name, datatype, shape in request["outputs"]),
    )
    try:
        session = runtime_for(kind).open(source)
    except RuntimeMissingError as error:
        return {"outcome": "missing", "reason": str(error), "runtime": ""}
    except ModelLoadError as error:
        return {"outcome": "refused", "reason": str(error), "runtime": ""}
    except Exception as error:  # frameworks raise anything on a bad file
        return {"outcome": "refused", "reason": f"{type(error).__name__}: {str(error).strip()[:500]}", "runtime": ""}
    try:
        reason = _run(session)
    finally:
        session.close()
    outcome = "hollow" if reason else "good"
    return {"outcome": outcome, "reason": reason, "runtime": session.runtime}


def _run(session: Session) -> str:
    """Run on zeros and on small numbers; returns what is wrong with the answers, or nothing.

    A model that refuses made-up inputs is not bad: their sizes or values may make no sense to it.
    """
    silent: list[set[str]] = []
    for make in (zeros, _small_numbers):
        found = _silent_outputs(session, make_inputs(session.inputs, make))
        if found is None:
            return ""
        silent.append(found)
    hollow = silent[0] & silent[1]
    if hollow and any(-1 in spec.shape[1:] for spec in session.inputs):
        # Of a picture of one pixel some graphs have no numbers left, and are good all the same.
        larger = [_enlarged(spec) for spec in session.inputs]
        hollow &= _silent_outputs(session, make_inputs(larger, _small_numbers)) or set()
    return f"its output {min(hollow)!r} is not a number throughout; the file is probably damaged" if hollow else ""


def _silent_outputs(session: Session, inputs: dict[str, Array] | None) -> set[str] | None:
    """The outputs that are nothing but NaN; None if no run could tell."""
    if inputs is None:
        return None
    try:
        outputs = session.run(inputs)
    except Exception:
        return None
    return {name for name, array in outputs.items() if _is_nothing_but_nan(array)}


def _enlarged(spec: TensorSpec) -> TensorSpec:
    """With another size than 1 for its free dimensions, but for the first, which mostly counts rows."""
    return replace(spec, shape=tuple(_LARGER if size == -1 and at else size for at, size in enumerate(spec.shape)))


def make_inputs(specs: Sequence[TensorSpec], make: Callable[[TensorSpec], Array]) -> dict[str, Array] | None:
    """Made-up inputs, variable dimensions as 1; None where the file does not tell what it takes."""
    if any(spec.open or math.prod(max(1, dim) for dim in spec.shape) > MAX_TRIAL_ELEMENTS for spec in specs):
        return None
    return {spec.name: make(spec) for spec in specs}


def _small_numbers(spec: TensorSpec) -> Array:
    base = zeros(spec)
    if base.dtype.kind != "f":
        return base  # integers may be indices, which only 0 is sure to fit
    noise: Array = np.random.default_rng(0).uniform(0.01, 1.0, base.shape).astype(base.dtype)
    return noise


def _is_nothing_but_nan(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array).all())


def _limit(data_bytes: int) -> None:
    """No core files, and a hard end for memory; the parent watches for a softer one."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))


if __name__ == "__main__":
    sys.exit(main())
