"""Fetch build tools for apps: Kotlin, ProGuard, the manifest merger.

Usage: python tools/app_tools.py [--folder FOLDER] [--mirror URL] [--debs FOLDER]

Kotlin is 1.3.31, Debian's newest; today's compilers accept the same code. It can't read
the classes of a JDK 17, but with ``-no-jdk`` and Android's class library on the class
path it compiles as for an app. Only the jars for compiling and running are kept
(115 MB). Only ``pytest -m java`` needs this; a second call does nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
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
    ToolchainError,
    class_path,
    fetched_before,
    folder_for,
    make_once,
    unpack_packages,
)

RELEASE = "bookworm"
PACKAGES = (
    *("kotlin", "libtrove-intellij-java", "libjetbrains-annotations-java"),
    *("libkotlinx-coroutines-java", "libkotlinx-atomicfu-java", "libproguard-java"),
    *(
        "libgradle-android-plugin-java",
        "libandroid-tools-common-java",
        "libandroid-tools-annotations-java",
    ),
    "libguava-java",
)
COMPILER_JARS = (
    *(
        "kotlin-compiler",
        "kotlin-stdlib",
        "kotlin-reflect",
        "kotlin-script-runtime",
        "libtrove-intellij",
    ),
    *("org.jetbrains.annotations-common", "org.jetbrains.annotations-java8"),
)
LIBRARY_JARS = ("kotlin-stdlib", "kotlinx-coroutines-core", "atomicfu")
PROGUARD_JARS = ("proguard",)
MERGER_JARS = (
    *(
        "com.android.tools.build.manifest-merger",
        "com.android.tools.common",
        "com.android.tools.sdk-common",
    ),
    *("com.android.tools.annotations", "guava"),
)


@dataclass(frozen=True)
class AppTools:
    """Where everything is, as class paths.

    Attributes:
        kotlin: the compiler; main class ``org.jetbrains.kotlin.cli.jvm.K2JVMCompiler``.
        kotlin_libraries: the standard library and coroutines.
        proguard: the shrinker; main class ``proguard.ProGuard``.
        manifest_merger: merges manifests of app and libraries; main class
            ``com.android.manifmerger.Merger``.
    """

    kotlin: str
    kotlin_libraries: str
    proguard: str
    manifest_merger: str


def paths(
    folder: Path | None = None, mirror: str | None = None, debs: Path | None = None
) -> AppTools:
    """Fetch missing tools, and return all paths.

    Args:
        folder: of the files; default ``app-tools`` in the Android toolchain's folder.
        mirror: a Debian mirror; default POCKETSERVE_DEBIAN_MIRROR, else that of apt.
        debs: a folder of downloaded packages; default POCKETSERVE_ANDROID_DEBS.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    target = folder_for("app-tools", folder)
    make_once(target, __file__, lambda: _fill(target, mirror, debs or fetched_before()))
    return AppTools(
        *(
            class_path(target, jars)
            for jars in (COMPILER_JARS, LIBRARY_JARS, PROGUARD_JARS, MERGER_JARS)
        )
    )


def _fill(folder: Path, mirror: str | None, debs: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        title = "Kotlin, ProGuard and the manifest merger (about 60 MB)"
        unpack_packages(root, dict.fromkeys(PACKAGES), RELEASE, title, mirror, debs)
        for jar in {*COMPILER_JARS, *LIBRARY_JARS, *PROGUARD_JARS, *MERGER_JARS}:
            source = root / "usr/share/java" / f"{jar}.jar"
            if not source.exists():
                raise ToolchainError(
                    f"Debian's packages hold no {source.name} any more"
                )
            shutil.copyfile(source, folder / source.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch everything and print where it is; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Fetch Kotlin, ProGuard and the manifest merger from Debian packages."
    )
    parser.add_argument(
        "--folder", type=Path, help=f"where to put it [app-tools in {FOLDER_VARIABLE}]"
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]",
    )
    parser.add_argument(
        "--debs",
        type=Path,
        metavar="FOLDER",
        help=f"packages fetched before [{DEBS_VARIABLE}]",
    )
    options = parser.parse_args(arguments)
    try:
        print(
            *dataclasses.astuple(paths(options.folder, options.mirror, options.debs)),
            sep="\n",
        )
    except ToolchainError as error:
        print(f"app_tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
