"""Find Node.js and the npm packages of TensorFlow.js."""

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
    """Return how to install a missing requirement, or None; starts no process."""
    try:
        find_modules()
    except RuntimeMissingError as error:
        return str(error)
    if shutil.which("node"):
        return None
    return NO_NODE


def tfjs_devices(options: Options) -> dict[str, Options]:
    """Return the backends of TensorFlow.js as devices; WebAssembly is the default."""
    devices = {}
    for backend in ("wasm", "cpu"):
        devices[backend] = {**options, "backend": backend}
    current = str(options.get("backend", "wasm"))
    return current_first(devices, current, {**options, "backend": current})


def find_modules(modules: Path | None = None) -> Path:
    """Return the folder with the npm packages.

    It is the argument, else the environment variable's, else one in the state folder.

    Raises:
        RuntimeMissingError: a package is not installed there.
    """
    if modules is None:
        modules = _default_modules()
    folder = modules.absolute()  # Node reads a relative path as a package's name
    if folder.name != "node_modules":
        folder = folder / "node_modules"
    for package in PACKAGES:
        name = package.rpartition("@")[0]
        if not (folder / name / "package.json").is_file():
            raise RuntimeMissingError(
                f"TensorFlow.js is not installed: npm install --prefix {folder.parent} "
                f"{' '.join(PACKAGES)} (in Termux after pkg install nodejs)"
            )
    return folder


def _default_modules() -> Path:
    modules = os.environ.get(MODULES_VARIABLE)
    if modules:
        return Path(modules).expanduser()
    state = os.environ.get(STATE_VARIABLE)  # `serve --state-dir` sets it too
    if state:
        return Path(state).expanduser() / "tfjs"
    return default_state_dir() / "tfjs"
