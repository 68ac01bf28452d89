"""Check Python, its platform, and an older Python's packages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.packages import CORE

SUBJECT = "python"
OLDEST = (3, 11)
FDROID = "install Termux from F-Droid or GitHub (see docs/termux.md)"


def check_python(device: Device) -> Iterator[Finding]:
    """Check version, platform and word size."""
    version = ".".join(map(str, device.python))
    kind = "a desktop"
    if device.proot:
        kind = "Linux under proot"
    elif device.termux:
        kind = "Termux"
    if device.python < OLDEST:
        fix = device.command("pkg upgrade python", "install Python 3.11 or newer")
        yield problem(
            SUBJECT, f"Python {version} is too old: 3.11 or newer is needed", fix
        )
    elif not device.wide:
        sentence = (
            f"Python {version} is a 32-bit program: no runtime but TFLite exists for it"
        )
        yield warning(SUBJECT, sentence, "use a 64-bit device")
    else:
        yield ok(
            SUBJECT, f"Python {version} in {kind} ({device.platform}, {device.machine})"
        )


def check_play_store(device: Device) -> Iterator[Finding]:
    """Warn about Google Play's Termux, which lacks features."""
    release = device.environ.get("TERMUX_APK_RELEASE", "")
    version = device.environ.get("TERMUX_VERSION", "")
    if release == "GOOGLE_PLAY_STORE" or "googleplay" in version:
        yield warning(
            "termux",
            "this is Google Play's Termux: apps cannot start servers in it, "
            "nor reach them",
            FDROID,
        )


def check_upgrade(device: Device) -> Iterator[Finding]:
    """Find packages that only an older Python has."""
    packages = {"pocketserve"}
    for package in CORE:
        if not package.termux:
            packages.add(package.module)
    library = device.prefix / "lib"
    running = "python{}.{}".format(*device.python)
    present = _distributions(library / running / "site-packages")
    for folder in sorted(library.glob("python3.*/site-packages")):
        if folder.parent.name == running:
            continue
        left = sorted((_distributions(folder) & packages) - present)
        if left:
            yield _left_behind(device, folder.parent.name, left)


def _left_behind(device: Device, python: str, packages: list[str]) -> Finding:
    """Return the finding for packages of an older Python."""
    fix = device.command(
        "sh install-termux.sh", "pip install 'pocketserve[tflite,image]'"
    )
    version = python.removeprefix("python")
    sentence = (
        f"{', '.join(packages)} stayed behind with Python {version} "
        "when Python was upgraded"
    )
    return problem("upgrade", sentence, fix)


def _distributions(folder: Path) -> set[str]:
    """Return the names of installed packages, as folders spell them."""
    names = set()
    for path in folder.glob("*.dist-info"):
        match = re.match(r"([A-Za-z0-9_.]+?)-[^-]*\.dist-info$", path.name)
        if match is not None:
            names.add(match[1].lower())
    return names
