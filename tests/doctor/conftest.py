"""Provide a healthy phone for planted problems."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    """Import the module beside this file without changing the path."""
    path = Path(__file__).with_name("fake_phone.py")
    spec = importlib.util.spec_from_file_location("doctor_fake_phone", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["doctor_fake_phone"] = module
    spec.loader.exec_module(module)
    return module


fake_phone = _load()


@pytest.fixture
def phone(tmp_path):
    """Return a healthy Termux device."""
    return fake_phone.Phone(tmp_path)
