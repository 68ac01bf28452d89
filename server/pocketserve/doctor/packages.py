"""The packages that the server and models need, each imported in another process.

A broken package may raise anything, hang, or end its process. All processes start together, and none gets more than the
one time limit.
"""

from __future__ import annotations

import importlib.machinery
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pocketserve.doctor.device import MARK, Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.engine.device.programs import Outcome
from pocketserve.runtimes.framework_import import FRAMEWORK_ENVIRONMENT
from pocketserve.runtimes.model_format import Requirement
from pocketserve.runtimes.registry import FRAMEWORKS

LIMIT_S = 10.0
CORE = (
    Requirement("numpy", "the server", "numpy", "python-numpy"),
    Requirement("flask", "the server", "flask"),
    Requirement("waitress", "the server", "waitress"),
    Requirement("requests", "the client", "requests"),
    Requirement("platformdirs", "every command", "platformdirs"),
    Requirement("prometheus_client", "/metrics", "prometheus-client"),
)
PILLOW = Requirement("PIL.Image", "pictures as input", "pillow", "python-pillow")
# One process imports a group: the small pure-Python ones are together, for Android counts processes.
GROUPS = (
    ("numpy",),
    tuple(p.module for p in CORE[1:]),
    (PILLOW.module,),
    *((p.module,) for p in FRAMEWORKS),
)
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
    """The end of an import."""

    installed: bool  # whether the package is there at all
    fault: str = ""  # what went wrong, in words; empty if nothing did
    version: str = ""
    unknown: str = ""  # why nothing was found out about it, in words; that is no fault of the package


def check_packages(device: Device, limit: float = LIMIT_S) -> Iterator[Finding]:
    """Import everything that there is, all at the same time."""
    results = try_imports(device, GROUPS, limit)
    states = [_core_state(device, package, results[package.module]) for package in CORE]
    complete = ok(
        "packages", f"all {len(CORE)} packages that the server needs are there"
    )
    yield from list(filter(None, states)) or [complete]
    if not results[PILLOW.module].installed:
        yield warning(
            "pillow",
            "Pillow is missing: models cannot take pictures",
            _install(device, PILLOW),
        )
    else:
        yield _state(
            device, "pillow", "Pillow", PILLOW, results[PILLOW.module], "reads pictures"
        )
    for package in FRAMEWORKS:
        if results[package.module].installed:
            yield _state(
                device,
                "runtimes",
                _top(package),
                package,
                results[package.module],
                f"runs {package.use}",
            )
    absent = [
        _top(package) for package in FRAMEWORKS if not results[package.module].installed
    ]
    if len(absent) == len(FRAMEWORKS):
        install = device.command(
            "pkg install python-tflite-runtime", "pip install 'pocketserve[tflite]'"
        )
        yield problem(
            "runtimes",
            "no runtime is installed: no model but TensorFlow.js ones can run",
            install,
        )
    elif absent:
        yield ok(
            "runtimes",
            f"not installed: {', '.join(absent)}; the list of models says where that matters",
        )


def _core_state(
    device: Device, package: Requirement, result: ImportResult
) -> Finding | None:
    if result.installed:
        return _fault(device, "packages", package.module, package, result)
    return problem(
        "packages",
        f"{package.module} is missing, which {package.use} needs",
        _install(device, package),
    )


def _state(
    device: Device,
    subject: str,
    name: str,
    package: Requirement,
    result: ImportResult,
    use: str,
) -> Finding:
    works = " ".join(filter(None, (name, result.version, use)))
    return _fault(device, subject, name, package, result) or ok(subject, works)


def _fault(
    device: Device, subject: str, name: str, package: Requirement, result: ImportResult
) -> Finding | None:
    """Return what is wrong with a package that is there; a slow device is no broken package."""
    if result.unknown:
        fix = f"python -c 'import {package.module}' (it may take its time), then pocketserve doctor again"
        sentence = f"{_top(package)} is installed, but whether it works is not known: {result.unknown}"
        return warning(subject, sentence, fix)
    if not result.fault:
        return None
    fix = f"pip install --force-reinstall {package.pip}"
    if package.termux:  # there everything is upgraded, for parts must fit together
        fix = device.command(f"pkg upgrade && pkg reinstall {package.termux}", fix)
    return problem(subject, f"{name} is installed but broken: {result.fault}", fix)


def _install(device: Device, package: Requirement) -> str:
    fix = f"pip install {package.pip}"
    return (
        device.command(f"pkg install {package.termux}", fix) if package.termux else fix
    )


def _top(package: Requirement) -> str:
    return package.module.partition(".")[0]


def try_imports(
    device: Device, groups: Iterable[Sequence[str]], limit: float = LIMIT_S
) -> dict[str, ImportResult]:
    """Import modules within ``limit`` seconds, one process for each group; the modules of a group share its fate."""
    groups = list(groups)
    results = {
        name: ImportResult(is_installed(device, name))
        for group in groups
        for name in group
    }
    present = [
        names
        for group in groups
        if (names := [name for name in group if results[name].installed])
    ]
    with ThreadPoolExecutor(
        max(1, len(present)), thread_name_prefix="doctor-import"
    ) as pool:
        for result in pool.map(lambda group: _try_group(device, group, limit), present):
            results |= result
    return results


def is_installed(device: Device, module: str) -> bool:
    """Return whether a module's package can be found; nothing of it is run."""
    try:
        return (
            importlib.machinery.PathFinder.find_spec(
                module.partition(".")[0], list(device.python_path)
            )
            is not None
        )
    except (ImportError, ValueError, OSError):
        return True  # something is there, and it is broken


def _try_group(
    device: Device, group: Sequence[str], limit: float
) -> dict[str, ImportResult]:
    outcome, answers = device.run_reporting(["-c", _PROGRAM, *group], limit)
    results = {answer.pop("name"): ImportResult(True, **answer) for answer in answers}
    end = _end_of(outcome, limit)
    for name in group:
        if name not in results:
            results[name] = end
            end = ImportResult(
                True,
                unknown="it was not tried, because one before it did not come to its end",
            )
    return results


def _end_of(outcome: Outcome, limit: float) -> ImportResult:
    if (
        outcome.timed_out
    ):  # no fault: a first import compiles the package, which takes a busy core minutes
        return ImportResult(True, unknown=f"its import takes longer than {limit:g} s")
    if outcome.code is None:
        return ImportResult(True, unknown="no further process could be started")
    if outcome.code >= 0:
        return ImportResult(
            True, f"its import ends the process (exit code {outcome.code})"
        )
    try:
        name = signal.Signals(-outcome.code).name
    except ValueError:
        name = f"signal {-outcome.code}"
    return ImportResult(True, f"its import kills the process ({name})")
