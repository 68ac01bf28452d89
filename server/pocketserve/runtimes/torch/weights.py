"""Load the weights of a PyTorch module from a file.

Tensors stay mapped in the file where the module can't notice it: the system may drop
such memory and read it again. Weights are data: safetensors, or files of ``torch.save``,
read with ``weights_only``. Training scripts wrap weights in a checkpoint with the epoch
and the optimizer, and add a wrapper's prefix to all names (``module.`` of DataParallel,
``model.`` of Lightning). Both are removed.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
    """Return a context that skips the random initialization of parameters.

    A file will fill all of them. So their memory is not touched, and large models save
    seconds. The context's attribute ``seeded`` tells whether the code chose a seed other
    than ``seed``, which may affect more than parameters.
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
            if function not in random or not isinstance(target, torch.nn.Parameter):
                return function(*args, **kwargs)
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Generator):
                    self.seeded = True
            if torch.initial_seed() != seed:
                self.seeded = True
            return target

    return Mode()


def load_weights(torch: Any, module: Any, source: ModelSource) -> None:
    """Load the manifest's weights file, if there is one."""
    path = _weights_path(source)
    if path is None:
        return
    tensors = module.state_dict(keep_vars=True)
    state = _unwrapped(torch, _state(torch, path), set(tensors))
    mapped = _map(torch, module, tensors, state)
    rest = OrderedDict()
    for key, value in state.items():
        if key not in mapped:
            rest[key] = value
    # Versions, by which modules read older files.
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        rest._metadata = metadata  # type: ignore[attr-defined]
    try:
        missing, unexpected = module.load_state_dict(rest, strict=False)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"{path.name} does not fit the module: {excerpt(error, 400)}"
        ) from None
    missing = [key for key in missing if key not in mapped]
    missing = _without_aliases(missing, tensors)
    _check_complete(path, missing, unexpected)


def _check_complete(
    path: Path, missing: Sequence[str], unexpected: Sequence[str]
) -> None:
    """Raise if a file lacks weights, or has others."""
    faults = []
    if missing:
        faults.append(f"it lacks {listed(missing, 5)}")
    if unexpected:
        faults.append(f"it has no place for {listed(unexpected, 5)}")
    if faults:
        raise ModelLoadError(
            f"{path.name} does not fit the module: {' and '.join(faults)}"
        )


def _weights_path(source: ModelSource) -> Path | None:
    """Return the path of the manifest's weights file; None without one."""
    name = source.options.get("weights")
    if name is None:
        return None
    folder = source.path.parent
    if not isinstance(name, str) or not _is_below(folder / name, folder):
        raise ModelLoadError(
            "model.toml: weights must be a file in the model's folder, not "
            f"{name!r:.80}"
        )
    path = folder / name
    if not path.is_file():
        raise ModelLoadError(f"the weights file {name} does not exist")
    reason = failed_download(path)
    if reason is not None:
        raise ModelLoadError(reason)
    return path


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder)


def _without_aliases(missing: list[str], tensors: Mapping[str, Any]) -> list[str]:
    """Remove names of tensors that were filled under another name.

    Weights that are used in two places are often saved under one of their names.
    """
    filled = set()
    for key, tensor in tensors.items():
        if key not in missing:
            filled.add(id(tensor))
    return [key for key in missing if id(tensors.get(key)) not in filled]


def _map(
    torch: Any, module: Any, tensors: Mapping[str, Any], state: Mapping[str, Any]
) -> set[str]:
    """Map the module's tensors to the file where that changes nothing.

    PyTorch copies the others: a module may load them in its own way, convert them, or
    have a second view of them, which would keep the old memory.

    Returns:
        the names of the replaced tensors.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    special = _special_loaders(torch, module, modules)
    if special is None:
        return set()
    mapped: dict[int, Any] = {}
    addresses: set[int] = set()
    names = set()
    for key, target in tensors.items():
        path, _, name = key.rpartition(".")
        weights = state.get(key)
        if weights is None or path not in modules:
            continue
        # A hook may have put another tensor into the state dict.
        current: Any = getattr(modules[path], name, None)
        if current is not target:
            continue
        if any(_is_part(path, outer) for outer in special):
            continue
        if _is_exchangeable(torch, target, weights):
            # Two tensors of the module must not share memory, even if the file's do.
            if weights.data_ptr() not in addresses:
                addresses.add(weights.data_ptr())
                target.data = mapped[id(target)] = weights
                names.add(key)
        elif id(target) in mapped and _is_same(mapped[id(target)], weights):
            # A second name. Copying memory onto itself would unmap it.
            names.add(key)
    return names


def _special_loaders(
    torch: Any, module: Any, modules: Mapping[str, Any]
) -> list[str] | None:
    """Return the paths of parts that load their weights in their own way.

    None if the module as a whole may do so.
    """
    usual = torch.nn.Module
    if _method(module, "load_state_dict") is not usual.load_state_dict:
        return None
    special = []
    for path, part in modules.items():
        if part._load_state_dict_pre_hooks:
            return None
        if _method(part, "_load_from_state_dict") is not usual._load_from_state_dict:
            special.append(path)
    return special


def _is_part(path: str, outer: str) -> bool:
    """Return whether a path of a module is another one or below it."""
    return not outer or f"{path}.".startswith(f"{outer}.")


def _method(part: Any, name: str) -> Any:
    return getattr(getattr(part, name, None), "__func__", None)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two tensors of a file are identical views."""
    return (
        type(first) is type(second)
        and first.data_ptr() == second.data_ptr()
        and first.size() == second.size()
        and first.stride() == second.stride()
    )


