"""Fills a PyTorch module with the weights of a file.

Weights are data: safetensors, or what ``torch.save`` wrote, read with ``weights_only``. Training scripts save them in
several wrappings, which are taken off: a checkpoint that holds the state dict beside the epoch and the optimizer, and
names that all begin with the wrapper's (``module.`` of DataParallel, ``model.`` of Lightning).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.placeholders import placeholder
from pocketserve.runtimes.safetensors import read_safetensors

_USUAL = ("state_dict", "model_state_dict", "model")
"""What checkpoints call the weights by custom, where they hold several dictionaries that would fit."""

_MAX_WRAPPERS = 3

_FOREIGN = re.compile(r"Unsupported (?:global|class|operand): (?:GLOBAL )?([\w.]+)")


def fill(torch: Any, module: Any, source: ModelSource) -> None:
    """Load the weights that the manifest names, if it names any.

    Raises:
        ModelLoadError: they are no weights, or do not fit the module.
    """
    name = source.options.get("weights")
    if name is None:
        return
    folder = source.path.parent
    if not isinstance(name, str) or not (folder / name).resolve().is_relative_to(folder):
        raise ModelLoadError(f"model.toml: weights must be a file in the model's folder, not {name!r:.80}")
    path = folder / name
    if not path.is_file():
        raise ModelLoadError(f"the weights file {name} does not exist")
    if (words := placeholder(path)) is not None:
        raise ModelLoadError(words)
    state = _safetensors_state(torch, path) if path.suffix == ".safetensors" else _pickled_state(torch, path)
    own = module.state_dict(keep_vars=True)
    try:
        missing, unexpected = module.load_state_dict(_unwrapped(torch, state, set(own)), strict=False)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{name} does not fit the module: {' '.join(str(error).split())[:400]}") from None
    # Weights that are used in two places are often saved under one of the two names.
    filled = {id(tensor) for key, tensor in own.items() if key not in missing}
    missing = [key for key in missing if id(own.get(key)) not in filled]
    if missing or unexpected:
        faults = (("lacks", missing), ("has no place for", unexpected))
        parts = [f"it {words} {_listed(keys)}" for words, keys in faults if keys]
        raise ModelLoadError(f"{name} does not fit the module: {' and '.join(parts)}")


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(map(repr, keys[:5])) + more


def _unwrapped(torch: Any, state: Mapping[str, Any], wanted: set[str]) -> Mapping[str, Any]:
    """The state dict in what a training script saved; the whole of it where nothing in it fits better."""
    if wanted & set(state):
        return state
    inner = {
        name: value
        for name, value in state.items()
        if isinstance(value, Mapping) and value and all(isinstance(item, torch.Tensor) for item in value.values())
    }
    choices = {name: _without_prefix(value, wanted) for name, value in {"": state, **inner}.items()}
    fitting = {name: value for name, value in choices.items() if wanted & set(value)}
    usual = (name for name in _USUAL if name in fitting)
    return fitting.get(next(iter(fitting), "") if len(fitting) == 1 else next(usual, ""), state)


def _without_prefix(state: Mapping[str, Any], wanted: set[str]) -> Mapping[str, Any]:
    """Without the wrappers' names, which all weights have in front."""
    for _ in range(_MAX_WRAPPERS):
        first = str(next(iter(state), "")).partition(".")[0] + "."
        if wanted & set(state) or not all(str(name).startswith(first) for name in state):
            break
        state = {str(name).removeprefix(first): tensor for name, tensor in state.items()}
    return state


def _safetensors_state(torch: Any, path: Path) -> dict[str, Any]:
    state = {}
    for name, (dtype, array) in read_safetensors(path).items():
        tensor = torch.from_numpy(array)
        state[name] = tensor.view(torch.bfloat16) if dtype == "BF16" else tensor
    return state


def _pickled_state(torch: Any, path: Path) -> Any:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:
        raise ModelLoadError(
            f"{path.name} cannot be read as plain weights ({_reason(error)}); save it with "
            "torch.save(module.state_dict()) or as safetensors"
        ) from None
    if not isinstance(state, dict):
        raise ModelLoadError(f"{path.name} holds {type(state).__name__}, not a state dict")
    return state


def _reason(error: Exception) -> str:
    """What PyTorch says of a file, or what is in it besides weights; without the advice to run it all the same."""
    text = " ".join(str(error).split())
    if found := _FOREIGN.search(text):
        return f"it holds {found[1]}, which is code, besides tensors"
    return text[:300]


def _is_zip(path: Path) -> bool:
    """Whether the file can be mapped; what PyTorch wrote before 1.6 cannot."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"
