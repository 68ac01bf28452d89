"""Helpers of the PyTorch formats: import, conversion of tensors, errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.messages import excerpt, plural
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.framework_import import require_framework
from pocketserve.runtimes.model_files import file_size
from pocketserve.runtimes.registry import content_of, first_bytes
from pocketserve.runtimes.torch import INSTALL, NOT_MODELS
from pocketserve.tensors import Array, TensorSpec, datatype_of, zeros

MINIMUM_TORCH = (2, 10)
"""Earlier versions are unsafe even with ``weights_only``.

See CVE-2025-32434 and CVE-2026-24747.
"""

# Errors about sizes, types or indices, which the client chose; inputs are only numbers.
_INPUT_FAULT = re.compile(
    r"\bshapes?\b|\bsizes?\b|[Dd]imension|\bdims?\b|out of range|out of bounds|same dtype|scalar type|"
    r"should be the same|must be a? ?\dD|\b\dD\b|broadcast|[Gg]uard|AssertionError|channels"
)
_NOT_THE_INPUT = re.compile(r"allocate|out of memory|not implemented|INTERNAL ASSERT")


def import_torch() -> Any:
    """Import PyTorch; raise if it is too old to be safe."""
    return require_framework("torch", "PyTorch", INSTALL, minimum=MINIMUM_TORCH)


def check_content(path: Path, formats: Collection[str], title: str) -> None:
    """Check a file's format by its content."""
    file_size(path)
    if (first_bytes(path, 8) or b"")[4:] == b"PTMF":
        # PyTorch opens this format, but a damaged file crashes the process.
        raise ModelLoadError(
            f"{path.name} is a mobile model in FlatBuffer form; save it with "
            "_save_for_lite_interpreter(path)"
        )
    content = content_of(path)
    if content not in formats:
        article = "an" if title[0] in "aeiou" else "a"
        unknown = f"is not {article} {title}, or is damaged; save it again"
        raise ModelLoadError(f"{path.name} {NOT_MODELS.get(content or '', unknown)}")


def keyword_arguments(source: ModelSource) -> dict[str, Any]:
    """Return the table ``arguments`` of a version's options."""
    arguments = source.options.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ModelLoadError(
            "model.toml: arguments must be a table of keyword arguments"
        )
    return arguments


def weight_bytes(tensors: Iterable[Any]) -> int:
    """Return the size of weights in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class ModuleSession:
    """A session of a module on the CPU, with its own thread count."""

    signatures: Mapping[str, Signature] = {}
    device = "cpu"
    _module: Any = None

    def __init__(self, torch: Any, threads: int, title: str = "") -> None:
        self._torch = torch
        self._threads = threads
        self.runtime = f"torch {torch.__version__}{title}"

    def close(self) -> None:
        self._module = None

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._module is None:
            raise RuntimeError("the session is closed")
        # PyTorch keeps the number by thread, and models share threads.
        self._torch.set_num_threads(self._threads)
        with self._torch.inference_mode():
            return self._module(*args, **kwargs)


def datatype_of_torch(dtype: Any) -> str:
    """Return the protocol's datatype of a dtype.

    Raises:
        ValueError: it has none, as for complex numbers and 8-bit floats.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return "BF16" if name == "bfloat16" else datatype_of(name)
    except (TypeError, ValueError):
        raise ValueError(f"the protocol has no datatype for {name}") from None


def to_torch(torch: Any, array: Array, spec: TensorSpec) -> Any:
    """Copy an array to a tensor; PyTorch has no read-only tensors."""
    if array.dtype == object:
        raise ValueError(f"input {spec.name!r} is a tensor of numbers, not of texts")
    tensor = torch.from_numpy(np.array(array))
    if spec.datatype == "BF16" and array.dtype == np.uint16:
        return tensor.view(torch.bfloat16)
    return tensor


def plain_tensor(torch: Any, tensor: Any) -> Any:
    """Convert a tensor to a dense, contiguous, dequantised one on the CPU."""
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # Conjugated and negated views cannot be shared with NumPy.
    return tensor.resolve_neg().resolve_conj().contiguous()


_PROBE_SIZES = (1, 16, 64, 256)
"""Sizes of free dimensions in first runs.

The window of a convolution may be larger than 1.
"""


class FirstRunError(ModelLoadError):
    """A model's run on zeros failed."""


