"""Start and watch the processes of a conversion.

They are tools, and runs of models to compare outputs. Each has a limit on time and
memory, its own session, which ends with it, and a short log instead of a terminal.
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
"""Memory that stays free for the rest of the system."""

REQUEST_NAME, LOG_NAME = "request.json", "log.txt"
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")


class LimitError(ConversionError):
    """Not enough time, memory or disk: another plan would not help."""


class ProcessLimits(NamedTuple):
    """Limits of one process.

    Attributes:
        memory: resident bytes of it and its descendants; 0 for nearly all that is free.
    """

    seconds: float = 1800.0
    memory: int = 0

    def memory_bytes(self) -> int:
        """Return the limit in bytes, now."""
        return self.memory or max(1 << 30, available_memory() - SPARE_BYTES)


class Job(NamedTuple):
    """Work for a process.

    Attributes:
        title: begins messages about its end, such as ``litert-torch``, or "the run of
            onnx".
        python: of the environment; :data:`sys.executable` is the server's own.
        module: runs with ``-m`` and takes the request's path.
        request: its input, written as JSON.
        folder: for the request, the result and temporary files.
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
        ConversionError: it reported an error, crashed, or exceeded a limit; its
            descendants have ended.
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
    """Return a process's variables, with our packages on its path.

    In another environment, no other package of the server is on its path.
    """
    variables = dict(FRAMEWORK_ENVIRONMENT)
    for name, value in os.environ.items():
        if not name.startswith(("POCKETSERVE_TOKEN", "PYTHON")):
            variables[name] = value
    path = str(job.folder / "packages")
    if str(job.python) == sys.executable:
        path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    else:
        _link_packages(Path(path))
    variables["TMPDIR"] = str(job.folder)
    variables["PYTHONPATH"] = path
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    return variables


def _link_packages(folder: Path) -> None:
    """Link our packages into a folder.

    Their own may contain all of the server's.
    """
    folder.mkdir(exist_ok=True)
    for package in (pocketserve, pocketserve_lab, pocketserve_wire):
        link = folder / package.__name__
        if not link.is_symlink():
            source = Path(str(package.__file__)).resolve().parent
            link.symlink_to(source, target_is_directory=True)


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
    """End processes left over by a command that was killed.

    They are recognised by their folder for temporary files, which children inherit.

    Args:
        folder: its subfolders with this ``prefix`` are checked: those of running
            commands still exist.
    """
    start = os.fsencode(folder.resolve() / prefix)
    for process in all_processes():
        with suppress(OSError):
            work = _temporary_folder(process)
            if work.startswith(start) and not os.path.exists(work):
                os.kill(process, signal.SIGKILL)


def _temporary_folder(process: int) -> bytes:
    """Return a process's TMPDIR; empty without one."""
    environment = Path(f"/proc/{process}/environ").read_bytes()
    for variable in environment.split(b"\0"):
        if variable.startswith(b"TMPDIR="):
            return variable.removeprefix(b"TMPDIR=")
    return b""


def _result(job: Job, code: int, log: str) -> dict[str, Any]:
    """Return the result of a process.

    Raises:
        ConversionError: the process reported an error, or left no result.
    """
    try:
        text = (job.folder / RESULT_NAME).read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        raise ConversionError(_end_of(job.title, code, log), detail=log) from None
    if not result.get("ok"):
        raise _reported_error(job, result, log)
    return result


def _reported_error(job: Job, result: Mapping[str, Any], log: str) -> ConversionError:
    """Return the error that a process has reported."""
    message = str(result.get("message") or "it gave no reason")
    detail = str(result.get("detail") or "")
    if _is_full(message) or _is_full(detail):
        return LimitError(_disk_full(job.title), detail=detail)
    nearest = str(result.get("nearest") or "")
    return ConversionError(message, detail=f"{detail}\n{log}".strip(), nearest=nearest)


def _is_full(text: str) -> bool:
    """Return whether a text reports a full disk."""
    return any(words in text for words in NO_ROOM)


def _disk_full(title: str) -> str:
    return f"the disk became full while {title} wrote; make room and try again"


def _end_of(title: str, code: int, log: str) -> str:
    """Return a sentence on a process that ended without a result."""
    if _is_full(log):
        return _disk_full(title)
    if code == -signal.SIGKILL:
        return (
            f"the system ended {title}, probably because of too little memory; convert "
            "the model "
            "on a machine that has more"
        )
    if code < 0:
        return f"{title} crashed on this model ({signal_name(code)})"
    text = f"{title} ended without a result (exit code {code})"
    lines = log.strip().splitlines()
    if not lines:
        return text
    return f"{text}: {excerpt(lines[-1])}"
