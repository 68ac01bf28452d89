"""The throw-away process: loads a model, sets up all that its files decide, runs it, and says how it went.

Run by :mod:`pocketserve.quarantine.sandbox`, which confines it: the model's description comes pickled on standard
input, from the server alone; to standard output goes a line once the framework is imported, and one in JSON with the
result. Whatever a framework prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketserve.engine.lifecycle.setup import Setup, set_up
from pocketserve.inference.validate import collect
from pocketserve.messages import excerpt
from pocketserve.quarantine.made_up import (
    Make,
    enlarged,
    made_body,
    make_inputs,
    masks_of_ones,
    ones,
    small_numbers,
)
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError, Session
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.privacy import import_framework
from pocketserve.runtimes.registry import runtime_for
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tensors import Array, to_tensor, zeros

if TYPE_CHECKING:
    from pocketserve.quarantine.sandbox import Confinement

_SCARCE = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
_NO_THREADS = ("can't start new thread", "Resource temporarily unavailable", "pthread_create")
"""How Python, C and frameworks say that the device has nothing to spare."""

IMPORTED = b"imported\n"
"""What is answered first, before any of the model's files is opened: a framework's import has ended well, or raised."""

MAX_REASON = 1000
"""Characters; a file's own words may be in it, and nobody reads the pipe before the trial has ended."""

MAX_PIXELS = 1 << 20
"""Of a made-up picture, which has four."""

MAX_RUNS = 4
"""Runs that a made-up body is given; a long window makes one of a short sound."""


def main(confine: Callable[[], Confinement]) -> int:
    """Try the model that standard input describes.

    Args:
        confine: called when the framework is imported, and before the model's files are opened.
    """
    request = pickle.load(sys.stdin.buffer)
    answer_to = os.dup(1)
    os.dup2(2, 1)  # frameworks print to standard output
    _limit(int(request["data_limit"]))
    signal.alarm(int(request["alarm"]))
    _import_framework(request["version"].format, request["source"].threads)
    os.write(answer_to, IMPORTED)
    confinement = confine()
    result = try_model(request["entry"], request["version"], request["source"])
    if result["outcome"] in ("refused", "missing") and confinement.confined:
        result["reason"] = _with_cause(result["reason"])
    result["reason"] = result["reason"][:MAX_REASON]
    os.write(answer_to, json.dumps(result).encode())
    return 0


def describe(entry: ModelEntry, version: VersionEntry, source: ModelSource, **limits: int) -> bytes:
    """A model as bytes for the process that tries it: just what the server has read, whatever lies there by then."""
    return pickle.dumps({"entry": entry, "version": version, "source": source, **limits})


def try_model(entry: ModelEntry, version: VersionEntry, source: ModelSource) -> dict[str, str]:
    """Load, set up and run.

    Returns:
        ``outcome`` (good, missing, refused, starved or hollow), ``reason`` and ``runtime``.
    """
    try:
        session = runtime_for(version.format).open(source)
    except Exception as error:
        return _refused(error)
    try:
        outcome, reason = _run(session, set_up(entry, version, session, MAX_PIXELS, source))
    except Exception as error:
        return _refused(error)
    finally:
        session.close()
    return {"outcome": outcome, "reason": reason, "runtime": session.runtime}


def _import_framework(kind: ModelFormat, threads: int) -> None:
    """Import what opens files of a kind. Where it cannot be imported, opening the file says so."""
    with contextlib.suppress(Exception):
        if kind.packages == ("tensorflow",):
            from pocketserve.runtimes.tensorflow.savedmodel import import_tensorflow

            import_tensorflow(threads)
        elif "ai_edge_litert" in kind.packages:
            from pocketserve.runtimes.tflite.open import PACKAGES, import_first

            import_first(PACKAGES)
        else:
            for package in kind.packages:
                import_framework(package)
    gc.freeze()  # what is there now stays


def _with_cause(reason: str) -> str:
    """Tell that it may be the confinement which a file came up against."""
    if not any(os.strerror(number) in reason for number in (errno.EPERM, errno.EACCES)):
        return reason
    return (
        f"{reason[:500]}; in its trial a file may use its own folder and libraries, but no other files, no network and "
        "no further process (`pocketserve serve --no-quarantine` has no trials)"
    )


