"""Imports frameworks, and keeps them from phoning home, from writing into the user's home, and from printing."""

from __future__ import annotations

import gc
import importlib
import os
import re
from typing import Any, Final

FRAMEWORK_ENVIRONMENT: Final = {
    # Read at the import of ONNX Runtime, which else makes a lasting id of the device and looks up names in the network;
    # its disable_telemetry_events() comes too late.
    "ORT_DISABLE_TELEMETRY": "1",
    # Keras and TensorFlow write ~/.keras/keras.json. Nothing can be written below this, nor read.
    "KERAS_HOME": os.devnull,
    # C++ writes errors and warnings to descriptor 2 itself, past our escaping, with names and texts of the model in
    # them; each of them is an exception, too. What ends the process is still written.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
}
"""Environment variables of every process that imports a framework; who sets one to something else wants that."""


def import_framework(module: str) -> Any:
    """Import a framework, with the variables set where they are not set.

    The garbage collector is off meanwhile: to search again and again what is made, and stays, takes a fifth of
    TensorFlow's import. Of two imports at a time, the one that began first switches it on again.

    Raises:
        Exception: whatever the import raises.
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
    """Import the framework of a model.

    Args:
        minimum: the first version that opens hostile files safely.
        needs: a name in it, which a folder that an uninstall left lacks.

    Raises:
        RuntimeMissingError: it is not installed, does not load, or is too old; with the command that helps.
    """
    from .base import RuntimeMissingError  # late: `doctor` does without NumPy

    try:
        framework = import_framework(module)
        getattr(framework, needs)
    except Exception as error:  # a native library that does not fit raises ImportError or OSError, among others
        fault = f"is installed but does not load ({first_line(error)[:200]})"
        # A missing module deeper down means: installed, but not complete.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(
            f"{error.name}."
        ):
            fault = "is not installed"
        raise RuntimeMissingError(f"{title} {fault}; run: {install}") from error
    if (
        minimum > (0, 0)
        and tuple(map(int, re.findall(r"\d+", framework.__version__)[:2])) < minimum
    ):
        raise RuntimeMissingError(
            f"{title} {framework.__version__} is too old to read model files safely; install {minimum[0]}.{minimum[1]} "
            f"or newer: {install.replace('install', 'install -U', 1)}"
        )
    return framework


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without its full stop; the error's kind where it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
