"""The throw-away process: loads a model, sets up all that its files decide, runs it, and reports the result.

Run by :mod:`pocketserve.quarantine.sandbox`, which confines it. The server pickles the model's description to its
standard input. It writes one line to standard output once the framework is imported, and then the result in JSON.
Whatever a framework prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketserve.engine.lifecycle.setup import Setup, set_up
from pocketserve.inference.inputs import collect
from pocketserve.messages import excerpt
from pocketserve.quarantine import synthetic_inputs as synthetic
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import (
    ModelLoadError,
    ModelSource,
    RuntimeMissingError,
    Session,
)
from pocketserve.runtimes.framework_import import import_framework
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.registry import runtime_for
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tensors import Array, TensorSpec, to_tensor, zeros

if TYPE_CHECKING:
    from pocketserve.quarantine.sandbox import Confinement

_SCARCE = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
_NO_THREADS = (
    "can't start new thread",
    "Resource temporarily unavailable",
    "pthread_create",
)
"""How Python, C and frameworks say that the device has nothing to spare."""

IMPORTED = b"imported\n"
"""Written first, before any of the model's files is opened: the framework's import has ended well, or raised."""

MAX_REASON = 1000  # characters; a file's own words may be in it, and nobody reads the pipe before the trial has ended
MAX_PIXELS = 1 << 20  # of a synthetic picture, which has four
MAX_RUNS = 4  # runs of one synthetic body; a long window makes one of a short sound


def main(confine: Callable[[], Confinement]) -> int:
    """Try the model that standard input describes; confine the process between the import and opening the model."""
    request = pickle.load(sys.stdin.buffer)
    output = os.dup(1)
    os.dup2(2, 1)  # frameworks print to standard output
    _limit(int(request["data_limit"]))
    signal.alarm(int(request["alarm"]))
    _import_framework(request["version"].format, request["source"].threads)
    os.write(output, IMPORTED)
    confinement = confine()
    result = try_model(request["entry"], request["version"], request["source"])
    forbidden = any(
        os.strerror(number) in result["reason"]
        for number in (errno.EPERM, errno.EACCES)
    )
    if (
        result["outcome"] in ("rejected", "missing")
        and confinement.confined
        and forbidden
    ):
        result["reason"] = (
            f"{result['reason'][:500]}; in its trial a file may use its own folder and libraries, but no other files, "
            "no network and no further process (`pocketserve serve --no-quarantine` has no trials)"
        )
    result["reason"] = result["reason"][:MAX_REASON]
    os.write(output, json.dumps(result).encode())
    return 0


def serialize_request(
    entry: ModelEntry, version: VersionEntry, source: ModelSource, **limits: int
) -> bytes:
    """Return what :func:`main` reads: just what the server has read, whatever the files hold by then."""
    return pickle.dumps(
        {"entry": entry, "version": version, "source": source, **limits}
    )


def try_model(
    entry: ModelEntry, version: VersionEntry, source: ModelSource
) -> dict[str, str]:
    """Load, set up and run; return ``outcome`` (ok, missing, rejected, starved or nan_output), reason and runtime."""
    try:
        with contextlib.closing(runtime_for(version.format).open(source)) as session:
            setup = set_up(entry, version, session, MAX_PIXELS, source)
            try_out = getattr(session, "try_out", None)
            if try_out is not None:
                try_out()
                return {"outcome": "ok", "reason": "", "runtime": session.runtime}
            outcome, reason = _run(session, setup)
            return {"outcome": outcome, "reason": reason, "runtime": session.runtime}
    except Exception as error:  # frameworks raise anything on a bad file
        return _failure(error)


def _import_framework(format: ModelFormat, threads: int) -> None:
    """Import what opens files of a format. If it cannot be imported, opening the file says so."""
    with contextlib.suppress(Exception):
        if format.packages == ("tensorflow",):
            from pocketserve.runtimes.tensorflow.common import import_tensorflow

            import_tensorflow(threads)
        elif "ai_edge_litert" in format.packages:
            from pocketserve.runtimes.tflite.interpreters import PACKAGES, import_first

            import_first(PACKAGES)
        else:
            for package in format.packages:
                import_framework(package)
    gc.freeze()  # what is there now stays


def _failure(error: Exception) -> dict[str, str]:
    if _is_scarce(error) or any(text in str(error) for text in _NO_THREADS):
        return {"outcome": "starved", "reason": str(error)[:300], "runtime": ""}
    by_system = getattr(error, "by_system", None)  # of a model's own process
    if by_system is not None:
        outcome = "starved" if by_system else "ended"
        return {"outcome": outcome, "reason": str(error)[:300], "runtime": ""}
    is_sentence = isinstance(error, RuntimeMissingError | ModelLoadError)
    reason = (
        str(error) if is_sentence else f"{type(error).__name__}: {excerpt(error, 500)}"
    )
    outcome = "missing" if isinstance(error, RuntimeMissingError) else "rejected"
    return {"outcome": outcome, "reason": reason, "runtime": ""}


def _is_scarce(error: BaseException | None, levels: int = 3) -> bool:
    """Return whether the device had nothing to spare; readers of files put its errors into their own words, twice."""
    if error is None or levels == 0:
        return False
    return (isinstance(error, OSError) and error.errno in _SCARCE) or _is_scarce(
        error.__cause__, levels - 1
    )


def _run(session: Session, setup: Setup) -> tuple[str, str]:
    """Run a model on synthetic inputs and return the outcome, and why.

    A model that refuses such inputs is not bad: their sizes or values may make no sense to it.
    """
    by_task, specs = _nan_by_task(session, setup), session.inputs
    nan_for_zeros = _nan_outputs(session, specs, zeros)
    names = nan_for_zeros & _nan_outputs(session, specs, synthetic.small_numbers)
    if names and by_task is not None:
        names &= by_task
    elif names and any(spec.datatype[0] in "IUB" for spec in specs):
        # Of zeros, a mean over a mask of zeros has no number; 1 may be beyond what other inputs take.
        names &= _nan_outputs(
            session, specs, synthetic.integer_ones, synthetic.masks_of_ones
        )
    if names and any(-1 in spec.shape[1:] for spec in specs):
        # Of a picture of one pixel some graphs have no numbers left, and are good all the same.
        names &= _nan_outputs(
            session, [*map(synthetic.enlarged, specs)], synthetic.integer_ones
        )
    if names:
        return "nan_output", (
            f"its output {min(names)!r:.300} is not a number throughout, whatever goes in; the file is probably "
            "damaged; if it is meant to be so, `pocketserve serve --no-quarantine` serves it"
        )
    reason = (
        f"its output {min(nan_for_zeros)!r:.300} is not a number where only zeros go in"
        if nan_for_zeros
        else ""
    )
    return "ok", reason


def _nan_outputs(
    session: Session, specs: Sequence[TensorSpec], *fills: synthetic.FillTensor
) -> set[str]:
    """Return the outputs that are nothing but NaN for the first inputs that the model takes."""
    for fill in fills:
        inputs = synthetic.make_inputs(specs, fill)
        with contextlib.suppress(Exception):
            if inputs is not None:
                return _all_nan(session.run(inputs))
    return set()


def _nan_by_task(session: Session, setup: Setup) -> set[str] | None:
    """Return :func:`_nan_outputs` of a synthetic body for the task, whose steps the trial is to measure, too."""
    body = synthetic.body_for(setup.task)
    if body is None:
        return None
    inputs, outputs = setup.entry_points[None]
    with contextlib.suppress(Exception):
        prepared = setup.task.prepare(*body)
        results = []
        for run in prepared.runs[:MAX_RUNS]:
            tensors = [to_tensor(name, array) for name, array in run.items()]
            checked = collect(
                tensors, inputs, row_by_row=True, first_state=setup.first_state
            )
            rows = slice(1) if checked.row_by_row else ...
            results.append(
                session.run(
                    {
                        **checked.state,
                        **{name: a[rows] for name, a in checked.arrays.items()},
                    }
                )
            )
        by_name: list[Any] = [
            {s.name: result[outputs.by_name[s.name][1]] for s in outputs.specs}
            for result in results
        ]
        with np.errstate(all="ignore"), contextlib.suppress(Exception):
            setup.task.answer(by_name, AnswerOptions(), prepared.context)
        return set.intersection(*map(_all_nan, results))
    return None


def _all_nan(outputs: Mapping[str, Array]) -> set[str]:
    return {
        name
        for name, a in outputs.items()
        if a.dtype.kind == "f" and a.size and bool(np.isnan(a).all())
    }


def _limit(data_bytes: int) -> None:
    """Forbid core files, and set a hard end for memory; the parent watches for a softer one."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
