"""Bound the modules that a server imports until its first answer.

On a phone each module takes a millisecond or two.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODELS, start_server

pytestmark = pytest.mark.live

OWN = ("pocketserve", "pocketserve_wire")
MAX_READY = 130
MAX_ANSWERED = 162
"""Limits for our own modules and packages: in a ready server, and after one TFLite run."""

UNUSED = {
    "shutil", "zipfile", "gzip", "subprocess", "tempfile", "random", "secrets", "shlex", "base64", "email",
    "http", "colorsys", "difflib", "platformdirs", "requests", "flask", "werkzeug", "PIL", "prometheus_client",
}  # fmt: skip
"""Modules that neither imports."""


REQUEST = {
    "inputs": [
        {"name": "image", "datatype": "FP32", "shape": [1, 8, 8, 1], "data": [0.0] * 64}
    ]
}


def imported(log: str) -> set[str]:
    """Return the modules listed by ``-X importtime``."""
    return set(
        re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", log, re.MULTILINE)
    )


def own(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.partition(".")[0] in OWN)


def modules_of_numpy() -> set[str]:
    """Return the modules that ``import numpy`` loads."""
    command = [sys.executable, "-X", "importtime", "-c", "import numpy"]
    return imported(
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stderr
    )


def test_a_start_imports_few_modules(tmp_path: Path) -> None:
    """Import optional modules late.

    Raise a limit here only for a good reason.
    """
    # The first start creates the token and tries the model's file, which needs more
    # modules.
    for _ in range(2):
        server = start_server(
            tmp_path, MODELS, environment={"PYTHONPROFILEIMPORTTIME": "1"}
        )
        try:
            ready = imported(server.log.read_text())
            assert (
                server.call("POST", "/v2/models/digits/infer", json=REQUEST).status_code
                == 200
            )
            answered = imported(server.log.read_text())
        finally:
            assert server.stop() == 0
    assert {"pocketserve.service", "logging"} <= ready
    # Older versions of NumPy import some of them themselves.
    unused = UNUSED - modules_of_numpy()
    assert sorted(name for name in answered if name.partition(".")[0] in unused) == []
    assert len(own(ready)) <= MAX_READY, own(ready)
    assert len(own(answered)) <= MAX_ANSWERED, own(answered)
