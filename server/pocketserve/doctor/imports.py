"""Tries imports in processes of their own: a broken package may raise anything, hang, or end its process.

All processes start together, and no one gets more than the one time limit.
"""

from __future__ import annotations

import importlib.machinery
import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pocketserve.doctor.device import Device
from pocketserve.engine.device.programs import Outcome
from pocketserve.runtimes.privacy import PRIVATE
from pocketserve_wire.records import dataclass

LIMIT_S = 10.0
SLOW = "its import takes longer than"
"""No fault: a first import compiles the package, and a little or busy core may need minutes for it."""

MARK = "pocketserve-doctor:"
_PROGRAM = """
import importlib, json, os, sys
for name, value in PRIVATE.items():
    os.environ.setdefault(name, value)
for name in sys.argv[1:]:
    top = name.partition(".")[0]
    try:
        importlib.import_module(name)
        said = {"version": str(getattr(sys.modules[top], "__version__", ""))[:40]}
    except BaseException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        said = {"error": f"{type(error).__name__}: {first[:200]}"}
    print("\\n" + MARK + json.dumps({"name": name, **said}), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """How an import ended.

    Attributes:
        installed: whether the package is there at all.
        fault: what went wrong, in words; empty if nothing did.
        unknown: why nothing was found out about it, in words: that accuses nobody, least of all the package.
    """

    installed: bool
    fault: str = ""
    version: str = ""
    unknown: str = ""


def try_imports(device: Device, groups: Iterable[Sequence[str]], limit: float = LIMIT_S) -> dict[str, Imported]:
    """Import the modules, one process for each group; the modules of a group share its fate.

    Args:
        limit: seconds for all of them.
    """
    results: dict[str, Imported] = {}
    present: list[list[str]] = []
    for group in groups:
        there = [name for name in group if is_installed(device, name)]
        results |= {name: Imported(installed=False) for name in group if name not in there}
        if there:
            present.append(there)
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


def _try_group(device: Device, group: Sequence[str], limit: float) -> dict[str, Imported]:
    outcome = device.run_python(["-c", f"MARK, PRIVATE = {MARK!r}, {PRIVATE!r}\n{_PROGRAM}", *group], limit)
    said = {answer["name"]: answer for answer in _answers(outcome.output)}
    end = _how_it_ended(outcome, limit)
    results: dict[str, Imported] = {}
    for name in group:
        if name in said:
            results[name] = Imported(True, said[name].get("error", ""), said[name].get("version", ""))
        else:
            results[name] = end
            end = Imported(True, unknown="it was not tried, because one before it did not come to its end")
    return results


def _answers(output: str) -> list[Mapping[str, str]]:
    lines = (line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK))
    return [json.loads(line) for line in lines]


def _how_it_ended(outcome: Outcome, limit: float) -> Imported:
    if outcome.timed_out:
        return Imported(True, unknown=f"{SLOW} {limit:g} s")
    if outcome.code is None:
        return Imported(True, unknown="no further process could be started")
    if outcome.code < 0:
        try:
            name = signal.Signals(-outcome.code).name
        except ValueError:
            name = f"signal {-outcome.code}"
        return Imported(True, f"its import kills the process ({name})")
    return Imported(True, f"its import ends the process (exit code {outcome.code})")