def probe_outputs(
    torch: Any,
    run: Callable[[dict[str, Array]], list[tuple[str, Any]]],
    inputs: Sequence[TensorSpec],
    advice: str,
) -> list[TensorSpec]:
    """Describe a model's outputs by runs on zeros.

    Free dimensions get the first size at which the model runs.

    Args:
        run: returns the leaves of a result by name.
        advice: for a model that rejects zeros.

    Returns:
        Specs; a size is free if a run on another size gave another one.

    Raises:
        FirstRunError: no run succeeds.
    """

    def specs_at(size: int) -> list[TensorSpec]:
        leaves = run({spec.name: zeros(spec, size) for spec in inputs})
        return _leaf_specs(torch, leaves)

    has_free_sizes = any(-1 in spec.shape[len(spec.shape) > 1 :] for spec in inputs)
    sizes: Sequence[int] = _PROBE_SIZES[:1]
    if has_free_sizes:
        sizes = _PROBE_SIZES
    failure: Exception | None = None
    for size in sizes:
        try:
            specs = specs_at(size)
        except ModelLoadError:
            raise
        except Exception as error:
            failure = failure or error
            continue
        if has_free_sizes:
            with suppress(Exception):
                other_specs = specs_at(size + 16)
                return list(map(_where_equal, specs, other_specs))
        return specs
    assert failure is not None
    raise _first_run_error(inputs, failure, advice) from failure


def _first_run_error(
    inputs: Sequence[TensorSpec], failure: Exception, advice: str
) -> FirstRunError:
    """Return the error of a model that rejects zeros."""
    shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in inputs)
    reason = f"{type(failure).__name__}: {error_message(failure)}"
    return FirstRunError(f"a first run on zeros ({shapes}) failed: {reason}; {advice}")


def _leaf_specs(torch: Any, leaves: Iterable[tuple[str, Any]]) -> list[TensorSpec]:
    specs = []
    for name, leaf in leaves:
        try:
            specs.append(leaf_spec(torch, name, leaf))
        except (TypeError, ValueError) as error:
            raise ModelLoadError(
                f"the model's results cannot be served: {error}"
            ) from error
    return specs


