"""The Android toolchain, fetched once for all tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_script(path: Path) -> ModuleType:
    """A script as a module, without making its folder importable for everybody."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def toolchain():
    """Where the tools are."""
    return load_script(ROOT / "tools" / "android_toolchain.py").paths()


@pytest.fixture(scope="session")
def app_tools(toolchain):
    """Where Kotlin and ProGuard are."""
    return load_script(ROOT / "tools" / "app_tools.py").paths()
