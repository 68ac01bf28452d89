"""Find Chromium and Firefox for tests, or fetch them from Debian.

Usage: python tools/browser.py [chromium|firefox] [--folder FOLDER] [--mirror URL]

The browser that POCKETSERVE_CHROMIUM or POCKETSERVE_FIREFOX names comes first, then an
installed one. Otherwise packages are unpacked into ``.browsers/`` (500 MB each), without
root rights or changes to the system. They use the system's C library, which must be that
of Debian 12 or newer.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from android_toolchain import (
    MIRROR_VARIABLE,
    ROOT,
    ToolchainError,
    make_once,
    require,
    run,
    say,
    system_mirror,
)
from debian_root import fetch_root


@dataclass(frozen=True)
class Browser:
    """A browser, as Debian has it.

    Attributes:
        name: as ``--version`` prints it.
        variable: an environment variable that names an installed one.
        programs: its names on the PATH.
        package: Debian's package, whose program lies in ``/usr/lib/PACKAGE/PACKAGE``.
    """

    name: str
    variable: str
    programs: tuple[str, ...]
    package: str


BROWSERS: Final = {
    "chromium": Browser(
        "Chromium",
        "POCKETSERVE_CHROMIUM",
        ("chromium", "chromium-browser", "google-chrome"),
        "chromium",
    ),
    "firefox": Browser(
        "Firefox", "POCKETSERVE_FIREFOX", ("firefox-esr", "firefox"), "firefox-esr"
    ),
}
FOLDER_VARIABLE: Final = "POCKETSERVE_BROWSERS_FOLDER"
RELEASE: Final = "bookworm"
FONTS: Final = ("fonts-dejavu-core", "fontconfig-config")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
START_TIMEOUT_S: Final = 60.0
LIGHTHOUSE: Final = "lighthouse@12.8.2"  # the last for Node 20
TYPESCRIPT: Final = "typescript@5.9.3"


def find(name: str) -> Path | None:
    """Return the browser from its variable or the PATH."""
    browser = BROWSERS[name]
    place = os.environ.get(browser.variable) or next(
        filter(None, map(shutil.which, browser.programs)), None
    )
    if place:
        return Path(place)
    return None


def provide(name: str, folder: Path | None = None, mirror: str | None = None) -> Path:
    """Return a browser that starts; fetch it where none is installed.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    if folder is None and (installed := find(name)) is not None:
        return installed
    program = _folder(folder) / name / name
    make_once(
        program.parent,
        __file__,
        lambda: _fetch(BROWSERS[name], program, mirror or system_mirror()),
    )
    return program


def provide_lighthouse() -> list[str]:
    """Return Lighthouse's command, fetched by npm (220 MB) if missing.

    Raises:
        ToolchainError: there is no npm, or the download failed.
    """
    package = _provide_from_npm("lighthouse", LIGHTHOUSE)
    return ["node", str(package / "cli" / "index.js")]


def provide_typescript() -> list[str]:
    """Return the command of the TypeScript compiler.

    Raises:
        ToolchainError: there is no npm, or the download failed.
    """
    package = _provide_from_npm("typescript", TYPESCRIPT)
    return ["node", str(package / "bin" / "tsc")]


def _folder(folder: Path | None = None) -> Path:
    return (
        folder or Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".browsers")
    ).absolute()


def _provide_from_npm(name: str, package: str) -> Path:
    """Return the folder of an npm package, which is fetched the first time."""
    folder = _folder() / name
    make_once(folder, __file__, lambda: _fetch_from_npm(package, folder))
    return folder / "node_modules" / name


def _fetch_from_npm(package: str, folder: Path) -> None:
    require("npm")
    say(f"fetching {package} from npm …")
    command = [
        "npm",
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        str(folder),
    ]
    run([*command, package], f"{package} cannot be fetched")


def _fetch(browser: Browser, program: Path, mirror: str) -> None:
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise ToolchainError(
            f"Debian has no {browser.name} for {platform.machine()}; set {browser.variable} to one"
        )
    require("apt-get")
    require("dpkg-deb")
    say(f"fetching {browser.name} from Debian (about 130 MB) …")
    root = program.with_name("root")
    fetch_root(root, mirror, RELEASE, architecture, (browser.package, *FONTS))
    _write_program(root, browser.package, program)
    told = subprocess.run(
        [program, "--version"],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    if browser.name not in told.stdout:
        raise ToolchainError(
            f"the {browser.name} of Debian's packages does not start here ({told.stderr.strip()[:200]}); "
            f"install one (Debian: apt-get install {browser.package}), or set {browser.variable} to it"
        )


def _write_program(root: Path, package: str, program: Path) -> None:
    """Write a script that uses the libraries and fonts beside it."""
    (libraries,) = (root / "usr" / "lib").glob("*-linux-gnu")
    for library in _of_c_library(libraries):
        library.unlink()
    (root / "fonts.conf").write_text(
        f"<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{root}/fonts-cache</cachedir></fontconfig>"
    )
    places = f"{libraries}:{libraries / 'pulseaudio'}"  # the second one's has an absolute path of the system
    program.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={shlex.quote(places)} "
        f"FONTCONFIG_FILE={shlex.quote(str(root / 'fonts.conf'))}\n"
        f'exec {shlex.quote(str(root / "usr/lib" / package / package))} "$@"\n'
    )
    program.chmod(0o755)


def _of_c_library(libraries: Path) -> list[Path]:
    """Return the files that need the same release's loader."""
    names = (
        "libc",
        "libm",
        "libmvec",
        "libpthread",
        "libdl",
        "librt",
        "libresolv",
        "libutil",
        "libanl",
        "libnsl",
    )
    return [file for name in names for file in libraries.glob(f"{name}.so.*")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch missing browsers, and print the paths."""
    parser = argparse.ArgumentParser(
        description="Find or fetch browsers for the tests of the web page."
    )
    parser.add_argument(
        "browser", nargs="*", metavar="BROWSER", help=f"{' or '.join(BROWSERS)} [both]"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help=f"fetch them there, even if installed [{FOLDER_VARIABLE}]",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.browser) - set(BROWSERS):
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}; there are {' and '.join(BROWSERS)}"
        )
    try:
        for name in options.browser or BROWSERS:
            print(provide(name, options.folder, options.mirror))
    except ToolchainError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
