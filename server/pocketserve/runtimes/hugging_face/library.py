"""Find the library that runs Hugging Face folders, or say how to do without it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

from pocketserve.runtimes.base import ModelLoadError, RuntimeMissingError

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


def check_architecture(kind: str) -> None:
    """Raise ModelLoadError if the installed library can't run an architecture.

    Args:
        kind: the ``model_type`` of ``config.json``.
    """
    if missing_library() is not None:
        return  # the load says how to install it
    import transformers

    if kind not in transformers.CONFIG_MAPPING:
        raise ModelLoadError(
            f"its architecture ({kind:.40}) is unknown to transformers"
            f" {transformers.__version__}, and its own code is not run; add the model's"
            " GGUF file instead"
        )
