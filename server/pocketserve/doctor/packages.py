"""The packages that the server needs, and the frameworks that models need."""

from __future__ import annotations

from collections.abc import Iterator

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.imports import LIMIT_S, Imported, try_imports
from pocketserve_wire.records import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """A package and where it comes from.

    Attributes:
        termux: its Termux package; empty if pip brings it there too, None if Termux has none.
        pip: what pip installs.
        use: what does not work without it.
    """

    module: str
    termux: str | None
    pip: str
    use: str

    def install(self, device: Device) -> str:
        """The command that installs it."""
        return device.command(f"pkg install {self.termux}", f"pip install {self.pip}") if self.termux else self._pip()

    def reinstall(self, device: Device) -> str:
        """The command that replaces a broken one; in Termux everything is upgraded, for parts must fit together."""
        again = f"pip install --force-reinstall {self.pip}"
        return device.command(f"pkg upgrade && pkg reinstall {self.termux}", again) if self.termux else again

    def _pip(self) -> str:
        return f"pip install {self.pip}"


CORE = (
    Package("numpy", "python-numpy", "numpy", "the server"),
    Package("flask", "", "flask", "the server"),
    Package("waitress", "", "waitress", "the server"),
    Package("requests", "", "requests", "the client"),
    Package("platformdirs", "", "platformdirs", "every command"),
    Package("prometheus_client", "", "prometheus-client", "/metrics"),
)
PILLOW = Package("PIL.Image", "python-pillow", "pillow", "pictures as input")
FRAMEWORKS = (
    Package("ai_edge_litert.interpreter", None, "ai-edge-litert", ".tflite models"),
    Package("tflite_runtime.interpreter", "python-tflite-runtime", "tflite-runtime", ".tflite models"),
    Package("onnxruntime", "python-onnxruntime", "onnxruntime", ".onnx models"),
    Package("torch", "python-torch", "torch", "PyTorch models"),
    Package("executorch.runtime", None, "executorch", ".pte models"),
    Package("tensorflow", None, "tensorflow", "Keras and SavedModel models"),
)
GROUPS = (("numpy",), tuple(p.module for p in CORE[1:]), (PILLOW.module,), *((p.module,) for p in FRAMEWORKS))
"""What is imported in one process: the small pure-Python ones together, for Android counts processes."""


def check_packages(device: Device, limit: float = LIMIT_S) -> Iterator[Finding]:
    """Import everything that there is, all at the same time."""
    results = try_imports(device, GROUPS, limit)
    yield from _core(device, results)
    yield from _pillow(device, results[PILLOW.module])
    yield from _frameworks(device, results)


def _undecided(subject: str, package: Package, result: Imported) -> Finding:
    """It is there, and that is all that is known: a slow device is no broken package."""
    name = package.module.partition(".")[0]
    fix = f"python -c 'import {package.module}' (it may take its time), then pocketserve doctor again"
    return warning(subject, f"{name} is installed, but whether it works is not known: {result.unknown}", fix)


def _core(device: Device, results: dict[str, Imported]) -> Iterator[Finding]:
    sound = True
    for package in CORE:
        result = results[package.module]
        sound &= result.installed and not result.fault and not result.unknown
        if result.unknown:
            yield _undecided("packages", package, result)
        elif not result.installed:
            yield problem(
                "packages", f"{package.module} is missing, which {package.use} needs", package.install(device)
            )
        elif result.fault:
            yield problem(
                "packages", f"{package.module} is installed but broken: {result.fault}", package.reinstall(device)
            )
    if sound:
        yield ok("packages", f"all {len(CORE)} packages that the server needs are there")


def _pillow(device: Device, result: Imported) -> Iterator[Finding]:
    if not result.installed:
        yield warning("pillow", "Pillow is missing: models cannot take pictures", PILLOW.install(device))
    elif result.unknown:
        yield _undecided("pillow", PILLOW, result)
    elif result.fault:
        yield problem("pillow", f"Pillow is installed but broken: {result.fault}", PILLOW.reinstall(device))
    else:
        yield ok("pillow", f"Pillow {result.version} reads pictures".replace("  ", " "))


def _frameworks(device: Device, results: dict[str, Imported]) -> Iterator[Finding]:
    for package in FRAMEWORKS:
        result, name = results[package.module], package.module.partition(".")[0]
        if result.unknown:
            yield _undecided("runtimes", package, result)
        elif result.fault:
            yield problem("runtimes", f"{name} is installed but broken: {result.fault}", package.reinstall(device))
        elif result.installed:
            yield ok("runtimes", f"{name} {result.version} runs {package.use}".replace("  ", " "))
    absent = [p for p in FRAMEWORKS if not results[p.module].installed]
    if len(absent) == len(FRAMEWORKS):
        install = device.command("pkg install python-tflite-runtime", "pip install 'pocketserve[tflite]'")
        yield problem("runtimes", "no runtime is installed: no model but TensorFlow.js ones can run", install)
    elif absent:
        names = ", ".join(p.module.partition(".")[0] for p in absent)
        yield ok("runtimes", f"not installed: {names}; the list of models says where that matters")
