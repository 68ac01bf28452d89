"""Where Node.js and the npm packages of TensorFlow.js are, and how to get them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pocketserve.config import STATE_VARIABLE, default_state_dir
from pocketserve.runtimes.base import RuntimeMissingError

MODULES_VARIABLE = "POCKETSERVE_TFJS_MODULES"
NO_NODE = "Node.js is not installed; in Termux: pkg install nodejs (elsewhere: nodejs.org)"

PACKAGES = ("@tensorflow/tfjs@4.22.0", "@tensorflow/tfjs-backend-wasm@4.22.0")


def missing() -> str | None:
    """Return how to install what is missing, for listings; nothing is started."""
    try:
        find_modules()
    except RuntimeMissingError as error:
        return str(error)
    return None if shutil.which("node") else NO_NODE


def find_modules(modules: Path | None = None) -> Path:
    """The folder with the npm packages: as given, else from the environment, else in the state folder.

    Raises:
        RuntimeMissingError: the packages are not in it; the text tells the command that puts them there.
    """
    named = os.environ.get(MODULES_VARIABLE)
    folder = modules or (Path(named).expanduser() if named else _default_modules())
    folder = folder.absolute()  # Node takes a relative path for a package's name
    folder = folder if folder.name == "node_modules" else folder / "node_modules"
    absent = [name for name in PACKAGES if not (folder / name.rpartition("@")[0] / "package.json").is_file()]
    if absent:
        raise RuntimeMissingError(
            f"TensorFlow.js is not installed in {folder}; run (in Termux after: pkg install nodejs): "
            f"npm install --prefix {folder.parent} {' '.join(PACKAGES)}"
        )
    return folder


def _default_modules() -> Path:
    named = os.environ.get(STATE_VARIABLE)  # `serve --state-dir` sets it too
    state = Path(named).expanduser() if named else default_state_dir()
    return state / "tfjs" / "node_modules"