def _where_equal(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    """Free the sizes that differ between two specs of an output."""
    if len(spec.shape) != len(other.shape):
        return spec
    shape = []
    for size, other_size in zip(spec.shape, other.shape, strict=True):
        if size == other_size:
            shape.append(size)
        else:
            shape.append(-1)
    return spec._replace(shape=tuple(shape))


def with_free_rows(spec: TensorSpec) -> TensorSpec:
    """Free the first dimension of a spec if it is 1."""
    if spec.shape[:1] != (1,):
        return spec
    return spec._replace(shape=(-1, *spec.shape[1:]))


def flatten(result: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a result with unique names.

    Dictionaries, named tuples and dataclasses name their items, joined by dots below
    (``boxes``, ``levels.0``). A leaf without such a name is ``output_N``, where N is its
    position among all leaves. A list of plain numbers or texts is one leaf.
    """
    leaves: dict[str, Any] = {}
    for position, (path, leaf) in enumerate(_leaves(result, ())):
        name = _path_name(path)
        if name is None:
            name = f"output_{position}"
        unique = name
        number = 0
        while unique in leaves:
            number += 1
            unique = f"{name}:{number}"
        leaves[unique] = leaf
    return list(leaves.items())


def _path_name(path: Sequence[str | int]) -> str | None:
    """Join a path from its first text on; return None without a text."""
    for start, part in enumerate(path):
        if isinstance(part, str):
            return ".".join(map(str, path[start:]))
    return None


def _leaves(
    value: Any, path: tuple[str | int, ...]
) -> Iterable[tuple[tuple[str | int, ...], Any]]:
    """Yield the path and value of each leaf of a nested result."""
    value = _with_names(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, tuple | list) and not _is_plain_list(value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _with_names(value: Any) -> Any:
    """Return named tuples and dataclasses as dictionaries, and others as they are."""
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return dict(zip(names, value, strict=True))
    if is_dataclass(value) and not isinstance(value, type | Mapping):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value


def _is_plain_list(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, int | float | str) for item in value)


def is_result(torch: Any, leaf: Any) -> bool:
    """Return whether a leaf can be served: a tensor, number or text."""
    return _is_plain_list(leaf) or isinstance(leaf, torch.Tensor | int | float | str)


def leaf_array(torch: Any, leaf: Any, datatype: str | None = None) -> Array:
    """Return a copy of a leaf as an array; None becomes an empty one.

    Args:
        datatype: the declared one. uint16 for bfloat16 is only understood if it is BF16;
            otherwise those numbers become FP32, which loses nothing.
    """
    if isinstance(leaf, torch.Tensor):
        return _tensor_array(torch, leaf, datatype)
    if leaf is None:
        return np.empty(0, np.float32)
    if isinstance(leaf, list):
        return _plain_array(leaf, type(leaf).__name__)
    return _plain_array([leaf], type(leaf).__name__).reshape(())


def _plain_array(items: list[Any], kind: str) -> Array:
    """Return texts or numbers as an array.

    Args:
        kind: of the model's result, for the error message.
    """
    if items and all(isinstance(item, str) for item in items):
        return np.array([item.encode() for item in items], dtype=object)
    if all(isinstance(item, int | float) for item in items):
        return np.array(items)
    raise TypeError(f"the model returns {kind}, which is neither numbers nor text")


def _tensor_array(torch: Any, leaf: Any, datatype: str | None) -> Array:
    tensor = plain_tensor(torch, leaf)
    if tensor.is_complex():
        raise TypeError(
            "the model returns complex numbers, which the protocol doesn't support"
        )
    if datatype == "BF16":
        tensor = tensor.to(torch.bfloat16).view(torch.uint16)
    elif tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.numpy())


def leaf_spec(torch: Any, name: str, leaf: Any) -> TensorSpec:
    """Return the spec of one result."""
    if isinstance(leaf, torch.Tensor):
        tensor = plain_tensor(torch, leaf)
        datatype = datatype_of_torch(tensor.dtype)
        shape = tuple(map(int, leaf.shape))
        return TensorSpec(name, datatype, shape)
    array = leaf_array(torch, leaf)
    return TensorSpec(name, datatype_of(array.dtype), array.shape)


def match_specs(
    names: Sequence[str], declared: Sequence[TensorSpec], noun: str
) -> dict[str, TensorSpec]:
    """Match the manifest's specs with a model's tensors, by name or else in order.

    Where the manifest renames a tensor, the model's name stays as an alias.
    """
    if {spec.name for spec in declared} <= set(names):
        return {spec.name: spec for spec in declared}
    if len(declared) != len(names):
        declared_names = ", ".join(spec.name for spec in declared)
        model_names = ", ".join(map(repr, names)) or "none"
        raise ModelLoadError(
            f"model.toml declares {plural(len(declared), noun)} ({declared_names}), "
            f"the model has {len(names)}: {model_names}"
        )
    specs = {}
    for name, spec in zip(names, declared, strict=True):
        if name != spec.name:
            spec = spec._replace(aliases=(*spec.aliases, name))
        specs[name] = spec
    return specs


_NOISE = re.compile(
    r"^(builtins\.)?\w*(Error|Exception): | \(of Python compilation unit at: \w+\)|, please report a bug to PyTorch"
)
_UNKNOWN_OPERATOR = re.compile(r"Unknown builtin op: (\w+::\w+)")
_DAMAGE = re.compile(
    r"PytorchStreamReader|central directory|zip archive|corrupt|damaged|CRC|truncat|[Uu]npickl|UnpicklingError|pickle|"
    r"Error -\d|end of (file|data)|EOF|INTERNAL ASSERT|Parsing error|JSON|decode|Expecting|KeyError|line \d+ column"
)


def error_message(error: BaseException, maximum: int = 300) -> str:
    """Return an error's text without TorchScript's traceback."""
    lines = []
    for line in str(error).splitlines():
        stripped = line.strip()
        if stripped:
            lines.append(stripped)
    if not lines:
        lines.append(type(error).__name__)
    text = lines[0]
    if "TorchScript interpreter" in text:
        text = lines[-1]
    return excerpt(_NOISE.sub("", text), maximum)


def explain_load_error(name: str, framework: str, error: BaseException) -> str:
    """Explain why a framework rejected a file."""
    unknown = _UNKNOWN_OPERATOR.search(str(error))
    if unknown:
        operator = unknown[1]
        if operator.startswith("prepacked::"):
            advice = (
                "the file was made by optimize_for_mobile; save the model again "
                "without that step"
            )
        else:
            advice = (
                "it belongs to another package, such as torchvision, or to another "
                "version; export the model as ONNX, or without that operator"
            )
        return (
            f"{name} uses the operator {operator}, which {framework} does not have: "
            f"{advice}"
        )
    reason = error_message(error, 200)
    if _DAMAGE.search(str(error)):
        return (
            f"{framework} cannot load {name}, which may be damaged ({reason}); copy it "
            "again"
        )
    return (
        f"{framework} cannot load {name} ({reason}); it may be of another version: "
        "save it again with this one"
    )


def input_fault(
    error: Exception, raised_by_model: type[Exception] = ValueError
) -> ValueError | None:
    """Return an error as ``ValueError`` if the input caused it; else None.

    The input is at fault if its sizes, types or indices don't fit.

    Args:
        raised_by_model: the type of a ``raise`` or ``assert`` in the model, which may
            check its input.
    """
    types = (AssertionError, IndexError, ValueError, raised_by_model)
    text = error_message(error, 2000)
    if not isinstance(error, types) and not _INPUT_FAULT.search(text):
        return None
    if _NOT_THE_INPUT.search(str(error)):
        return None
    return ValueError(error_message(error, 500))
