"""The folders that the tests use."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
_VARIABLE = "POCKETSERVE_TEST_STATE"
if (
    _VARIABLE not in os.environ
):  # the first process of a run starts the others, which have what it has
    os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="pocketserve-tests-")
    atexit.register(shutil.rmtree, os.environ[_VARIABLE], ignore_errors=True)
STATE = Path(os.environ[_VARIABLE])
"""The state folder of all test servers: a model file is tried once in a run, not once in a server."""
os.environ["XDG_STATE_HOME"] = str(STATE / "home")
"""What names no state folder has this one: nobody's own token or tuning counts, and nobody needs a home."""


def find_assets() -> Path | None:
    """The folder of public test models: ``POCKETSERVE_TEST_ASSETS``, else any ``*/assets`` beside the project."""
    named = os.environ.get("POCKETSERVE_TEST_ASSETS")
    candidates = [Path(named)] if named else sorted(ROOT.parent.glob("*/assets"))
    return next(
        (path for path in candidates if (path / "MANIFEST.json").is_file()), None
    )


def find_hostile() -> Path | None:
    """The folder of harmful model files, which lies beside the assets."""
    assets = find_assets()
    hostile = assets.parent / "hostile" if assets is not None else None
    return hostile if hostile is not None and hostile.is_dir() else None


def copy_folder(source: Path, target: Path) -> Path:
    """Copy a folder with what it holds. Its owner may write to the copy, though the original may only be read."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    return target
