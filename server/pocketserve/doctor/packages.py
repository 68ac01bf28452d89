"""Check the packages of server and models by importing them.

A broken package may raise anything, hang, or end its process, so other processes import
them. All start together, and share one time limit.
"""

from __future__ import annotations

import importlib.machinery
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# One process imports each group. Pure-Python packages share one, for Android counts
# processes.
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
    """The outcome of an import.

    Attributes:
        installed: whether the package exists.
        fault: the error; "" if there is none.
        unknown: why the outcome is unknown, which is not the package's fault.
    """

    installed: bool
    fault: str = ""
    version: str = ""
    unknown: str = ""


def check_packages(device: Device, limit: float = LIMIT_S) -> Iterator[Finding]:
    """Import all packages concurrently."""
    results = try_imports(device, GROUPS, limit)
    faults = []
    for package in CORE:
        finding = _core_state(device, package, results[package.module])
        if finding is not None:
            faults.append(finding)
    complete = f"all {len(CORE)} packages that the server needs are installed"
    yield from faults or [ok("packages", complete)]
    yield _pillow(device, results[PILLOW.module])
    yield from _runtimes(device, results)


def _pillow(device: Device, result: ImportResult) -> Finding:
    if not result.installed:
        sentence = "Pillow is missing: models cannot take pictures"
        return warning("pillow", sentence, _install(device, PILLOW))
    return _state(device, "pillow", "Pillow", PILLOW, result, "reads pictures")


def _runtimes(device: Device, results: Mapping[str, ImportResult]) -> Iterator[Finding]:
    absent = []
    for package in FRAMEWORKS:
        name = _top(package)
        result = results[package.module]
        if result.installed:
            use = f"runs {package.use}"
            yield _state(device, "runtimes", name, package, result, use)
        else:
            absent.append(name)
    if len(absent) == len(FRAMEWORKS):
        yield problem(
            "runtimes",
            "no runtime is installed: no model but TensorFlow.js ones can run",
            device.command(
                "pkg install python-tflite-runtime", "pip install 'pocketserve[tflite]'"
            ),
        )
    elif absent:
        yield ok(
            "runtimes",
            f"not installed: {', '.join(absent)}; "
            "the list of models says where that matters",
        )
    yield from _hugging_face(device, absent)


def _hugging_face(device: Device, absent: Sequence[str]) -> Iterator[Finding]:
    """Name the way to models of Hugging Face where its library can't be installed."""
    if device.termux and "transformers" in absent:
        yield ok(
            "runtimes",
            "transformers and PyTorch don't run Hugging Face folders in Termux: serve"
            " language models as GGUF files (pkg install llama-cpp), and other models"
            " as ONNX files",
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
    """Return the problem of an installed package, or None."""
    if result.unknown:
        return warning(
            subject,
            f"{_top(package)} is installed, but whether it works is not known: "
            f"{result.unknown}",
            f"python -c 'import {package.module}' (it may take its time), "
            "then pocketserve doctor again",
        )
    if not result.fault:
        return None
    fix = f"pip install --force-reinstall {package.pip}"
    if package.termux:  # upgrade everything, because Termux's packages must match
        fix = device.command(f"pkg upgrade && pkg reinstall {package.termux}", fix)
    return problem(subject, f"{name} is installed but broken: {result.fault}", fix)


def _install(device: Device, package: Requirement) -> str:
    fix = f"pip install {package.pip}"
    if package.termux:
        return device.command(f"pkg install {package.termux}", fix)
    return fix


def _top(package: Requirement) -> str:
    return package.module.partition(".")[0]


def try_imports(
    device: Device, groups: Iterable[Sequence[str]], limit: float = LIMIT_S
) -> dict[str, ImportResult]:
    """Import modules within ``limit`` seconds, each group in one process."""
    results = {}
    present = []
    for group in groups:
        for name in group:
            results[name] = ImportResult(is_installed(device, name))
        names = [name for name in group if results[name].installed]
        if names:
            present.append(names)
    with ThreadPoolExecutor(
        max(1, len(present)), thread_name_prefix="doctor-import"
    ) as pool:
        for result in pool.map(lambda group: _try_group(device, group, limit), present):
            results |= result
    return results


def is_installed(device: Device, module: str) -> bool:
    """Return whether a module's package exists, without running it."""
    package = module.partition(".")[0]
    try:
        spec = importlib.machinery.PathFinder.find_spec(
            package, list(device.python_path)
        )
        return spec is not None
    except (ImportError, ValueError, OSError):
        return True  # it exists, but is broken


def _try_group(
    device: Device, group: Sequence[str], limit: float
) -> dict[str, ImportResult]:
    outcome, answers = device.run_reporting(["-c", _PROGRAM, *group], limit)
    results = {}
    for answer in answers:
        name = answer.pop("name")
        results[name] = ImportResult(True, **answer)
    end = _end_of(outcome, limit)
    for name in group:
        if name not in results:
            results[name] = end
            end = ImportResult(
                True,
                unknown="it was not tried, because one before it did not finish",
            )
    return results


def _end_of(outcome: Outcome, limit: float) -> ImportResult:
    # Not a fault: a first import compiles the package, which may take minutes.
    if outcome.timed_out:
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
