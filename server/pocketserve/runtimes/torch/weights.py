"""Fills a PyTorch module with the weights of a file.

They stay in the file, mapped, where that makes no difference to the module: the system may drop such memory when it is
short of it, and read it again.

Weights are data: safetensors, or what ``torch.save`` wrote, read with ``weights_only``. Training scripts save them in
several wrappings, which are taken off: a checkpoint that holds the state dict beside the epoch and the optimizer, and
names that all begin with the wrapper's (``module.`` of DataParallel, ``model.`` of Lightning).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.placeholders import placeholder
from pocketserve.runtimes.torch.safetensors import read_safetensors

_USUAL = ("state_dict", "model_state_dict", "model")
"""What checkpoints call the weights by custom, where they hold several dictionaries that would fit."""

_MAX_WRAPPERS = 3

MIN_MAPPED_BYTES = 64 * 1024
"""Smaller tensors are copied: a page or two of memory is no reason to spread them over the file."""

_FOREIGN = re.compile(r"Unsupported (?:global|class|operand): (?:GLOBAL )?([\w.]+)")


def unfilled(torch: Any, seed: int) -> Any:
    """A context in which a module is built without random numbers in its parameters: a file fills them all.

    So their memory is not touched, and what takes seconds for a large model is left out.

    Args:
        seed: of PyTorch's random numbers as the context begins.

    Returns:
        The context; its ``seeded`` says whether numbers were left out of a series that the code chose, of which others
        than parameters may have been drawn too.
    """
    from torch.overrides import TorchFunctionMode

    init, tensor = torch.nn.init, torch.Tensor
    random = (tensor.uniform_, tensor.normal_, init.uniform_, init.kaiming_uniform_)

    class Unfilled(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not typed here
        seeded = False

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            target = args[0] if args else kwargs.get("tensor")
            if function in random and isinstance(target, torch.nn.Parameter):
                own = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
                self.seeded = self.seeded or own or torch.initial_seed() != seed
                return target
            return function(*args, **kwargs)

    return Unfilled()


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
    state = _unwrapped(torch, state, set(own))
    mapped = _map(torch, module, own, state)
    try:
        missing, unexpected = module.load_state_dict(_without(state, mapped), strict=False)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{name} does not fit the module: {excerpt(error, 400)}") from None
    # Weights that are used in two places are often saved under one of the two names.
    missing = [key for key in missing if key not in mapped]
    filled = {id(tensor) for key, tensor in own.items() if key not in missing}
    missing = [key for key in missing if id(own.get(key)) not in filled]
    if missing or unexpected:
        faults = (("lacks", missing), ("has no place for", unexpected))
        parts = [f"it {words} {_listed(keys)}" for words, keys in faults if keys]
        raise ModelLoadError(f"{name} does not fit the module: {' and '.join(parts)}")


def _map(torch: Any, module: Any, own: Mapping[str, Any], state: Mapping[str, Any]) -> set[str]:
    """Have the module's tensors be the file's memory, where that changes nothing; the names of those.

    Everything else is copied as PyTorch does it: what another module fills in a way of its own, what is converted, and
    what the module looks at in a second way, which would go on seeing the old memory.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    if any(part._load_state_dict_pre_hooks for part in modules.values()) or not _loads_whole_as_usual(torch, module):
        return set()
    mapped, taken = dict[int, Any](), set[int]()
    names = set()
    for key, mine in own.items():
        theirs = state.get(key)
        path, _, name = key.rpartition(".")
        if theirs is None or not _loads_plainly(torch, modules, path) or not _is_own(modules[path], name, mine):
            continue
        if _is_exchangeable(torch, mine, theirs):
            # Two tensors of the module must not get one memory, even if the file keeps them in one.
            if theirs.data_ptr() not in taken:
                taken.add(theirs.data_ptr())
                mine.data = mapped[id(mine)] = theirs
                names.add(key)
        elif id(mine) in mapped and _are_one(mapped[id(mine)], theirs):
            names.add(key)  # a second name; copying memory onto itself would make it this process's own
    return names


def _is_own(part: Any, name: str, tensor: Any) -> bool:
    """Return whether a module has this very tensor; a hook may have put another one into the state dict."""
    return getattr(part, name, None) is tensor


def _loads_whole_as_usual(torch: Any, module: Any) -> bool:
    """Return whether the module as a whole leaves it to PyTorch how a state dict is loaded."""
    return getattr(module.load_state_dict, "__func__", None) is torch.nn.Module.load_state_dict


def _loads_plainly(torch: Any, modules: Mapping[str, Any], path: str) -> bool:
    """Return whether neither a layer nor what it is part of, which may change what is meant for it, loads in its own
    way.
    """
    usual = torch.nn.Module._load_from_state_dict
    names = path.split(".") if path else []
    parts = (modules.get(".".join(names[:count])) for count in range(len(names) + 1))
    return all(getattr(getattr(part, "_load_from_state_dict", None), "__func__", None) is usual for part in parts)


def _are_one(first: Any, second: Any) -> bool:
    """Return whether two tensors of a file are the same memory read in the same way."""
    return type(first) is type(second) and all(
        getattr(first, name)() == getattr(second, name)() for name in ("data_ptr", "size", "stride")
    )


def _without(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """The others, with what ``torch.save`` noted of the modules' versions: by that they read what older ones wrote."""
    rest = OrderedDict((key, value) for key, value in state.items() if key not in names)
    if (noted := getattr(state, "_metadata", None)) is not None:
        rest._metadata = noted  # type: ignore[attr-defined]
    return rest


def _is_exchangeable(torch: Any, mine: Any, theirs: Any) -> bool:
    """Return whether a tensor may take a file's memory for its own, and whether that is worth it."""
    if type(theirs) is not torch.Tensor or type(mine) not in (torch.Tensor, torch.nn.Parameter):
        return False
    alike = all(
        getattr(mine, name) == getattr(theirs, name) for name in ("dtype", "shape", "device", "layout", "is_quantized")
    )
    return (
        alike
        and mine.layout == torch.strided
        and mine.is_contiguous()
        and theirs.is_contiguous()
        and theirs.nbytes >= MIN_MAPPED_BYTES
        and theirs.data_ptr() % theirs.element_size() == 0
        and _holders(torch, mine) == _holders(torch, torch.empty(1))
    )


def _holders(torch: Any, tensor: Any) -> int:
    """Return how many tensors look at this one's memory, counted as PyTorch does.

    A tensor in two places of a module is one.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return id(tensor)  # equal to no other: nothing is known to be exchangeable
    return int(count(tensor.untyped_storage()._cdata))


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
    """Return what PyTorch says of a file, or what is in it besides weights; without the advice to run it all the
    same.
    """
    text = " ".join(str(error).split())
    if found := _FOREIGN.search(text):
        return f"it holds {found[1]}, which is code, besides tensors"
    return excerpt(text)


def _is_zip(path: Path) -> bool:
    """Return whether the file can be mapped; what PyTorch wrote before 1.6 cannot."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"
