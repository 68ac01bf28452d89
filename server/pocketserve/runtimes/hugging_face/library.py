"""Find the library that runs Hugging Face folders, or say how to do without it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

from pocketserve.runtimes.base import RuntimeMissingError

PACKAGES: Final = ("torch", "transformers", "tokenizers", "safetensors")
INSTALL: Final = (
    "no framework for transformers models is installed:"
    " pip install 'pocketserve[transformers]'"
)
ON_ANDROID: Final = (
    "transformers, tokenizers, safetensors and torch have no packages for Termux, so"
    " Hugging Face folders can't be served there: serve the model's GGUF file with"
    " llama.cpp instead (pkg install llama-cpp); llama.cpp's convert_hf_to_gguf.py"
    " makes one on a desktop"
)


def missing_library() -> str | None:
    """Return how to install the library; None where it is installed."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            return ON_ANDROID if sys.platform == "android" else INSTALL
    return None


def check_library() -> None:
    """Raise RuntimeMissingError if the library is not installed."""
    missing = missing_library()
    if missing is not None:
        raise RuntimeMissingError(missing)
