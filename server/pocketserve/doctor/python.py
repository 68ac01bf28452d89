"""The Python that runs, on which kind of system, and packages that an upgrade of it has left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.packages import CORE

SUBJECT = "python"
OLDEST = (3, 11)
FDROID = "take Termux from F-Droid or GitHub (see docs/termux.md)"


def check_python(device: Device) -> Iterator[Finding]:
    """Check version, platform and word size."""
    version = ".".join(map(str, device.python))
    kind = (
        "Linux under proot"
        if device.proot
        else "Termux"
        if device.termux
        else "a desktop"
    )
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
    """Warn of Google Play's Termux, which lacks what the companion app needs."""
    release, version = (
        device.environ.get(name, "")
        for name in ("TERMUX_APK_RELEASE", "TERMUX_VERSION")
    )
    if release == "GOOGLE_PLAY_STORE" or "googleplay" in version:
        yield warning(
            "termux",
            "this is Google Play's Termux: apps cannot start servers in it, nor reach them",
            FDROID,
        )


def check_upgrade(device: Device) -> Iterator[Finding]:
    """Look for packages that stayed in the folder of an older Python: pip has a folder per version."""
    packages = {
        "pocketserve",
        *(package.module for package in CORE if not package.termux),
    }
    library, running = device.prefix / "lib", "python{}.{}".format(*device.python)
    present = _distributions(library / running / "site-packages")
    for folder in sorted(library.glob("python3.*/site-packages")):
        left = sorted((_distributions(folder) & packages) - present)
        if left and folder.parent.name != running:
            fix = device.command(
                "sh install-termux.sh", "pip install 'pocketserve[tflite,image]'"
            )
            version = folder.parent.name.removeprefix("python")
            sentence = f"{', '.join(left)} stayed behind with Python {version} when Python was upgraded"
            yield problem("upgrade", sentence, fix)


def _distributions(folder: Path) -> set[str]:
    """Return the names of installed packages, as folders spell them."""
    matches = (
        re.match(r"([A-Za-z0-9_.]+?)-[^-]*\.dist-info$", path.name)
        for path in folder.glob("*.dist-info")
    )
    return {match[1].lower() for match in matches if match}
