"""Reads a PyTorch archive as PyTorch's own reader does, and checks the pickles in it before PyTorch loads them.

PyTorch believes the pickles: a weight that claims more bytes than the file has for it lies over foreign memory.
PyTorch looks up names without regard to case, so twins that differ in nothing else are refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.torch.operators import CLASSES, NATIVE

MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Limit of a source file or pickle; real ones have a few megabytes."""

MAX_PIECES = 1_000_000  # lines of an archive's debug records; the largest known ones have some ten thousand
MAX_NAME = (
    400  # letters of a member's name: PyTorch lists longer ones cut, but finds them
)

_ITEM_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1, "Half": 2, "BFloat16": 2, "Short": 2, "Int": 4,
    "Float": 4, "QInt32": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_SCHEMES = (
    "per_tensor_affine",
    "per_channel_affine",
    "per_channel_affine_float_qparams",
)
_CLASS_NAME = re.compile(r"__torch__(?:\.\w+)+", re.ASCII)


class PickleError(ValueError):
    """A pickle is unsafe for PyTorch."""


class Archive:
    """An archive, read like PyTorch does; faults raise ``ModelLoadError``."""

    def __init__(self, torch: Any, path: Path) -> None:
        self._path = path
        try:
            self._reader = torch._C.PyTorchFileReader(str(path))
            self.names: list[str] = self._reader.get_all_records()
        except Exception as error:  # it raises plain RuntimeError
            raise ModelLoadError(
                f"{path.name} is damaged: PyTorch cannot read its directory; copy it again"
            ) from error
        lower = [name.lower() for name in self.names]
        if (
            len(set(lower)) != len(lower)
            or "model.json" in lower
            or any(len(name) > MAX_NAME for name in lower)
        ):
            raise ModelLoadError(
                f"{path.name} has members that could be taken for one another; save it again"
            )
        self._records = dict(zip(lower, self.names, strict=True))

    def read(self, name: str, maximum: int = MAX_TEXT_BYTES) -> bytes:
        """Return a member's content, ``maximum`` bytes at most."""
        try:
            if self._reader.get_record_size(self._records[name.lower()]) > maximum:
                raise ValueError("too large")
            return bytes(self._reader.get_record(self._records[name.lower()]))
        except Exception as error:
            raise ModelLoadError(
                f"{self._path.name} is damaged (its member {name[:80]!r}); copy it again"
            ) from error

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield the source files: name below ``code/`` and text."""
        for lower, name in self._records.items():
            if lower.startswith("code/") and lower.endswith(".py"):
                yield name[5:], self.read(name)

    def pickled_classes(self, name: str) -> frozenset[str]:
        """Check a pickle (``name.pkl``) as PyTorch would read it, running nothing; return the classes that it names."""
        reader = _Unpickler(
            self.read(f"{name}.pkl"), lambda key: self._storage_bytes(f"{name}/{key}")
        )
        with load_errors(
            self._explain
        ):  # pickle raises almost anything on a damaged file
            reader.load()
        return frozenset(reader.classes)

    def check_debug(self) -> None:
        """Check the debug records, which PyTorch trusts when a run fails."""
        left = MAX_PIECES
        for name in self.names:
            if name.lower().endswith(".debug_pkl"):
                with load_errors(self._explain):
                    left -= _debug_pieces(
                        _Unpickler(self.read(name), lambda key: 0).load()
                    )
                    if left < 0:
                        raise PickleError("its debug records have too many lines")

    def _explain(self, error: Exception) -> str:
        if isinstance(error, PickleError):
            return f"{self._path.name} is not loaded: {error}"
        return f"{self._path.name} is damaged ({excerpt(error, 200)}); copy it again"

    def _storage_bytes(self, name: str) -> int:
        record = self._records.get(name.lower())
        if record is None:
            raise PickleError(f"the data of a weight ({name[:80]!r}) is missing")
        return int(self._reader.get_record_size(record))


class _Opaque:
    """Stands for a tensor or an object."""

    _filled = False

    def __setstate__(self, state: Any) -> None:
        """Take the state of an object; PyTorch would make a second object of a second time."""
        if self._filled:
            raise PickleError("an object in it is made twice")
        self._filled = True


class _Storage:
    def __init__(self, items: int) -> None:
        self.items = items


class _StorageType:
    """The type of a storage, or a quantisation scheme; it cannot be called."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Unpickler(pickle.Unpickler):
    """Knows the names that PyTorch's own reader knows, and calls nothing else that a pickle names."""

    def __init__(self, content: bytes, storage_bytes: Callable[[str], int]) -> None:
        super().__init__(io.BytesIO(content))
        self._storage_bytes = storage_bytes
        self.classes: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _BUILTINS:
            return _BUILTINS[full]
        if module == "torch" and (
            name in _SCHEMES or (name[-7:] == "Storage" and name[:-7] in _ITEM_BYTES)
        ):
            return _StorageType(name)
        if not _CLASS_NAME.fullmatch(full) or (
            full.startswith(NATIVE) and full not in CLASSES
        ):
            raise PickleError(
                f"it holds {full[:100]!r}, which is not among what only computes"
            )
        self.classes.add(full)
        return type("_Object", (_Opaque,), {})

    def persistent_load(self, pid: Any) -> Any:
        tag, kind, key, _, count = pid
        item = _ITEM_BYTES[kind.name[:-7]]
        if (
            tag != "storage"
            or type(key) is not str
            or type(count) is not int
            or count < 0
        ):
            raise PickleError("a weight is described in an unknown way")
        if count and count * item > self._storage_bytes(key):
            raise PickleError("a weight claims more bytes than the file has for it")
        return _Storage(count)


