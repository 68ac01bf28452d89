"""Which Python on which kind of system, and whether an upgrade has left its packages behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning

SUBJECT = "python"
OLDEST = (3, 11)
CORE = ("pocketserve", "flask", "waitress", "requests", "platformdirs", "prometheus_client")
FDROID = "take Termux from F-Droid or GitHub (see docs/termux.md)"


def check_python(device: Device) -> Iterator[Finding]:
    """Version, platform and word size."""
    version = ".".join(map(str, device.python))
    kind = "Linux under proot" if device.proot else "Termux" if device.termux else "a desktop"
    if device.python < OLDEST:
        fix = device.command("pkg upgrade python", "install Python 3.11 or newer")
        yield problem(SUBJECT, f"Python {version} is too old: 3.11 or newer is needed", fix)
    elif not device.wide:
        yield warning(
            SUBJECT, f"Python {version} is a 32-bit program: no runtime but TFLite exists for it", "use a 64-bit device"
        )
    else:
        yield ok(SUBJECT, f"Python {version} in {kind} ({device.platform}, {device.machine})")


def check_play_store(device: Device) -> Iterator[Finding]:
    """Google Play's Termux lacks what the companion app needs."""
    told = device.environ.get("TERMUX_APK_RELEASE", ""), device.environ.get("TERMUX_VERSION", "")
    if told[0] == "GOOGLE_PLAY_STORE" or "googleplay" in told[1]:
        yield warning("termux", "this is Google Play's Termux: apps cannot start servers in it, nor reach them", FDROID)


def check_upgrade(device: Device) -> Iterator[Finding]:
    """Packages of pip live in a folder per Python version; an upgrade of Python leaves them behind."""
    library = device.prefix / "lib"
    here = _distributions(library / f"python{device.python[0]}.{device.python[1]}" / "site-packages")
    for folder in sorted(library.glob("python3.*/site-packages")):
        version = folder.parent.name.removeprefix("python")
        left = sorted((_distributions(folder) & set(CORE)) - here)
        if left and version != ".".join(map(str, device.python)):
            fix = device.command("sh install-termux.sh", "pip install 'pocketserve[tflite,image]'")
            yield problem(
                "upgrade", f"{', '.join(left)} stayed behind with Python {version} when Python was upgraded", fix
            )


def _distributions(folder: Path) -> set[str]:
    """The names of installed packages, as folders spell them."""
    found = (re.match(r"([A-Za-z0-9_.]+?)-[^-]*\.dist-info$", path.name) for path in folder.glob("*.dist-info"))
    return {match[1].lower() for match in found if match}
