"""Fetches what apps are built with, from Debian packages: Kotlin, ProGuard and Android's manifest merger.

Usage: python tools/app_tools.py [--folder FOLDER] [--mirror URL] [--debs FOLDER]

Kotlin is 1.3.31, the newest that Debian has; what it compiles, today's compilers take too. It cannot read the classes
of a JDK 17, and need not: with ``-no-jdk`` and Android's own class library on the class path it compiles as for an app.
Only the jars that compiling and running take are kept (115 MB). Nothing but ``pytest -m java`` needs this; a second
call does nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from android_toolchain import (
    DEBS_VARIABLE,
    FOLDER_VARIABLE,
    MIRROR_VARIABLE,
    ROOT,
    ToolchainError,
    class_path,
    private_apt,
    require,
    run,
    say,
    system_mirror,
)

RELEASE = "bookworm"
PACKAGES = (
    *("kotlin", "libtrove-intellij-java", "libjetbrains-annotations-java"),
    *("libkotlinx-coroutines-java", "libkotlinx-atomicfu-java", "libproguard-java"),
    *("libgradle-android-plugin-java", "libandroid-tools-common-java", "libandroid-tools-annotations-java"),
    "libguava-java",
)
COMPILER_JARS = (
    *("kotlin-compiler", "kotlin-stdlib", "kotlin-reflect", "kotlin-script-runtime", "libtrove-intellij"),
    *("org.jetbrains.annotations-common", "org.jetbrains.annotations-java8"),
)
LIBRARY_JARS = ("kotlin-stdlib", "kotlinx-coroutines-core", "atomicfu")
PROGUARD_JARS = ("proguard",)
MERGER_JARS = (
    *("com.android.tools.build.manifest-merger", "com.android.tools.common", "com.android.tools.sdk-common"),
    *("com.android.tools.annotations", "guava"),
)


@dataclass(frozen=True)
class AppTools:
    """Where everything is, as class paths.

    Attributes:
        kotlin: the compiler; main class ``org.jetbrains.kotlin.cli.jvm.K2JVMCompiler``.
        kotlin_libraries: what Kotlin programs need: the standard library and coroutines.
        proguard: the shrinker; main class ``proguard.ProGuard``.
        manifest_merger: what joins the manifests of app and libraries; main class ``com.android.manifmerger.Merger``.
    """

    kotlin: str
    kotlin_libraries: str
    proguard: str
    manifest_merger: str


def paths(folder: Path | None = None, mirror: str | None = None, debs: Path | None = None) -> AppTools:
    """Fetch what is missing and tell where everything is.

    Args:
        folder: where it lies; default ``app-tools`` in the Android toolchain's folder.
        mirror: address of a Debian mirror; default POCKETSERVE_DEBIAN_MIRROR, else the one that apt uses.
        debs: folder with packages that were fetched before; default POCKETSERVE_ANDROID_DEBS.

    Raises:
        ToolchainError: it cannot be had on this machine.
    """
    toolchain = Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".android-toolchain")
    folder = (folder or toolchain / "app-tools").absolute()
    given = os.environ.get(DEBS_VARIABLE)
    _ensure(folder, mirror or os.environ.get(MIRROR_VARIABLE), debs or (Path(given).expanduser() if given else None))
    return AppTools(*(class_path(folder, jars) for jars in (COMPILER_JARS, LIBRARY_JARS, PROGUARD_JARS, MERGER_JARS)))


def _ensure(folder: Path, mirror: str | None, debs: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stamp, made_from = folder / "made-from", hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == made_from:
            return
        stamp.unlink(missing_ok=True)
        require("dpkg-deb")
        with tempfile.TemporaryDirectory(dir=folder) as name:
            work = Path(name)
            for package in _packages(work, mirror, debs):
                run(["dpkg-deb", "-x", str(package), str(work)], f"{package.name} cannot be unpacked")
            for jar in {*COMPILER_JARS, *LIBRARY_JARS, *PROGUARD_JARS, *MERGER_JARS}:
                found = work / "usr/share/java" / f"{jar}.jar"
                if not found.exists():
                    raise ToolchainError(f"Debian's packages hold no {found.name} any more")
                shutil.copyfile(found, folder / found.name)
        stamp.write_text(made_from)


def _packages(work: Path, mirror: str | None, debs: Path | None) -> list[Path]:
    """The packages' files: those that were fetched before, and the others from the mirror."""
    kept = {name: next(iter(debs.glob(f"{name}_*.deb")), None) if debs else None for name in PACKAGES}
    if missing := [f"{name}/{RELEASE}" for name, file in kept.items() if file is None]:
        require("apt-get")
        say("fetching Kotlin, ProGuard and the manifest merger from Debian (about 60 MB) …")
        with private_apt(mirror or system_mirror(), (RELEASE,)) as apt:
            run([*apt, "update"], "Debian's package lists cannot be fetched", work)
            run([*apt, "download", *missing], "what apps are built with cannot be fetched", work)
    return [*work.glob("*.deb"), *(file for file in kept.values() if file is not None)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch everything and print where it is; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fetch Kotlin, ProGuard and the manifest merger from Debian packages.")
    parser.add_argument("--folder", type=Path, help=f"where to put it [app-tools in {FOLDER_VARIABLE}]")
    parser.add_argument("--mirror", metavar="URL", help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]")
    parser.add_argument("--debs", type=Path, metavar="FOLDER", help=f"packages fetched before [{DEBS_VARIABLE}]")
    options = parser.parse_args(arguments)
    try:
        print(*dataclasses.astuple(paths(options.folder, options.mirror, options.debs)), sep="\n")
    except ToolchainError as error:
        print(f"app_tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
