"""The process of a trial: load and run a model, and report.

:mod:`pocketserve.quarantine.sandbox` starts it and confines it. The server sends the
pickled model description to standard input. The trial writes one line to standard
output after the framework's import, and then the result as JSON. Output of frameworks
goes to standard error.
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
"""Messages of Python, C and frameworks that say that the device lacks resources."""

IMPORTED = b"imported\n"
"""Written after the framework's import, before any model file is opened."""

MAX_CAUSES = 3  # the error, and up to two that it wraps
MAX_REASON = 1000  # characters; the pipe is only read after the trial
MAX_PIXELS = 1 << 20  # of a synthetic picture, which has four
MAX_RUNS = 4  # runs of one synthetic body; a long window needs one for a short sound


def main(confine: Callable[[], Confinement]) -> int:
    """Try the model that standard input describes.

    Args:
        confine: confines the process, called between the framework's import and opening
            the model.
    """
    request = pickle.load(sys.stdin.buffer)
    output = os.dup(1)
    os.dup2(2, 1)  # frameworks print to standard output
    _limit(int(request["data_limit"]))
    signal.alarm(int(request["alarm"]))
    _import_framework(request["version"].format, request["source"].threads)
    os.write(output, IMPORTED)
    confinement = confine()
    result = try_model(request["entry"], request["version"], request["source"])
    if confinement.confined and _was_forbidden(result):
        result["reason"] = (
            f"{result['reason'][:500]}; in its trial a file may use its own folder and "
            "libraries, but no other files, no network and no further process "
            "(`pocketserve serve --no-quarantine` has no trials)"
        )
    result["reason"] = result["reason"][:MAX_REASON]
    os.write(output, json.dumps(result).encode())
    return 0


def _was_forbidden(result: Mapping[str, str]) -> bool:
    """Return whether confinement may have made a trial fail."""
    if result["outcome"] not in ("rejected", "missing"):
        return False
    errors = (os.strerror(errno.EPERM), os.strerror(errno.EACCES))
    return any(error in result["reason"] for error in errors)


def serialize_request(
    entry: ModelEntry, version: VersionEntry, source: ModelSource, **limits: int
) -> bytes:
    """Pickle the input of :func:`main`."""
    return pickle.dumps(
        {"entry": entry, "version": version, "source": source, **limits}
    )


def try_model(
    entry: ModelEntry, version: VersionEntry, source: ModelSource
) -> dict[str, str]:
    """Load, set up and run a model.

    Returns:
        ``outcome`` (ok, missing, rejected, starved or nan_output), ``reason`` and
        ``runtime``.
    """
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
    """Import a format's framework, ignoring errors until it opens files."""
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
    gc.freeze()  # skips the framework's objects in later collections


def _failure(error: Exception) -> dict[str, str]:
    if _is_scarce(error):
        return {"outcome": "starved", "reason": str(error)[:300], "runtime": ""}
    by_system = getattr(error, "by_system", None)  # of a model's own process
    if by_system is not None:
        outcome = "starved" if by_system else "ended"
        return {"outcome": outcome, "reason": str(error)[:300], "runtime": ""}
    reason = f"{type(error).__name__}: {excerpt(error, 500)}"
    if isinstance(error, RuntimeMissingError | ModelLoadError):
        reason = str(error)
    outcome = "missing" if isinstance(error, RuntimeMissingError) else "rejected"
    return {"outcome": outcome, "reason": reason, "runtime": ""}


def _is_scarce(error: Exception) -> bool:
    """Return whether an error or its cause is a lack of resources.

    File readers wrap such errors up to twice.
    """
    if any(text in str(error) for text in _NO_THREADS):
        return True
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if isinstance(cause, OSError) and cause.errno in _SCARCE:
            return True
        if cause is not None:
            cause = cause.__cause__
    return False


def _run(session: Session, setup: Setup) -> tuple[str, str]:
    """Run a model on synthetic inputs; return outcome and reason.

    A model may reject such inputs, because their sizes or values may be invalid for it.
    """
    by_task = _nan_by_task(session, setup)
    nan_for_zeros = _nan_outputs(session, session.inputs, zeros)
    names = _always_nan(session, nan_for_zeros, by_task)
    if names:
        return "nan_output", (
            f"its output {min(names)!r:.300} is NaN for every input; the file is "
            "probably damaged; if that is intended, "
            "`pocketserve serve --no-quarantine` serves it"
        )
    if not nan_for_zeros:
        return "ok", ""
    name = min(nan_for_zeros)
    return "ok", f"its output {name!r:.300} is NaN for an input of zeros"


def _always_nan(
    session: Session, nan_for_zeros: set[str], by_task: set[str] | None
) -> set[str]:
    """Return the outputs that are NaN for all synthetic inputs."""
    specs = session.inputs
    names = nan_for_zeros & _nan_outputs(session, specs, synthetic.small_numbers)
    if names and by_task is not None:
        names &= by_task
    elif names and _has_integers(specs):
        # A mean over a mask of zeros is NaN. Ones may be invalid for other inputs.
        names &= _nan_outputs(
            session, specs, synthetic.integer_ones, synthetic.masks_of_ones
        )
    if names and any(-1 in spec.shape[1:] for spec in specs):
        # Some good models produce NaN for a picture of one pixel.
        large = list(map(synthetic.enlarged, specs))
        names &= _nan_outputs(session, large, synthetic.integer_ones)
    return names


def _has_integers(specs: Sequence[TensorSpec]) -> bool:
    return any(spec.datatype[0] in "IUB" for spec in specs)


def _nan_outputs(
    session: Session, specs: Sequence[TensorSpec], *fills: synthetic.FillTensor
) -> set[str]:
    """Return the NaN outputs for the first accepted inputs."""
    for fill in fills:
        inputs = synthetic.make_inputs(specs, fill)
        with contextlib.suppress(Exception):
            if inputs is not None:
                return _all_nan(session.run(inputs))
    return set()


def _nan_by_task(session: Session, setup: Setup) -> set[str] | None:
    """Return :func:`_nan_outputs` for a synthetic body of the task.

    It also runs the task's own steps, so that the trial covers them.
    """
    body = synthetic.body_for(setup.task)
    if body is None:
        return None
    _, outputs = setup.entry_points[None]
    with contextlib.suppress(Exception):
        prepared = setup.task.prepare(*body)
        results = []
        for run in prepared.runs[:MAX_RUNS]:
            results.append(_run_prepared(session, setup, run))
        by_name: list[Any] = []
        for result in results:
            renamed = {}
            for spec in outputs.specs:
                renamed[spec.name] = result[outputs.by_name[spec.name][1]]
            by_name.append(renamed)
        with np.errstate(all="ignore"), contextlib.suppress(Exception):
            setup.task.answer(by_name, AnswerOptions(), prepared.context)
        return set.intersection(*map(_all_nan, results))
    return None


def _run_prepared(
    session: Session, setup: Setup, run: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Run a model on a task's prepared inputs."""
    inputs, _ = setup.entry_points[None]
    tensors = [to_tensor(name, array) for name, array in run.items()]
    checked = collect(tensors, inputs, row_by_row=True, first_state=setup.first_state)
    arrays = dict(checked.state)
    for name, array in checked.arrays.items():
        arrays[name] = array[:1] if checked.row_by_row else array
    return session.run(arrays)


def _all_nan(outputs: Mapping[str, Array]) -> set[str]:
    names = set()
    for name, array in outputs.items():
        if array.dtype.kind == "f" and array.size and bool(np.isnan(array).all()):
            names.add(name)
    return names


def _limit(data_bytes: int) -> None:
    """Forbid core files, and set a hard memory limit."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
