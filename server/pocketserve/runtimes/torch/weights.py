"""Loads the weights of a PyTorch module from a file.

Tensors stay in the file, mapped, where that makes no difference to the module: the system may drop such memory and read
it again. Weights are data: safetensors, or what ``torch.save`` wrote, read with ``weights_only``. Training scripts wrap
them in a checkpoint, beside the epoch and the optimizer, and put a wrapper's name in front of all names (``module.`` of
DataParallel, ``model.`` of Lightning); both are taken off.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt, listed
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.model_files import failed_download, load_errors
from pocketserve.runtimes.torch.safetensors import read_safetensors

_USUAL_NAMES = ("state_dict", "model_state_dict", "model")
"""Usual keys of the weights in checkpoints with several dictionaries."""

_MAX_WRAPPERS = 3

MIN_MAPPED_BYTES = 64 * 1024
"""Smaller tensors are copied: mapping would save little memory."""

_FOREIGN = re.compile(r"Unsupported (?:global|class|operand): (?:GLOBAL )?([\w.]+)")


def without_random_numbers(torch: Any, seed: int) -> Any:
    """Return a context in which a module is built without random numbers in its parameters: a file fills them all.

    So their memory is not touched, and work that takes seconds for a large model is left out. Its ``seeded`` says that
    the code, unlike ``seed``, chose the series of numbers, of which others than parameters may have been drawn too.
    """
    from torch.overrides import TorchFunctionMode

    init, tensor = torch.nn.init, torch.Tensor
    random = (tensor.uniform_, tensor.normal_, init.uniform_, init.kaiming_uniform_)

    class Mode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not typed here
        seeded = False

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            target = args[0] if args else kwargs.get("tensor")
            if function in random and isinstance(target, torch.nn.Parameter):
                generator = any(
                    isinstance(value, torch.Generator)
                    for value in (*args, *kwargs.values())
                )
                self.seeded = self.seeded or generator or torch.initial_seed() != seed
                return target
            return function(*args, **kwargs)

    return Mode()


def load_weights(torch: Any, module: Any, source: ModelSource) -> None:
    """Load the manifest's weights file, if there is one."""
    name = source.options.get("weights")
    if name is None:
        return
    folder = source.path.parent
    if not isinstance(name, str) or not (folder / name).resolve().is_relative_to(
        folder
    ):
        raise ModelLoadError(
            f"model.toml: weights must be a file in the model's folder, not {name!r:.80}"
        )
    path = folder / name
    if not path.is_file():
        raise ModelLoadError(f"the weights file {name} does not exist")
    if (reason := failed_download(path)) is not None:
        raise ModelLoadError(reason)
    tensors = module.state_dict(keep_vars=True)
    state = _unwrapped(torch, _state(torch, path), set(tensors))
    mapped = _map(torch, module, tensors, state)
    rest = OrderedDict(
        (key, value) for key, value in state.items() if key not in mapped
    )
    if (
        metadata := getattr(state, "_metadata", None)
    ) is not None:  # versions, by which modules read older files
        rest._metadata = metadata  # type: ignore[attr-defined]
    try:
        missing, unexpected = module.load_state_dict(rest, strict=False)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"{name} does not fit the module: {excerpt(error, 400)}"
        ) from None
    # Weights that are used in two places are often saved under one of the two names.
    filled = {
        id(tensor)
        for key, tensor in tensors.items()
        if key in mapped or key not in missing
    }
    missing = [
        key
        for key in missing
        if key not in mapped and id(tensors.get(key)) not in filled
    ]
    if missing or unexpected:
        faults = (("lacks", missing), ("has no place for", unexpected))
        parts = [f"it {verb} {listed(keys, 5)}" for verb, keys in faults if keys]
        raise ModelLoadError(f"{name} does not fit the module: {' and '.join(parts)}")


