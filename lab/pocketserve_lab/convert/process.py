"""Starts and watches the processes of a conversion: tools, and what runs models to compare their outputs.

Each has a limit on time and memory, a session of its own, which ends with it, and a short log instead of a terminal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pocketserve
import pocketserve_lab
import pocketserve_wire
from pocketserve.child.log import ChildLog
from pocketserve.child.process import Exceeded, Limits, Streams, running
from pocketserve.engine.device.cores import available_memory
from pocketserve.engine.device.processes import all_processes, signal_name
from pocketserve.messages import excerpt
from pocketserve.runtimes.framework_import import FRAMEWORK_ENVIRONMENT
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.tool_process import RESULT_NAME

SPARE_BYTES = 256 << 20
"""Memory that is left to the rest of the system."""

REQUEST_NAME, LOG_NAME = "request.json", "log.txt"
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")


class LimitError(ConversionError):
    """Time, memory or disk are not enough: another way would not help."""


class ProcessLimits(NamedTuple):
    """Limits of one process: seconds; and resident bytes of it and what it starts, 0 for nearly all that is free."""

    seconds: float = 1800.0
    memory: int = 0

    def memory_bytes(self) -> int:
        """Return the limit in bytes, now."""
        return self.memory or max(1 << 30, available_memory() - SPARE_BYTES)


class Job(NamedTuple):
    """Work for a process.

    Attributes:
        title: begins sentences on its end, such as ``litert-torch``, or "the run of onnx".
        python: of the environment; :data:`sys.executable` is the server's own.
        module: runs with ``-m`` and is given the request's path.
        request: what it reads, written as JSON.
        folder: where the request, the result and temporary files lie.
    """

    title: str
    python: Path
    module: str
    request: Mapping[str, Any]
    folder: Path


def run_job(
    job: Job, limits: ProcessLimits, tick: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run a process to its end and return its result.

    Args:
        tick: called while it runs, for the progress.

    Raises:
        ConversionError: it refused, crashed, hung, or took more than it may; what it started has ended.
    """
    request = {**job.request, "parent": os.getpid()}
    path = job.folder / REQUEST_NAME
    path.write_text(json.dumps(request, default=str), "utf-8")
    command = [str(job.python), "-m", job.module, str(path)]
    memory = limits.memory_bytes()
    log = ChildLog(job.folder / LOG_NAME)

    def cut_and_tick() -> None:
        log.cut()
        tick()

    with closing(log):
        streams = Streams(stdout=log.file, stderr=log.file)
        variables = _environment(job)
        with running(
            command, streams, environment=variables, folder=job.folder
        ) as child:
            limit = child.wait(Limits(limits.seconds, memory), cut_and_tick)
        text = log.tail()
    if limit is not None:
        raise LimitError(_limit_fault(job.title, limits, limit, memory), detail=text)
    return _result(job, child.process.returncode, text)


def _environment(job: Job) -> dict[str, str]:
    """Return the variables of a process: our packages, and in another environment nothing else of the server's."""
    inherited = {
        n: v
        for n, v in os.environ.items()
        if not n.startswith(("POCKETSERVE_TOKEN", "PYTHON"))
    }
    if str(job.python) == sys.executable:
        path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    else:
        packages = (
            job.folder / "packages"
        )  # not the folder they lie in, which may hold all of the server's
        packages.mkdir(exist_ok=True)
        for package in (pocketserve, pocketserve_lab, pocketserve_wire):
            link = packages / package.__name__
            if not link.is_symlink():
                link.symlink_to(
                    Path(str(package.__file__)).resolve().parent,
                    target_is_directory=True,
                )
        path = str(packages)
    own = {
        "TMPDIR": str(job.folder),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**FRAMEWORK_ENVIRONMENT, **inherited, **own}


def _limit_fault(
    title: str, limits: ProcessLimits, limit: Exceeded, memory: int
) -> str:
    """Return a sentence on a limit that was exceeded, with the option that raises it."""
    if limit is Exceeded.TIME:
        return f"{title} did not finish within {limits.seconds:g} s; --timeout gives it more"
    reason = f"it took more than {memory / 1e6:,.0f} MB of memory"
    way = "convert it on a machine that has more"
    if limits.memory:
        way = "--memory gives it more"
    return f"the model is too large for {title} here: {reason}; {way}"


def end_abandoned(folder: Path, prefix: str = "") -> None:
    """End what the processes of a command that was ended by signal 9 have left running.

    They are known by their folder for temporary files, which children inherit.

    Args:
        folder: what was in it is gone, by the names that begin with ``prefix``; what is there still belongs to others.
    """
    start = os.fsencode(folder.resolve() / prefix)
    for process in all_processes():
        with suppress(OSError):
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            place = next(
                (
                    v.removeprefix(b"TMPDIR=")
                    for v in variables
                    if v.startswith(b"TMPDIR=" + start)
                ),
                None,
            )
            if place is not None and not os.path.exists(place):
                os.kill(process, signal.SIGKILL)


def _result(job: Job, code: int, log: str) -> dict[str, Any]:
    """Return what the process has written; raise what it, or its end, says instead."""
    try:
        result: dict[str, Any] = json.loads(
            (job.folder / RESULT_NAME).read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        raise ConversionError(_end_of(job.title, code, log), detail=log) from None
    if result.get("ok"):
        return result
    message, detail = (
        str(result.get("message") or "it gave no reason"),
        str(result.get("detail") or ""),
    )
    if any(words in message or words in detail for words in NO_ROOM):
        raise LimitError(
            f"the disk became full while {job.title} wrote; make room and try again",
            detail=detail,
        )
    text = f"{detail}\n{log}".strip()
    raise ConversionError(
        message, detail=text, nearest=str(result.get("nearest") or "")
    )


def _end_of(title: str, code: int, log: str) -> str:
    """Return a sentence on a process that ended without a result."""
    if any(words in log for words in NO_ROOM):
        return f"the disk became full while {title} wrote; make room and try again"
    if code == -signal.SIGKILL:
        return f"the system ended {title}, probably for want of memory; convert the model on a machine that has more"
    if code < 0:
        return f"{title} crashed on this model ({signal_name(code)})"
    lines = log.strip().splitlines() or [""]
    return f"{title} ended without a result (exit code {code}): {excerpt(lines[-1])}".rstrip(
        ": "
    )
