"""The device and the software that a comparison ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pocketserve
from pocketserve_lab.measurement import load_now

PACKAGES = (
    "pocketserve",
    "pocketserve-lab",
    "numpy",
    "ai-edge-litert",
    "tflite-runtime",
    "tensorflow",
    "onnxruntime",
    "torch",
    "executorch",
)
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CPU_FIELDS = ("model name", "Hardware", "flags", "Features")
GIT_TIMEOUT_S = 10.0
MAX_FILE = 100_000


def describe_environment() -> dict[str, Any]:
    """Return the device, its settings and the installed frameworks."""
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "governors": _device_texts("cpu/cpufreq/policy*/scaling_governor"),
        "temperatures": _temperatures(),
        "load": load_now(),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "packages": _packages(),
        "commit": commit_of(Path(pocketserve.__file__).parent),
    }


def _cpu() -> dict[str, str]:
    """Return the CPU's name and instruction sets, where Linux lists them."""
    fields: dict[str, str] = {}
    for line in _text_of(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in CPU_FIELDS:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _device_texts(pattern: str) -> list[str]:
    """Return the contents of the device's files, without duplicates."""
    texts = map(_text_of, sorted(Path("/sys/devices/system").glob(pattern)))
    return sorted({text.strip() for text in texts if text.strip()})


def _temperatures() -> dict[str, float]:
    """Return the temperatures of thermal zones in degrees Celsius."""
    temperatures = {}
    for zone in sorted(Path("/sys/class/thermal").glob("thermal_zone*")):
        value = _text_of(zone / "temp").strip()
        if value.lstrip("-").isdecimal():
            temperatures[zone.name] = int(value) / 1000
    return temperatures


def _text_of(path: Path) -> str:
    """Return a file's text; empty if it can't be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE)
    except OSError:
        return ""


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def commit_of(folder: Path) -> str | None:
    """Return the Git commit of a package; None if Git doesn't track it.

    A package that is only installed in a checkout of something else has none. Git obeys
    the checkout's own settings, which can name programs, so it is asked nothing that
    compares files, and never about a model's folder.
    """
    if not _git(folder, "ls-files", "--error-unmatch", "__init__.py"):
        return None
    return _git(folder, "rev-parse", "HEAD") or None


def _git(folder: Path, *words: str) -> str:
    """Return the output of Git; empty if it fails or isn't installed."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if process.returncode != 0:
        return ""
    return process.stdout.strip()
