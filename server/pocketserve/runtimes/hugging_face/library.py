"""Find the library that runs Hugging Face folders, and load their networks.

The library fills missing weights with random numbers and only warns.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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

LIBRARY_BYTES: Final = 384 * 2**20
"""Memory of the library without a model, and of its first run."""

POOLER: Final = "pooler."
UNUSED: Final = ("masked_spec_embed", "mask_token", "num_batches_tracked")
"""Ends of the names of weights that only training reads."""

NAMED_KEYS: Final = 3


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


class UnservedNetworkError(ValueError):
    """A folder that can't be served; the text gives the reason."""


@dataclass(frozen=True)
class LoadedNetwork:
    """A network in evaluation mode.

    Attributes:
        has_random_pooler: whether its pooled output must not be used.
    """

    model: Any
    has_random_pooler: bool


def load_network(
    network_class: Any, folder: str, dtype: Any, *, may_lack_pooler: bool = False
) -> LoadedNetwork:
    """Load a network from safetensors, without code of the folder.

    Args:
        may_lack_pooler: whether the network is of use without its pooler.

    Raises:
        UnservedNetworkError: a weight is missing or has another shape.
        Exception: any error of the library.
    """
    model, report = network_class.from_pretrained(
        folder,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        # The library's own error doesn't name the weights.
        ignore_mismatched_sizes=True,
    )
    _refuse_mismatched(report)
    missing, pooler_keys = [], []
    for key in sorted(report["missing_keys"]):
        if key.endswith(UNUSED):
            continue
        if may_lack_pooler and key.startswith(POOLER):
            pooler_keys.append(key)
        else:
            missing.append(key)
    if missing:
        raise UnservedNetworkError(
            f"its weights lack {_listed(missing)}, which {type(model).__name__} and"
            " config.json need; save the trained model again with"
            " model.save_pretrained(FOLDER), and add that folder"
        )
    return LoadedNetwork(model.eval(), bool(pooler_keys))


def _refuse_mismatched(report: Mapping[str, Any]) -> None:
    # Each entry is a name with both shapes.
    keys = sorted(entry[0] for entry in report["mismatched_keys"])
    if keys:
        raise UnservedNetworkError(
            f"config.json gives other shapes than the weights have: {_listed(keys)};"
            " copy both from the same source"
        )


def _listed(keys: Sequence[str]) -> str:
    """Return the first keys, and the number of the others."""
    names = ", ".join(f"{key:.60}" for key in keys[:NAMED_KEYS])
    unnamed = len(keys) - NAMED_KEYS
    return f"{names} and {unnamed} more" if unnamed > 0 else names
