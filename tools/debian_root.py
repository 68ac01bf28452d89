"""A Python of another Debian release or processor, from unpacked packages.

It needs no root rights and doesn't change this system: packages are only unpacked, and
wheels come from the package index by pip. Each such Python is a small script that
behaves like an interpreter.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from android_toolchain import (
    MIRROR_VARIABLE,
    ToolchainError,
    private_apt,
    require,
    run,
    system_mirror,
)

ROOT = Path(__file__).resolve().parents[1]
LAB = "lab/pyproject.toml"
LIBRARIES = ("libstdc++6", "libgomp1", "zlib1g", "libgcc-s1", "tzdata")
"""Packages that wheels need beside Python."""

CORE_WHEELS = (
    *(
        "numpy",
        "flask",
        "waitress",
        "requests",
        "platformdirs",
        "prometheus-client",
        "pillow",
    ),
    *("ai-edge-litert", "onnxruntime", "onnx", "pytest", "hypothesis", "packaging"),
)
TIMEOUT_S = 3600.0


def option_parser(
    description: str, variable: str, default: str
) -> argparse.ArgumentParser:
    """The options of every such run.

    Args:
        variable: an environment variable that names the folder, too.
        default: the folder in the project if neither does.
    """
    parser = argparse.ArgumentParser(description=description)
    place = os.environ.get(variable) or ROOT / default
    parser.add_argument(
        "--folder",
        type=Path,
        default=place,
        help=f"where to put it [{variable}, else {default}]",
    )
    mirror = os.environ.get(MIRROR_VARIABLE)
    parser.add_argument(
        "--mirror",
        metavar="URL",
        default=mirror,
        help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]",
    )
    return parser


def ready_python(
    options: argparse.Namespace,
    script: str,
    told: str,
    make: Callable[[Path, str], Path],
) -> Path:
    """Return the options' Python, rebuilt if its inputs changed.

    Args:
        script: the file that lists its packages.
        told: its description, or a part of it (``describe``).
        make: builds it from an empty or outdated folder and the mirror, and returns it.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "made-from"
    inputs = fingerprint(folder, script)
    made_from, _, python = (
        stamp.read_text("utf-8").partition("\n") if stamp.exists() else ("", "", "")
    )
    if made_from == inputs:
        return Path(python)
    stamp.unlink(missing_ok=True)
    require("apt-get")
    require("dpkg-deb")
    made = make(folder, options.mirror or system_mirror())
    if told not in describe(made):
        raise ToolchainError(
            f"its Python does not start; delete {folder} and try again"
        )
    stamp.write_text(f"{inputs}\n{made}", "utf-8")
    return made


def fetch_root(
    root: Path, mirror: str, release: str, architecture: str, packages: Sequence[str]
) -> None:
    """Unpack packages with their dependencies, without configuring them.

    Raises:
        ToolchainError: they are not available on this machine.
    """
    arriving = fresh(root.with_name("debs"))
    with private_apt(mirror, (release,), architecture) as apt:
        run([*apt, "update"], "Debian's package lists cannot be fetched", arriving)
        wanted = [
            "-y",
            "--no-install-recommends",
            "--download-only",
            "-o",
            f"Dir::Cache::archives={arriving}",
        ]
        (arriving / "partial").mkdir()
        run(
            [*apt, *wanted, "install", *packages],
            f"the packages for {architecture} cannot be fetched",
            arriving,
        )
    fresh(root)
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for file in sorted(arriving.glob("*.deb")):
        _unpack(file, root)
    shutil.rmtree(arriving)


def _unpack(file: Path, root: Path) -> None:
    """Unpack a package, keeping the links /lib and /bin."""
    archive = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE
    )
    command = [
        "tar",
        "-x",
        "--keep-directory-symlink",
        "--no-same-owner",
        "-C",
        str(root),
    ]
    unpacked = subprocess.run(command, stdin=archive.stdout, timeout=120, check=False)
    assert archive.stdout is not None
    archive.stdout.close()  # otherwise it would wait for a tar that has failed
    if archive.wait(60) or unpacked.returncode:
        raise ToolchainError(f"{file.name} cannot be unpacked; is the disk full?")


def fetch_wheels(site: Path, python: str, machine: str, wheels: Sequence[str]) -> None:
    """Install wheels for another Python.

    Args:
        python: its version, such as ``3.14``.
        machine: as in the names of wheels, such as ``aarch64``.

    Raises:
        ToolchainError: one of them does not exist, or can't be fetched.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
    ]
    command += [str(fresh(site)), "--only-binary=:all:", "--implementation", "cp"]
    command += [
        "--python-version",
        python,
        "--abi",
        f"cp{python.replace('.', '')}",
        "--abi",
        "abi3",
        "--abi",
        "none",
    ]
    for platform in (
        "manylinux2014",
        "manylinux_2_17",
        "manylinux_2_27",
        "manylinux_2_28",
    ):
        command += ["--platform", f"{platform}_{machine}"]
    command += ["--constraint", str(ROOT / "constraints.txt"), *wheels]
    run(command, f"the wheels for Python {python} on {machine} cannot be installed")


def write_commands(site: Path) -> None:
    """Register the lab's commands for the search path."""
    text = (ROOT / LAB).read_text("utf-8")
    groups = tomllib.loads(text)["project"]["entry-points"]
    lines = []
    for group, points in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {module}" for name, module in points.items()]
    folder = fresh(site / "pocketserve_lab-0.dist-info")
    (folder / "METADATA").write_text("Name: pocketserve-lab\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def write_script(
    path: Path, words: Sequence[str], variables: Mapping[str, str] | None = None
) -> None:
    """Write a program that passes its arguments to a command."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a link
    exported = "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in (variables or {}).items()
    )
    path.write_text(
        f'#!/bin/sh\n{exported}exec {" ".join(map(shlex.quote, words))} "$@"\n'
    )
    path.chmod(0o755)


def run_python(
    python: Path, *arguments: str, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run this Python with the project's packages."""
    kept = {}
    for name, value in os.environ.items():
        if not name.startswith(("POCKETSERVE_", "PYTHON")):
            kept[name] = value
    environment = {**kept, "PYTHONPATH": sources(), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=capture,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def describe(python: Path) -> str:
    """Processor and version; empty if it does not start."""
    told = "import os, sys; print(os.uname().machine, 'Python', sys.version.split()[0], end='')"
    return run_python(python, "-c", told, capture=True).stdout


def sources() -> str:
    """Return where the project's packages are, as a search path."""
    return os.pathsep.join(str(ROOT / name) for name in ("server", "client", "lab"))


def fingerprint(folder: Path, script: str) -> str:
    """Hash everything that determines a folder's content."""
    files = (Path(script), Path(__file__), ROOT / "constraints.txt", ROOT / LAB)
    parts = (str(folder), *(file.read_text("utf-8") for file in files))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def fresh(folder: Path) -> Path:
    """An empty folder in place of whatever was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
