"""Find or make the folders that the tests use."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
_VARIABLE = "POCKETSERVE_TEST_STATE"
# The other processes of a run inherit it from the first one.
if _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="pocketserve-tests-")
    atexit.register(shutil.rmtree, os.environ[_VARIABLE], ignore_errors=True)
STATE = Path(os.environ[_VARIABLE])
"""The state folder of all test servers, so that a model file is tried once per run."""
os.environ["XDG_STATE_HOME"] = str(STATE / "home")
"""The default state folder, so that no user's own token, tuning or home counts."""


@cache
def find_assets() -> Path | None:
    """Return the public test models' folder.

    It is ``POCKETSERVE_TEST_ASSETS``, else any ``*/assets`` beside the project.
    """
    named = os.environ.get("POCKETSERVE_TEST_ASSETS")
    candidates = [Path(named)] if named else sorted(ROOT.parent.glob("*/assets"))
    return next(
        (path for path in candidates if (path / "MANIFEST.json").is_file()), None
    )


def find_hostile() -> Path | None:
    """Return the folder of harmful model files beside the assets."""
    assets = find_assets()
    hostile = None
    if assets is not None:
        hostile = assets.parent / "hostile"
    if hostile is not None and hostile.is_dir():
        return hostile
    return None


def copy_folder(source: Path, target: Path) -> Path:
    """Copy a folder and make it writable, even if the original is read-only."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    return target
