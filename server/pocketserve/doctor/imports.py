"""Tries imports in processes of their own: a broken package may raise anything, hang, or end its process.

All processes start together, and none gets more than the one time limit.
"""

from __future__ import annotations

import importlib.machinery
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pocketserve.doctor.device import MARK, Device
from pocketserve.engine.device.programs import Outcome
from pocketserve.runtimes.framework_import import FRAMEWORK_ENVIRONMENT

LIMIT_S = 10.0
_PROGRAM = f"""
import importlib, json, os, sys
for name, value in {FRAMEWORK_ENVIRONMENT!r}.items():
    os.environ.setdefault(name, value)
for name in sys.argv[1:]:
    result = {{"name": name}}
    try:
        importlib.import_module(name)
        result["version"] = str(getattr(sys.modules[name.partition(".")[0]], "__version__", ""))[:40]
    except BaseException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        result["fault"] = f"{{type(error).__name__}}: {{first[:200]}}"
    print("\\n{MARK}" + json.dumps(result), flush=True)
"""


class ImportResult(NamedTuple):
    """The end of an import.

    Attributes:
        installed: whether the package is there at all.
        fault: what went wrong, in words; empty if nothing did.
        unknown: why nothing was found out about it, in words; that is no fault of the package.
    """

    installed: bool
    fault: str = ""
    version: str = ""
    unknown: str = ""


def try_imports(device: Device, groups: Iterable[Sequence[str]], limit: float = LIMIT_S) -> dict[str, ImportResult]:
    """Import the modules, one process for each group; the modules of a group share its fate.

    Args:
        limit: seconds for all of them.
    """
    groups = list(groups)
    results = {name: ImportResult(is_installed(device, name)) for group in groups for name in group}
    present = [names for group in groups if (names := [name for name in group if results[name].installed])]
    with ThreadPoolExecutor(max(1, len(present)), thread_name_prefix="doctor-import") as pool:
        for result in pool.map(lambda group: _try_group(device, group, limit), present):
            results |= result
    return results


def is_installed(device: Device, module: str) -> bool:
    """Return whether a module's package can be found; nothing of it is run."""
    try:
        return importlib.machinery.PathFinder.find_spec(module.partition(".")[0], list(device.python_path)) is not None
    except (ImportError, ValueError, OSError):
        return True  # something is there, and it is broken


def _try_group(device: Device, group: Sequence[str], limit: float) -> dict[str, ImportResult]:
    outcome, answers = device.run_reporting(["-c", _PROGRAM, *group], limit)
    results = {answer.pop("name"): ImportResult(True, **answer) for answer in answers}
    end = _end_of(outcome, limit)
    for name in group:
        if name not in results:
            results[name] = end
            end = ImportResult(True, unknown="it was not tried, because one before it did not come to its end")
    return results


def _end_of(outcome: Outcome, limit: float) -> ImportResult:
    if outcome.timed_out:  # no fault: a first import compiles the package, which takes a busy core minutes
        return ImportResult(True, unknown=f"its import takes longer than {limit:g} s")
    if outcome.code is None:
        return ImportResult(True, unknown="no further process could be started")
    if outcome.code >= 0:
        return ImportResult(True, f"its import ends the process (exit code {outcome.code})")
    try:
        name = signal.Signals(-outcome.code).name
    except ValueError:
        name = f"signal {-outcome.code}"
    return ImportResult(True, f"its import kills the process ({name})")
