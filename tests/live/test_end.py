"""Tests of a server's shutdown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conftest import MODELS, StartServer

pytestmark = pytest.mark.live

COUNT = """
import atexit, gc, os
def count():
    with open(os.environ["COUNTED"], "w") as file:
        print(gc.get_freeze_count(), len(gc.get_objects()), file=file)
if "COUNTED" in os.environ:
    atexit.register(count)
"""


def test_shutdown_skips_garbage_collection_of_framework_objects(
    new_server: StartServer, tmp_path: Path
) -> None:
    """Garbage collections at model close and at interpreter exit would each scan the
    frameworks' objects.
    """
    (tmp_path / "sitecustomize.py").write_text(COUNT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = new_server(
        MODELS, environment={"PYTHONPATH": path, "COUNTED": str(tmp_path / "counted")}
    )
    picture = next((MODELS / "digits" / "samples").glob("*.png")).read_bytes()
    headers = {"Content-Type": "image/png"}
    # Imports Pillow.
    assert (
        server.call(
            "POST", "/predictions/digits", data=picture, headers=headers
        ).status_code
        == 200
    )
    assert server.stop() == 0
    frozen, looked_through = map(int, (tmp_path / "counted").read_text().split())
    assert frozen > 10_000 and looked_through < 1_000, (frozen, looked_through)
