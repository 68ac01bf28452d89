"""The packages that the server needs, and the frameworks that models need."""

from __future__ import annotations

from collections.abc import Iterator

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.imports import LIMIT_S, ImportResult, try_imports
from pocketserve.runtimes.model_format import Requirement
from pocketserve.runtimes.registry import FRAMEWORKS

CORE = (
    Requirement("numpy", "the server", "numpy", "python-numpy"),
    Requirement("flask", "the server", "flask"),
    Requirement("waitress", "the server", "waitress"),
    Requirement("requests", "the client", "requests"),
    Requirement("platformdirs", "every command", "platformdirs"),
    Requirement("prometheus_client", "/metrics", "prometheus-client"),
)
PILLOW = Requirement("PIL.Image", "pictures as input", "pillow", "python-pillow")
GROUPS = (("numpy",), tuple(p.module for p in CORE[1:]), (PILLOW.module,), *((p.module,) for p in FRAMEWORKS))
"""The modules that one process imports: the small pure-Python ones together, for Android counts processes."""


def check_packages(device: Device, limit: float = LIMIT_S) -> Iterator[Finding]:
    """Import everything that there is, all at the same time."""
    results = try_imports(device, GROUPS, limit)
    yield from list(_core_faults(device, results)) or [
        ok("packages", f"all {len(CORE)} packages that the server needs are there")
    ]
    pillow = results[PILLOW.module]
    if not pillow.installed:
        yield warning("pillow", "Pillow is missing: models cannot take pictures", _install(device, PILLOW))
    else:
        works = ok("pillow", f"Pillow {pillow.version} reads pictures".replace("  ", " "))
        yield _fault(device, "pillow", "Pillow", PILLOW, pillow) or works
    for package in FRAMEWORKS:
        result, name = results[package.module], _top(package)
        if result.installed:
            works = ok("runtimes", f"{name} {result.version} runs {package.use}".replace("  ", " "))
            yield _fault(device, "runtimes", name, package, result) or works
    absent = [_top(package) for package in FRAMEWORKS if not results[package.module].installed]
    if len(absent) == len(FRAMEWORKS):
        install = device.command("pkg install python-tflite-runtime", "pip install 'pocketserve[tflite]'")
        yield problem("runtimes", "no runtime is installed: no model but TensorFlow.js ones can run", install)
    elif absent:
        yield ok("runtimes", f"not installed: {', '.join(absent)}; the list of models says where that matters")


def _core_faults(device: Device, results: dict[str, ImportResult]) -> Iterator[Finding]:
    for package in CORE:
        result, name = results[package.module], package.module
        if not result.installed:
            yield problem("packages", f"{name} is missing, which {package.use} needs", _install(device, package))
        elif (fault := _fault(device, "packages", name, package, result)) is not None:
            yield fault


def _fault(device: Device, subject: str, name: str, package: Requirement, result: ImportResult) -> Finding | None:
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
    return device.command(f"pkg install {package.termux}", fix) if package.termux else fix


def _top(package: Requirement) -> str:
    return package.module.partition(".")[0]
