"""Fetch the Android toolchain once for all tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_script(path: Path) -> ModuleType:
    """Import a script; its folder is on the path while it loads."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.fixture(scope="session")
def toolchain():
    """Return the paths of the tools."""
    return load_script(ROOT / "tools" / "android_toolchain.py").paths()


@pytest.fixture(scope="session")
def kotlin_tools(toolchain):
    """Return the paths of Kotlin's tools."""
    return load_script(ROOT / "tools" / "kotlin_tools.py").paths()


Compile = Callable[[Sequence[Path], str, Path], None]


@pytest.fixture(scope="session")
def kotlinc(toolchain, kotlin_tools) -> Compile:
    """Return a function that compiles Kotlin as for an app.

    ``kotlinc(sources, class_path, classes)``: a warning is an error.
    """

    def compile_sources(sources: Sequence[Path], path: str, classes: Path) -> None:
        # Android's class library comes last, so that a test may replace a class of it.
        seen = os.pathsep.join(
            [path, kotlin_tools.libraries, str(toolchain.android_jar)]
        )
        command = [
            toolchain.java,
            "-cp",
            kotlin_tools.compiler,
            "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
            "-Werror",
        ]
        command += [
            "-no-jdk",
            "-no-stdlib",
            "-no-reflect",
            "-jvm-target",
            "1.8",
            "-Xsam-conversions=class",
        ]
        command += ["-cp", seen, "-d", classes, *sources]
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return compile_sources


@pytest.fixture(scope="session")
def app_tools(toolchain):
    """Return the paths of Kotlin and ProGuard."""
    return load_script(ROOT / "tools" / "app_tools.py").paths()


@pytest.fixture(scope="session")
def library(toolchain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Java library's jar."""
    build = load_script(ROOT / "android_bridge" / "build.py").Build(
        toolchain, tmp_path_factory.mktemp("library")
    )
    jar: Path = build.library()
    return jar