def _refused(error: Exception) -> dict[str, str]:
    scarce = isinstance(error, OSError) and error.errno in _SCARCE
    if scarce or any(text in str(error) for text in _NO_THREADS):
        return {"outcome": "starved", "reason": str(error)[:300], "runtime": ""}
    if isinstance(error, RuntimeMissingError | ModelLoadError):
        outcome = "missing" if isinstance(error, RuntimeMissingError) else "refused"
        return {"outcome": outcome, "reason": str(error), "runtime": ""}
    # Frameworks raise anything on a bad file.
    return {"outcome": "refused", "reason": f"{type(error).__name__}: {excerpt(error, 500)}", "runtime": ""}


def _run(session: Session, made: Setup) -> tuple[str, str]:
    """Run through the task's own steps, on zeros and on small numbers; returns the outcome, and why.

    A model that refuses made-up inputs is not bad: their sizes or values may make no sense to it.
    """
    rehearsed = _rehearse(session, made)
    silent = _silent(session, session.inputs, zeros) or set()
    hollow = silent & (_silent(session, session.inputs, small_numbers) or set())
    if hollow and rehearsed is not None:
        hollow &= rehearsed
    if hollow and rehearsed is None and any(spec.datatype[0] in "IUB" for spec in session.inputs):
        hollow &= _silent_on_ones(session)
    if hollow and any(-1 in spec.shape[1:] for spec in session.inputs):
        # Of a picture of one pixel some graphs have no numbers left, and are good all the same.
        hollow &= _silent(session, [enlarged(spec) for spec in session.inputs], ones) or set()
    if hollow:
        return "hollow", (
            f"its output {min(hollow)!r:.300} is not a number throughout, whatever goes in; the file is probably "
            "damaged; if it is meant to be so, `pocketserve serve --no-quarantine` serves it"
        )
    return "good", f"its output {min(silent)!r:.300} is not a number where only zeros go in" if silent else ""


def _silent_on_ones(session: Session) -> set[str]:
    """The outputs that are nothing but NaN for ones too: of zeros, a mean over a mask of zeros has no number."""
    found = _silent(session, session.inputs, ones)  # None: 1 is beyond what it takes
    return (_silent(session, session.inputs, masks_of_ones) if found is None else found) or set()


def _silent(session: Session, specs: Any, make: Make) -> set[str] | None:
    """The outputs that are nothing but NaN; None if no run could tell."""
    inputs = make_inputs(specs, make)
    if inputs is None:
        return None
    try:
        return _all_nan(session.run(inputs))
    except Exception:
        return None


def _rehearse(session: Session, made: Setup) -> set[str] | None:
    """Run a made-up body through the task's own steps, so that what these cost counts for the trial.

    Returns:
        The outputs that are nothing but NaN; None where there is no such body, or the model does not take it.
    """
    given = made_body(made.task)
    if given is None:
        return None
    inputs, outputs = made.entry_points[None]
    try:
        prepared = made.task.prepare(*given)
        results = []
        for run in prepared.runs[:MAX_RUNS]:
            tensors = [to_tensor(name, array) for name, array in run.items()]
            checked = collect(tensors, inputs, row_by_row=True, first_state=made.first_state)
            arrays = (
                {name: array[:1] for name, array in checked.arrays.items()} if checked.row_by_row else checked.arrays
            )
            results.append(session.run({**checked.state, **arrays}))
        named = [{s.name: result[outputs.by_name[s.name][1]] for s in outputs.specs} for result in results]
        with np.errstate(all="ignore"), contextlib.suppress(Exception):
            made.task.answer(named, AnswerOptions(), prepared.context)
        return set.intersection(*map(_all_nan, results))
    except Exception:
        return None


def _all_nan(outputs: Mapping[str, Array]) -> set[str]:
    return {name for name, a in outputs.items() if a.dtype.kind == "f" and a.size and bool(np.isnan(a).all())}


def _limit(data_bytes: int) -> None:
    """No core files, and a hard end for memory; the parent watches for a softer one."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