def _map(
    torch: Any, module: Any, tensors: Mapping[str, Any], state: Mapping[str, Any]
) -> set[str]:
    """Have the module's tensors be the file's memory, where that changes nothing, and return their names.

    PyTorch copies the others: a module may load them in its own way, convert them, or hold a second view of them, which
    would keep the old memory.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    usual = torch.nn.Module
    if _method(module, "load_state_dict") is not usual.load_state_dict:
        return set()
    if any(part._load_state_dict_pre_hooks for part in modules.values()):
        return set()
    loaders = {
        path: _method(part, "_load_from_state_dict") for path, part in modules.items()
    }
    special = {
        path
        for path, loader in loaders.items()
        if loader is not usual._load_from_state_dict
    }
    mapped, addresses = dict[int, Any](), set[int]()
    names = set()
    for key, target in tensors.items():
        weights = state.get(key)
        path, _, name = key.rpartition(".")
        # A hook may have put another tensor into the state dict.
        if (
            weights is None
            or path not in modules
            or id(getattr(modules[path], name, None)) != id(target)
        ):
            continue
        if any(not outer or f"{path}.".startswith(f"{outer}.") for outer in special):
            continue
        if _is_exchangeable(torch, target, weights):
            # Two tensors of the module must not get one memory, even if the file keeps them in one.
            if weights.data_ptr() not in addresses:
                addresses.add(weights.data_ptr())
                target.data = mapped[id(target)] = weights
                names.add(key)
        elif id(target) in mapped and _is_same(mapped[id(target)], weights):
            names.add(
                key
            )  # a second name; copying memory onto itself would make it this process's own
    return names


def _method(part: Any, name: str) -> Any:
    return getattr(getattr(part, name, None), "__func__", None)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two tensors of a file are identical views."""
    return type(first) is type(second) and all(
        getattr(first, name)() == getattr(second, name)()
        for name in ("data_ptr", "size", "stride")
    )


def _is_exchangeable(torch: Any, target: Any, weights: Any) -> bool:
    """Return whether a module's tensor can and should be mapped."""
    if type(weights) is not torch.Tensor or type(target) not in (
        torch.Tensor,
        torch.nn.Parameter,
    ):
        return False
    properties = ("dtype", "shape", "device", "layout", "is_quantized")
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    if use_count is None or any(
        getattr(target, name) != getattr(weights, name) for name in properties
    ):
        return False
    new = torch.empty(1)
    return bool(
        target.layout == torch.strided
        and target.is_contiguous()
        and weights.is_contiguous()
        and weights.nbytes >= MIN_MAPPED_BYTES
        and weights.data_ptr() % weights.element_size() == 0
        # As many tensors look at the memory as at that of a new one; a tensor in two places of a module is one.
        and use_count(target.untyped_storage()._cdata)
        == use_count(new.untyped_storage()._cdata)
    )


def _state(torch: Any, path: Path) -> Mapping[str, Any]:
    """Return a file's tensors by name, mapped if possible."""
    if path.suffix == ".safetensors":
        tensors = {
            name: (kind, torch.from_numpy(array))
            for name, (kind, array) in read_safetensors(path).items()
        }
        return {
            name: t.view(torch.bfloat16) if kind == "BF16" else t
            for name, (kind, t) in tensors.items()
        }
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\3\4"  # since PyTorch 1.6; others cannot be mapped
    advice = "save it with torch.save(module.state_dict()) or as safetensors"
    with load_errors(
        lambda error: (
            f"{path.name} cannot be read as plain weights ({_reason(error)}); {advice}"
        )
    ):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    if not isinstance(state, dict):
        raise ModelLoadError(
            f"{path.name} holds {type(state).__name__}, not a state dict"
        )
    return state


def _reason(error: Exception) -> str:
    """Return PyTorch's reason without its advice to load the file unsafely."""
    text = " ".join(str(error).split())
    if match := _FOREIGN.search(text):
        return f"it holds {match[1]}, which is code, besides tensors"
    return excerpt(text)


def _unwrapped(
    torch: Any, state: Mapping[str, Any], names: set[str]
) -> Mapping[str, Any]:
    """Return the state dict in a checkpoint, or else the whole checkpoint."""
    if names & set(state):
        return state
    inner = {
        name: value
        for name, value in state.items()
        if isinstance(value, Mapping)
        and value
        and all(isinstance(item, torch.Tensor) for item in value.values())
    }
    choices = {
        name: _without_prefix(value, names)
        for name, value in {"": state, **inner}.items()
    }
    fitting = {name: value for name, value in choices.items() if names & set(value)}
    usual = (name for name in _USUAL_NAMES if name in fitting)
    return fitting.get(
        next(iter(fitting), "") if len(fitting) == 1 else next(usual, ""), state
    )


def _without_prefix(state: Mapping[str, Any], names: set[str]) -> Mapping[str, Any]:
    """Remove the wrappers' prefixes that all names of a state dict share."""
    for _ in range(_MAX_WRAPPERS):
        prefix = str(next(iter(state), "")).partition(".")[0] + "."
        if names & set(state) or not all(
            str(name).startswith(prefix) for name in state
        ):
            break
        state = {
            str(name).removeprefix(prefix): tensor for name, tensor in state.items()
        }
    return state
