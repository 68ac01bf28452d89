"""A request visits few of our modules."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from places import ROOT

MOST_MODULES = {
    "JSON tensors": 28,
    "binary tensors": 22,
    "picture": 36,
}
MOST_CALLS = {
    "JSON tensors": 200,
    "binary tensors": 120,
    "picture": 250,
}
"""Far above the usual numbers, since a request that arrives in pieces needs more calls.
"""

LINE = re.compile(r"http, (.+): (\d+) modules, (\d+) calls")


@pytest.mark.live
def test_an_http_request_visits_few_modules() -> None:
    output = subprocess.run(
        [sys.executable, ROOT / "tools" / "request_path.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    counts = {match[1]: match for match in LINE.finditer(output)}
    assert counts.keys() == MOST_MODULES.keys()
    for kind, match in counts.items():
        assert int(match[2]) <= MOST_MODULES[kind], kind
        assert int(match[3]) <= MOST_CALLS[kind], kind
