"""Whether this machine has a browser for the tests of the page."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

from places import ROOT


@functools.cache
def tool() -> Any:
    """``tools/browser.py``, which finds or fetches Chromium."""
    sys.path.append(str(ROOT / "tools"))
    try:
        return importlib.import_module("browser")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def can_browse() -> bool:
    """Whether Playwright and a Chromium are installed."""
    return importlib.util.find_spec("playwright") is not None and tool().installed() is not None