def _is_exchangeable(torch: Any, target: Any, weights: Any) -> bool:
    """Return whether a module's tensor can and should be mapped."""
    if type(weights) is not torch.Tensor:
        return False
    if type(target) not in (torch.Tensor, torch.nn.Parameter):
        return False
    for name in ("dtype", "shape", "device", "layout", "is_quantized"):
        if getattr(target, name) != getattr(weights, name):
            return False
    return bool(
        target.layout == torch.strided
        and target.is_contiguous()
        and weights.is_contiguous()
        and weights.nbytes >= MIN_MAPPED_BYTES
        and weights.data_ptr() % weights.element_size() == 0
        and _is_only_view(torch, target)
    )


def _is_only_view(torch: Any, tensor: Any) -> bool:
    """Return whether no other tensor shares a tensor's memory.

    A tensor in two places of a module is one tensor.
    """
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    if use_count is None:
        return False
    new = torch.empty(1)
    count_of_new = use_count(new.untyped_storage()._cdata)
    return bool(use_count(tensor.untyped_storage()._cdata) == count_of_new)


def _state(torch: Any, path: Path) -> Mapping[str, Any]:
    """Return a file's tensors by name, mapped if possible."""
    if path.suffix == ".safetensors":
        return _safetensors_state(torch, path)
    with path.open("rb") as file:
        # since PyTorch 1.6; others can't be mapped
        is_zip = file.read(4) == b"PK\3\4"

    def explain(error: Exception) -> str:
        return (
            f"{path.name} cannot be read as plain weights ({_reason(error)}); save it "
            "with torch.save(module.state_dict()) or as safetensors"
        )

    with load_errors(explain):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    if not isinstance(state, dict):
        raise ModelLoadError(
            f"{path.name} holds {type(state).__name__}, not a state dict"
        )
    return state


def _safetensors_state(torch: Any, path: Path) -> dict[str, Any]:
    state = {}
    for name, stored in read_safetensors(path).items():
        tensor = torch.from_numpy(stored.array)
        if stored.dtype_name == "BF16":
            tensor = tensor.view(torch.bfloat16)
        state[name] = tensor
    return state


def _reason(error: Exception) -> str:
    """Return PyTorch's reason without its advice to load the file unsafely."""
    text = " ".join(str(error).split())
    foreign = _FOREIGN.search(text)
    if foreign:
        return f"it holds {foreign[1]}, which is code, besides tensors"
    return excerpt(text)


def _unwrapped(
    torch: Any, state: Mapping[str, Any], names: set[str]
) -> Mapping[str, Any]:
    """Return the state dict in a checkpoint, or else the whole checkpoint."""
    if names & set(state):
        return state
    choices = {"": _without_prefix(state, names)}
    for name, value in state.items():
        if _is_state_dict(torch, value):
            choices[name] = _without_prefix(value, names)
    fitting = {}
    for name, value in choices.items():
        if not names.isdisjoint(value):
            fitting[name] = value
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    for name in (*_USUAL_NAMES, ""):
        if name in fitting:
            return fitting[name]
    return state


def _is_state_dict(torch: Any, value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(item, torch.Tensor) for item in value.values())


def _without_prefix(state: Mapping[str, Any], names: set[str]) -> Mapping[str, Any]:
    """Remove the wrappers' prefixes that all names of a state dict share."""
    for _ in range(_MAX_WRAPPERS):
        if names & set(state):
            break
        first = str(next(iter(state), ""))
        prefix = first.partition(".")[0] + "."
        shorter = {}
        for name, tensor in state.items():
            if not str(name).startswith(prefix):
                return state
            shorter[str(name).removeprefix(prefix)] = tensor
        state = shorter
    return state
