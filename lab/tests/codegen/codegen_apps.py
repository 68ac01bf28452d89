"""Use generated classes as apps do: compile for Android 6, convert to dex, run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import Server
from pocketserve.cli import main
from pocketserve_client import Client

PROGRAMS = Path(__file__).parent / "codegen_app"
TIMEOUT_S = 300
COMPILE_TIMEOUT_S = 900  # Kotlin takes a minute of a core for large classes


@dataclass(frozen=True)
class App:
    """A program with its classes.

    Attributes:
        path: its class path.
    """

    java: Path
    path: str

    def command(
        self,
        main: str,
        inputs: Path,
        transport: str,
        server: Server,
        token: Path | None = None,
    ) -> list[str]:
        """Return the command that starts it."""
        where = [
            transport.upper(),
            str(server.socket_port),
            str(server.port),
            str(token or server.ready["token_file"]),
        ]
        return [
            str(self.java),
            "-cp",
            self.path,
            f"com.example.app.{main}",
            str(inputs),
            *where,
        ]


def generate(
    server: Server, language: str, folder: Path, models: Sequence[str] = ()
) -> list[Path]:
    """Write a class for some of a server's models, or for all."""
    with Client(server.url, server.token) as client:
        names = set(models) or {entry["name"] for entry in client.index()}
    where = [
        "--url",
        server.url,
        "--token-file",
        server.ready["token_file"],
        "--output",
        str(folder),
    ]
    for name in sorted(names):
        assert (
            main(
                [
                    "codegen",
                    name,
                    "--package",
                    "com.example.app",
                    "--language",
                    language,
                    *where,
                ]
            )
            == 0
        )
    files = sorted((folder / "com/example/app").iterdir())
    assert len(files) == len(names)
    return files


def run(command: list[object], **options: Any) -> None:
    """Run a tool; a failure's message is the tool's output."""
    words = [str(part) for part in command]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"[-4000:]


def compile_programs(
    toolchain: Any, target: Path, sources: list[Path], *path: Path
) -> Path:
    """Compile programs, which may use more than Android 6 offers."""
    run([toolchain.javac, "-cp", class_path(*path), "-d", target, *sources])
    return target


def class_path(*parts: object) -> str:
    """Join jars and folders into one argument."""
    return os.pathsep.join(map(str, parts))


def compile_java(
    toolchain: Any, library: Path, target: Path, sources: list[Path]
) -> Path:
    """Compile generated classes as an app does: ASCII, Java 8, Android 6."""
    command = [
        toolchain.javac,
        "-Xlint:all,-options",
        "-Werror",
        "-encoding",
        "US-ASCII",
        "-source",
        "8",
        "-target",
        "8",
    ]
    run(
        [
            *command,
            "-bootclasspath",
            toolchain.android_jar,
            "-cp",
            library,
            "-d",
            target,
            *sources,
        ]
    )
    return target


def dexed(toolchain: Any, folder: Path, *parts: Path) -> Path:
    """Convert classes and jars to dex and back."""
    dex = folder / "classes.dex"
    back = folder / "dexed.jar"
    translator = [
        toolchain.java,
        "-cp",
        toolchain.dx_jar,
        "com.android.dx.command.Main",
    ]
    run([*translator, "--dex", "--min-sdk-version=23", f"--output={dex}", *parts])
    run([toolchain.enjarify, "--force", "-o", back, dex])
    return back


def compile_kotlin(
    toolchain: Any, app_tools: Any, library: Path, target: Path, sources: list[Path]
) -> Path:
    """Compile as an app does, against Android 6's class library."""
    seen = os.pathsep.join(
        [
            str(library),
            app_tools.kotlin_libraries,
            str(toolchain.android_jar),
        ]
    )
    command = [
        toolchain.java,
        "-cp",
        app_tools.kotlin,
        "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
        "-Werror",
    ]
    run(
        [
            *command,
            "-no-jdk",
            "-no-stdlib",
            "-no-reflect",
            "-cp",
            seen,
            "-d",
            target,
            *sources,
        ]
    )
    return target
