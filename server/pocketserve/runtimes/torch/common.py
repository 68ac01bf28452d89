"""What the PyTorch formats share: the import, tensors to arrays and back, names of results, errors in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.messages import excerpt, plural
from pocketserve.runtimes.base import ModelLoadError, RuntimeMissingError
from pocketserve.runtimes.privacy import import_framework
from pocketserve.runtimes.torch import INSTALL
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

MINIMUM_TORCH = (2, 10)
"""Below it, weights_only could be made to run code or corrupt memory (CVE-2025-32434, CVE-2026-24747)."""

_DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16", "bool": "BOOL",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
}  # fmt: skip

# Only numbers are exchanged: these say that sizes, types or indices do not fit, which the caller chose.
_INPUT_FAULT = re.compile(
    r"\bshapes?\b|\bsizes?\b|[Dd]imension|\bdims?\b|out of range|out of bounds|same dtype|scalar type|"
    r"should be the same|must be a? ?\dD|\b\dD\b|broadcast|[Gg]uard|AssertionError|channels"
)
_NOT_THE_INPUT = re.compile(r"allocate|out of memory|not implemented|INTERNAL ASSERT")


# --- The framework


def import_torch() -> Any:
    """PyTorch, new enough to be safe.

    Raises:
        RuntimeMissingError: it is missing, broken or too old; with the commands that help.
    """
    try:
        torch = import_framework("torch")
    except Exception as error:  # a broken native library raises OSError, not ImportError
        raise RuntimeMissingError(
            f"PyTorch is not usable ({type(error).__name__}: {str(error)[:200]}); run: {INSTALL}"
        ) from None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        raise RuntimeMissingError(
            f"PyTorch {torch.__version__} is too old to read weights safely; install {MINIMUM_TORCH[0]}."
            f"{MINIMUM_TORCH[1]} or newer: pip install -U 'pocketserve[torch]'"
        )
    return torch


def use_threads(torch: Any, threads: int) -> None:
    """Have what this thread runs next use so many threads.

    PyTorch keeps the number for each calling thread: one that has run anything does not follow a change that another
    thread makes, and several models share the thread. Saying it before each run costs a tenth of a microsecond.
    """
    torch.set_num_threads(threads)


def file_size(path: Path) -> int:
    """Bytes of a model file.

    Raises:
        ModelLoadError: it cannot be read.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error.strerror or error}") from error


def weight_bytes(tensors: Iterable[Any]) -> int:
    """Memory of weights."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# --- Tensors


def datatype_of_torch(dtype: Any) -> str:
    """The protocol's datatype for a torch dtype.

    Raises:
        ValueError: when the protocol has none (complex numbers, 8-bit floats).
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _DATATYPES:
        raise ValueError(f"the protocol has no datatype for {name}")
    return _DATATYPES[name]


def to_torch(torch: Any, array: Array, spec: TensorSpec) -> Any:
    """An array as a tensor with memory of its own.

    The request's memory is read-only; torch has no read-only tensors and warns, so the input is copied.

    Raises:
        ValueError: for texts.
    """
    if array.dtype == object:
        raise ValueError(f"input {spec.name!r} is a tensor of numbers, not of texts")
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if spec.datatype == "BF16" and array.dtype == np.uint16 else tensor


def to_numpy(torch: Any, tensor: Any) -> Array:
    """A tensor as an array that owns its memory; bfloat16 becomes its 16 bits as uint16."""
    # A module may hand out its own state, which the next run changes: hence the copy.
    plain = plain_tensor(torch, tensor)
    return np.array(plain.view(torch.uint16).numpy() if plain.dtype == torch.bfloat16 else plain.numpy())


def plain_tensor(torch: Any, tensor: Any) -> Any:
    """The same numbers, dense, contiguous, on the CPU, not quantised."""
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # Conjugated and negated views cannot be shared with NumPy.
    return tensor.resolve_neg().resolve_conj().contiguous()


PROBE_SIZES = (1, 16, 64, 256)
"""What free dimensions are in a first run: a window of a convolution may be larger than 1."""


