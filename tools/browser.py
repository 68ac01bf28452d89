"""Find Chromium for the tests of the web page, or fetch it from Debian packages into ``.chromium/`` of the clone.

Usage: python tools/browser.py [--folder FOLDER] [--mirror URL]

The one that POCKETSERVE_CHROMIUM names comes first, then an installed one. Otherwise the packages are unpacked into the
folder (400 MB): neither root rights nor a package of the system's own are touched. The C library is the system's own,
which must be as new as that of the packages: Debian 12 or newer.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from android_toolchain import MIRROR_VARIABLE, ROOT, ToolchainError, require, say, system_mirror
from debian_root import fetch_root

VARIABLE = "POCKETSERVE_CHROMIUM"
FOLDER_VARIABLE = "POCKETSERVE_CHROMIUM_FOLDER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
RELEASE = "bookworm"
PACKAGES = ("chromium", "fonts-dejavu-core", "fontconfig-config")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
START_TIMEOUT_S = 60.0
C_LIBRARY = ("libc6", "libc-bin", "libcrypt1")
"""Packages whose libraries must be those of the system's own loader."""


def installed() -> Path | None:
    """Return the Chromium that the variable names or that is on the PATH; None where there is none."""
    named = os.environ.get(VARIABLE)
    place = named or next(filter(None, map(shutil.which, NAMES)), None)
    return Path(place) if place else None


def chromium(folder: Path | None = None, mirror: str | None = None) -> Path:
    """Return a Chromium that starts; fetch it where none is installed.

    Raises:
        ToolchainError: it cannot be had on this machine.
    """
    if folder is None and (present := installed()) is not None:
        return present
    folder = (folder or Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".chromium")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    program, stamp = folder / "chromium", folder / "made-from"
    inputs = hashlib.sha256(f"{folder}\0{Path(__file__).read_text('utf-8')}".encode()).hexdigest()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == inputs):
            stamp.unlink(missing_ok=True)
            _fetch(folder, program, mirror or os.environ.get(MIRROR_VARIABLE) or system_mirror())
            stamp.write_text(inputs)
    return program


def _fetch(folder: Path, program: Path, mirror: str) -> None:
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise ToolchainError(f"Debian has no Chromium for {platform.machine()}; set {VARIABLE} to one")
    require("apt-get")
    require("dpkg-deb")
    say("fetching Chromium from Debian (about 130 MB) …")
    fetch_root(folder / "root", mirror, RELEASE, architecture, PACKAGES)
    _write_program(folder / "root", program)
    told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    if "Chromium" not in told.stdout:
        raise ToolchainError(
            f"the Chromium of Debian's packages does not start here ({told.stderr.strip()[:200]}); "
            f"install one (Debian: apt-get install chromium), or set {VARIABLE} to it"
        )


def _write_program(root: Path, program: Path) -> None:
    """Write a script that starts it with the libraries and fonts beside it."""
    (libraries,) = (root / "usr" / "lib").glob("*-linux-gnu")
    for library in _of_c_library(libraries):
        library.unlink()
    (root / "fonts.conf").write_text(
        f"<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{root}/fonts-cache</cachedir></fontconfig>"
    )
    program.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={shlex.quote(str(libraries))} "
        f"FONTCONFIG_FILE={shlex.quote(str(root / 'fonts.conf'))}\n"
        f'exec {shlex.quote(str(root / "usr/lib/chromium/chromium"))} "$@"\n'
    )
    program.chmod(0o755)


def _of_c_library(libraries: Path) -> list[Path]:
    """Return what only the loader of the same release can load."""
    names = ("libc", "libm", "libmvec", "libpthread", "libdl", "librt", "libresolv", "libutil", "libanl", "libnsl")
    return [file for name in names for file in libraries.glob(f"{name}.so.*")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where Chromium is, after fetching it where there is none; returns the exit code."""
    parser = argparse.ArgumentParser(description="Find or fetch Chromium for the tests of the web page.")
    parser.add_argument("--folder", type=Path, help=f"fetch it there, even if one is installed [{FOLDER_VARIABLE}]")
    parser.add_argument("--mirror", metavar="URL", help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]")
    options = parser.parse_args(arguments)
    try:
        print(chromium(options.folder, options.mirror))
    except ToolchainError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
