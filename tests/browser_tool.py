"""Import the tool that provides browsers for the tests of the page."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from places import ROOT


@functools.cache
def tool() -> Any:
    """Import ``tools/browser.py``, which finds or fetches browsers."""
    sys.path.append(str(ROOT / "tools"))
    try:
        return importlib.import_module("browser")
    finally:
        sys.path.remove(str(ROOT / "tools"))