def zeros(spec: TensorSpec, size: int = 1) -> Array:
    """An input of zeros.

    Args:
        size: of free dimensions; a first one in front of others is taken for rows, of which there is one.
    """
    fill = b"" if spec.datatype == "BYTES" else 0
    shape = [
        (1 if at == 0 and len(spec.shape) > 1 else size) if dim == -1 else dim for at, dim in enumerate(spec.shape)
    ]
    return np.full(shape, fill, dtype=DATATYPES[spec.datatype].typestr)


def probe(run: Callable[[dict[str, Array]], list[TensorSpec]], inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Run on zeros of several sizes until one does.

    Returns:
        What that run tells of the outputs; a size is free where a run on other sizes gave another one.

    Raises:
        Exception: what the first run raised, where none succeeds.
    """
    sized = any(-1 in spec.shape[len(spec.shape) > 1 :] for spec in inputs)
    failed: Exception | None = None
    for size in PROBE_SIZES if sized else PROBE_SIZES[:1]:
        try:
            found = run({spec.name: zeros(spec, size) for spec in inputs})
        except ModelLoadError:
            raise
        except Exception as error:
            failed = failed or error
            continue
        others = found
        with suppress(Exception):
            others = run({spec.name: zeros(spec, size + 16) for spec in inputs}) if sized else found
        return [_where_equal(spec, other) for spec, other in zip(found, others, strict=False)]
    assert failed is not None
    raise failed


def _where_equal(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    if len(spec.shape) != len(other.shape):
        return spec
    sizes = (size if size == again else -1 for size, again in zip(spec.shape, other.shape, strict=True))
    return replace(spec, shape=tuple(sizes))


# --- Results


def flatten(result: Any) -> list[tuple[str, Any]]:
    """The leaves of a result with unique names.

    Dictionaries, named tuples and dataclasses name what is in them, with dots below (``boxes``, ``levels.0``); what no
    name leads to is ``output_N``, N being its place among all leaves. A list of plain numbers or texts is one leaf.
    """
    named: dict[str, Any] = {}
    for number, (path, leaf) in enumerate(_leaves(result, ())):
        start = next((at for at, part in enumerate(path) if isinstance(part, str)), None)
        name = f"output_{number}" if start is None else ".".join(map(str, path[start:]))
        candidates = (name, *(f"{name}:{again}" for again in range(1, number + 2)))
        named[next(other for other in candidates if other not in named)] = leaf
    return list(named.items())


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterable[tuple[tuple[str | int, ...], Any]]:
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        value = dict(zip(names, value, strict=True))
    elif is_dataclass(value) and not isinstance(value, type | Mapping):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, tuple | list) and not _is_plain_list(value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _is_plain_list(value: Sequence[Any]) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, int | float | str) for item in value)


def is_result(torch: Any, leaf: Any) -> bool:
    """Return whether a leaf is something that callers can get: tensors, numbers, texts."""
    items = leaf if isinstance(leaf, list) and _is_plain_list(leaf) else [leaf]
    return all(isinstance(item, torch.Tensor | int | float | str) for item in items)


def leaf_array(torch: Any, leaf: Any, datatype: str | None = None) -> Array:
    """A leaf as an array. An optional value that is absent becomes an empty one.

    Args:
        datatype: the declared one. Only where it is BF16 do callers know that uint16 means bfloat16; else those
            numbers are widened to FP32, which loses nothing.

    Raises:
        TypeError: it is neither real numbers nor text.
    """
    if isinstance(leaf, torch.Tensor):
        if (leaf.dtype == torch.bfloat16) != (datatype == "BF16"):
            leaf = plain_tensor(torch, leaf).to(torch.bfloat16 if datatype == "BF16" else torch.float32)
        array = to_numpy(torch, leaf)
        if array.dtype.kind == "c":
            raise TypeError("the model returns complex numbers, which the protocol does not have")
        return array
    if leaf is None:
        return np.empty(0, np.float32)
    items = leaf if isinstance(leaf, list) else [leaf]
    if items and all(isinstance(item, str) for item in items):
        array = np.array([item.encode() for item in items], dtype=object)
    elif all(isinstance(item, int | float) for item in items):
        array = np.array(items)
    else:
        raise TypeError(f"the model returns {type(leaf).__name__}, which is neither numbers nor text")
    return array if isinstance(leaf, list) else array.reshape(())


def leaf_spec(torch: Any, name: str, leaf: Any, batched: bool) -> TensorSpec:
    """Return what a run on zeros tells of an output; its first size is free where the first input's is."""
    if isinstance(leaf, torch.Tensor):
        datatype = datatype_of_torch(plain_tensor(torch, leaf).dtype)
        shape = tuple(int(size) for size in leaf.shape)
    else:
        array = leaf_array(torch, leaf)
        datatype = "BYTES" if array.dtype == object else datatype_of_torch(array.dtype)
        shape = array.shape
    return TensorSpec(name, datatype, (-1, *shape[1:]) if batched and shape[:1] == (1,) else shape)


def match(names: Sequence[str], declared: Sequence[TensorSpec], what: str) -> dict[str, TensorSpec]:
    """The manifest's specs for a model's tensors, by name; or in order, where both sides have as many.

    Where the manifest renames a tensor, the model's own name stays as an alias.

    Raises:
        ModelLoadError: a declaration fits nothing.
    """
    if {spec.name for spec in declared} <= set(names):
        return {spec.name: spec for spec in declared}
    if len(declared) == len(names):
        pairs = zip(names, declared, strict=True)
        return {
            name: spec if name == spec.name else replace(spec, aliases=(*spec.aliases, name)) for name, spec in pairs
        }
    known = ", ".join(repr(name) for name in names) or "none"
    asked = ", ".join(spec.name for spec in declared)
    raise ModelLoadError(
        f"model.toml declares {plural(len(declared), what)} ({asked}), the model has {len(names)}: {known}"
    )


# --- Errors


def one_line(error: BaseException, maximum: int = 300) -> str:
    """Return what an error says, without the traceback that TorchScript puts around it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    # TorchScript tells the reason last, the lite interpreter first.
    text = lines[-1] if "TorchScript interpreter" in lines[0] else lines[0]
    return excerpt(_NOISE.sub("", text), maximum)


_NOISE = re.compile(
    r"^(builtins\.)?\w*(Error|Exception): | \(of Python compilation unit at: \w+\)|, please report a bug to PyTorch"
)
_FOREIGN_OPERATOR = re.compile(r"Unknown builtin op: (\w+::\w+)")


_DAMAGE = re.compile(
    r"PytorchStreamReader|central directory|zip archive|corrupt|damaged|CRC|truncat|[Uu]npickl|UnpicklingError|pickle|"
    r"Error -\d|end of (file|data)|EOF|INTERNAL ASSERT|Parsing error|JSON|decode|Expecting|KeyError|line \d+ column"
)


def load_error(name: str, what: str, error: BaseException) -> ModelLoadError:
    """One sentence for a file that a framework refused with any exception."""
    if found := _FOREIGN_OPERATOR.search(str(error)):
        return ModelLoadError(
            f"{name} uses the operator {found[1]}, which {what} does not have: it belongs to another package, such as "
            "torchvision, or to another version; export the model as ONNX, or without that operator"
        )
    why = one_line(error, 200)
    if _DAMAGE.search(str(error)):
        return ModelLoadError(f"{what} cannot load {name}, which may be damaged ({why}); copy it again")
    return ModelLoadError(
        f"{what} cannot load {name} ({why}); it may be of another version: save it again with this one"
    )


def input_fault(error: Exception, raised_by_model: type[Exception] | None = None) -> ValueError | None:
    """The error as a ValueError, where the input is to blame: its sizes, types or indices.

    Args:
        raised_by_model: the type that stands for a ``raise`` or ``assert`` in the model's own code; models check their
            input that way.
    """
    text = str(error)
    ours = isinstance(error, AssertionError | IndexError | ValueError) or _INPUT_FAULT.search(one_line(error, 2000))
    if raised_by_model is not None and isinstance(error, raised_by_model):
        ours = True
    if ours and not _NOT_THE_INPUT.search(text):
        return ValueError(one_line(error, 500))
    return None
