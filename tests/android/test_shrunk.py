"""Run the library after a shrinker, as in an app's release build."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, Server

from .conftest import load_script

pytestmark = [pytest.mark.java, pytest.mark.live]

SCRIPT = load_script(ROOT / "android_bridge" / "build.py")
PROGRAMS = ("Main", "Bench")
RULES = """
-injars {library}
-injars {desktop}(!META-INF/**)
-outjars {shrunk}
-libraryjars {android}
# The desktop stand-in reads files in a way that Android 6 does not have.
-dontwarn java.nio.file.**
-dontnote
-optimizationpasses 3
-allowaccessmodification
-overloadaggressively
-repackageclasses x
{kept}
# The stand-in takes its transport by name, for which every app has this rule from Android's own default file.
-keepclassmembers enum dev.pocketserve.bridge.Transport {{ public static **[] values(); public static ** valueOf(*); }}
"""
"""No rules for the library itself: it needs none."""

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def shrunk(
    toolchain: Any, app_tools: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Shrink library and desktop stand-in into one jar, keeping only the entry points."""
    folder = tmp_path_factory.mktemp("shrunk")
    build = SCRIPT.Build(toolchain, folder)
    library = build.library()
    keep = "-keep class dev.pocketserve.desktop.{} {{ public static void main(java.lang.String[]); }}"
    rules = folder / "rules.pro"
    rules.write_text(
        RULES.format(
            library=library,
            desktop=build.desktop(library),
            shrunk=folder / "shrunk.jar",
            android=toolchain.android_jar,
            kept="\n".join(keep.format(name) for name in PROGRAMS),
        )
    )
    command = [
        str(toolchain.java),
        "-cp",
        app_tools.proguard,
        "proguard.ProGuard",
        f"@{rules}",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "shrunk.jar"


@pytest.fixture(scope="module")
def program(toolchain: Any, shrunk: Path, server: Server) -> Program:
    """Return a function that starts a program of the shrunk jar.

    ``program("Main", "http", "--model", ...)``
    """

    def start(
        name: str, transport: str, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        path = f"{shrunk}:{toolchain.json_jar}"
        command = [
            str(toolchain.java),
            "-cp",
            path,
            f"dev.pocketserve.desktop.{name}",
            "--transport",
            transport,
        ]
        command += [
            "--port",
            str(server.ready[transport]["port"]),
            "--token-file",
            server.ready["token_file"],
        ]
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return start


def test_classes_were_renamed(shrunk: Path) -> None:
    with zipfile.ZipFile(shrunk) as archive:
        classes = {name for name in archive.namelist() if name.endswith(".class")}
    kept = {f"dev/pocketserve/desktop/{name}.class" for name in PROGRAMS}
    assert kept < classes
    assert not [name for name in classes - kept if not name.startswith("x/")]


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_pictures_are_answered(program: Program, transport: str) -> None:
    done = program(
        "Main", transport, "--model", "digits", str(MODELS / "digits" / "samples")
    )
    assert done.returncode == 0, done.stderr
    assert [line[: len("0.png: 0")] for line in done.stdout.splitlines()] == [
        f"{d}.png: {d}" for d in range(10)
    ]


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_tensors_are_answered(program: Program, transport: str) -> None:
    """The datatype is found by its name, though its class was renamed."""
    done = program(
        "Bench",
        transport,
        "--model",
        "digits",
        "--shape",
        "1,8,8,1",
        "--warmup",
        "1",
        "--requests",
        "2",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes_out"] == 40


def test_errors_keep_their_codes(program: Program) -> None:
    done = program(
        "Main", "socket", "--model", "nothing", str(MODELS / "digits" / "samples")
    )
    assert done.returncode == 1
    assert "MODEL_NOT_FOUND" in done.stderr
