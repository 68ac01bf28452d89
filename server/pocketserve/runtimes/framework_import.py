"""Import frameworks without telemetry, files in the home folder or output."""

from __future__ import annotations

import gc
import importlib
import os
import re
from typing import Any, Final

FRAMEWORK_ENVIRONMENT: Final = {
    # Read when ONNX Runtime is imported. Otherwise it creates a persistent device id
    # and resolves host names; its disable_telemetry_events() would be too late.
    "ORT_DISABLE_TELEMETRY": "1",
    # Keras and TensorFlow write ~/.keras/keras.json; below this path they can't.
    "KERAS_HOME": os.devnull,
    # C++ code writes messages with the model's texts to descriptor 2, which bypasses
    # our escaping. All of them are also raised as exceptions; fatal ones are still
    # written.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
}
"""Environment defaults of each process that imports a framework."""


def import_framework(module: str) -> Any:
    """Import a framework with :data:`FRAMEWORK_ENVIRONMENT`.

    The garbage collector is off meanwhile: it takes a fifth of TensorFlow's import and
    frees nothing. If two imports overlap, the one that began first enables it again.

    Raises:
        Exception: any error of the import.
    """
    for name, value in FRAMEWORK_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()


def require_framework(
    module: str,
    title: str,
    install: str,
    minimum: tuple[int, int] = (0, 0),
    needs: str = "__version__",
) -> Any:
    """Import a model's framework and check its version.

    Args:
        minimum: the first version that opens hostile files safely.
        needs: an attribute that an empty folder left by an uninstall lacks.

    Raises:
        RuntimeMissingError: it is not installed, does not load, or is too old; the
            text has the command to run.
    """
    from .base import RuntimeMissingError  # late: `doctor` does without NumPy

    try:
        framework = import_framework(module)
        getattr(framework, needs)
    except Exception as error:  # incompatible native libraries raise OSError and others
        if is_not_installed(module, error):
            fault = "is not installed"
        else:
            fault = f"is installed but does not load ({first_line(error)[:200]})"
        raise RuntimeMissingError(f"{title} {fault}; run: {install}") from error
    if minimum > (0, 0) and _major_minor(framework.__version__) < minimum:
        upgrade = install.replace("install", "install -U", 1)
        raise RuntimeMissingError(
            f"{title} {framework.__version__} is too old to read model files safely; "
            f"install {minimum[0]}.{minimum[1]} or newer: {upgrade}"
        )
    return framework


def is_not_installed(module: str, error: Exception) -> bool:
    """Return whether an import failed because the module itself is missing.

    A missing module further down means an incomplete installation.
    """
    if not isinstance(error, ModuleNotFoundError):
        return False
    return f"{module}.".startswith(f"{error.name}.")


def _major_minor(version: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", version)
    return tuple(map(int, numbers[:2]))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text without its full stop.

    An error without a text is represented by its class name.
    """
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0].rstrip(".")