def _debug_pieces(document: Any) -> int:
    """Check a debug record, with a table of texts or as before PyTorch 1.11, and return how many texts it joins."""
    sizes: list[int] = []
    match document:
        case ("FORMAT_WITH_STRING_TABLE", tuple(texts), tuple(entries)):
            sizes = [len(text.encode()) for text in texts]
        case tuple(entries):
            pass
        case _:
            raise PickleError("its places are not a table")
    counts: dict[int, tuple[int, int]] = {}
    for _, place, *_ in entries:
        source, start, end = place
        if id(source) not in counts:
            counts[id(source)] = _joined(source, sizes)
        maximum = (
            counts[id(source)][1] + 1
        )  # PyTorch itself writes the end of an empty text one too far
        if not all(type(at) is int and 0 <= at <= maximum for at in (start, end)):
            raise PickleError("a place is outside of its text")
    return sum(count for count, _ in counts.values())


def _joined(source: Any, sizes: Sequence[int]) -> tuple[int, int]:
    """Return how many pieces make up a source, and their bytes."""
    pieces, _, _ = source
    if isinstance(pieces, str) and not sizes:
        return 1, len(pieces.encode())
    if not isinstance(pieces, list) or any(
        type(at) is not int or not 0 <= at < len(sizes) for at in pieces
    ):
        raise PickleError("a place is in a text that is not there")
    return len(pieces), sum(sizes[at] for at in pieces)


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *_: Any
) -> _Opaque:
    numbers = (offset, *size, *stride)
    plain = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
    if not isinstance(storage, _Storage) or not plain or len(size) != len(stride):
        raise PickleError("a weight is described in an unknown way")
    last = (
        offset
        + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
        + 1
    )
    if prod(size) and last > storage.items:
        raise PickleError("a weight lies outside of its own bytes")
    return _Opaque()


_BUILTINS: dict[str, Any] = {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_qtensor": _rebuild_tensor,
    "collections.OrderedDict": lambda *_: OrderedDict(),
    "torch.device": lambda *_: _Opaque(),
    "builtins.complex": lambda *_: _Opaque(),
    **{
        f"torch.jit._pickle.build_{kind}list": lambda value, *_: value
        for kind in ("int", "tensor", "double", "bool")
    },
    "torch.jit._pickle.restore_type_tag": lambda value, *_: value,
}
"""Names that PyTorch's own reader knows. Sparse tensors are left out: it believes their claims about memory."""
