"""Find an engine for GGUF files: the xllamacpp package, or llama.cpp's own server."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Final

from pocketserve.runtimes.base import RuntimeMissingError

PACKAGE: Final = "xllamacpp"
PROGRAM: Final = "llama-server"
INSTALL: Final = (
    "no engine for language models is installed: pip install 'pocketserve[llm]';"
    " in Termux: pkg install llama-cpp"
)


def find_engine() -> str:
    """Return the engine: the package's name, or the path of the program.

    Raises:
        RuntimeMissingError: there is none; the text says how to install one.
    """
    if importlib.util.find_spec(PACKAGE) is not None:
        return PACKAGE
    program = shutil.which(PROGRAM)
    if program is None:
        raise RuntimeMissingError(INSTALL)
    return program


def program_folders() -> list[str]:
    """Return the folder of llama.cpp's server, if that is the engine."""
    try:
        engine = find_engine()
    except RuntimeMissingError:
        return []
    if engine == PACKAGE:
        return []
    return [os.path.dirname(os.path.realpath(engine))]


def missing_engine() -> str | None:
    """Return how to install an engine; None where there is one."""
    try:
        find_engine()
    except RuntimeMissingError as error:
        return str(error)
    return None
