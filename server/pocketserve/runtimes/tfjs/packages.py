"""Finds Node.js and the npm packages of TensorFlow.js, and says how to install them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pocketserve.config import STATE_VARIABLE, default_state_dir
from pocketserve.runtimes.base import RuntimeMissingError
from pocketserve.runtimes.devices import Options, current_first

MODULES_VARIABLE = "POCKETSERVE_TFJS_MODULES"
NO_NODE = (
    "Node.js is not installed: get it from nodejs.org; in Termux: pkg install nodejs"
)

PACKAGES = ("@tensorflow/tfjs@4.22.0", "@tensorflow/tfjs-backend-wasm@4.22.0")


def missing() -> str | None:
    """Return how to install what is missing, for listings; nothing is started."""
    try:
        find_modules()
    except RuntimeMissingError as error:
        return str(error)
    return None if shutil.which("node") else NO_NODE


def tfjs_devices(options: Options) -> dict[str, Options]:
    """Return the backends of TensorFlow.js as devices; WebAssembly is the one that is taken by itself."""
    current = str(options.get("backend", "wasm"))
    devices = {backend: {**options, "backend": backend} for backend in ("wasm", "cpu")}
    return current_first(devices, current, {**options, "backend": current})


def find_modules(modules: Path | None = None) -> Path:
    """Return the folder with the npm packages: the argument, else the environment's, else one in the state folder."""
    if modules is None and (variable := os.environ.get(MODULES_VARIABLE)):
        modules = Path(variable).expanduser()
    if modules is None:
        variable = os.environ.get(STATE_VARIABLE)  # `serve --state-dir` sets it too
        modules = (
            Path(variable).expanduser() if variable else default_state_dir()
        ) / "tfjs"
    folder = modules.absolute()  # Node takes a relative path for a package's name
    folder = folder if folder.name == "node_modules" else folder / "node_modules"
    if not all(
        (folder / name.rpartition("@")[0] / "package.json").is_file()
        for name in PACKAGES
    ):
        raise RuntimeMissingError(
            f"TensorFlow.js is not installed: npm install --prefix {folder.parent} {' '.join(PACKAGES)} "
            "(in Termux after pkg install nodejs)"
        )
    return folder
