"""Check the pickles in a PyTorch archive before PyTorch loads them.

The archive is read with PyTorch's own reader. PyTorch trusts the pickles: a weight with
more bytes than the file has for it would overlap foreign memory. PyTorch looks up names
without regard to case, so members whose names differ only in case are rejected.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.torch.operators import CLASSES, NATIVE

MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Limit of a source file or pickle; real ones have a few megabytes."""

MAX_PIECES = 1_000_000
"""Limit of lines in an archive's debug records; the largest known have about 10,000."""

MAX_NAME = 400
"""Limit of a member's name; PyTorch truncates longer ones in lists, but finds them."""

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
                f"{path.name} is damaged: PyTorch cannot read its directory; copy it "
                "again"
            ) from error
        lower = [name.lower() for name in self.names]
        if _are_ambiguous(lower):
            raise ModelLoadError(
                f"{path.name} has members that could be taken for one another; save it "
                "again"
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
        """Check a pickle (``name.pkl``) without running it; return its class names."""

        def storage_bytes(key: str) -> int:
            return self._storage_bytes(f"{name}/{key}")

        reader = _Unpickler(self.read(f"{name}.pkl"), storage_bytes)
        # pickle raises almost anything on a damaged file.
        with load_errors(self._explain):
            reader.load()
        return frozenset(reader.classes)

    def check_debug(self) -> None:
        """Check the debug records, which PyTorch trusts when a run fails."""
        left = MAX_PIECES
        for name in self.names:
            if not name.lower().endswith(".debug_pkl"):
                continue
            with load_errors(self._explain):
                document = _Unpickler(self.read(name), lambda key: 0).load()
                left -= _debug_pieces(document)
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


def _are_ambiguous(names: Sequence[str]) -> bool:
    """Return whether names in lower case are equal, too long, or reserved."""
    if len(set(names)) != len(names) or "model.json" in names:
        return True
    return any(len(name) > MAX_NAME for name in names)


class _Opaque:
    """A placeholder for a tensor or an object."""

    _filled = False

    def __setstate__(self, state: Any) -> None:
        """Accept an object's state once; PyTorch would create another object."""
        if self._filled:
            raise PickleError("an object in it is made twice")
        self._filled = True


class _Storage:
    def __init__(self, items: int) -> None:
        self.items = items


class _StorageType:
    """The type of a storage, or a quantisation scheme."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Unpickler(pickle.Unpickler):
    """Calls only the functions in a pickle that PyTorch's own reader knows."""

    def __init__(self, content: bytes, storage_bytes: Callable[[str], int]) -> None:
        super().__init__(io.BytesIO(content))
        self._storage_bytes = storage_bytes
        self.classes: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _BUILTINS:
            return _BUILTINS[full]
        if module == "torch" and _is_type_name(name):
            return _StorageType(name)
        is_unsafe_native = full.startswith(NATIVE) and full not in CLASSES
        if not _CLASS_NAME.fullmatch(full) or is_unsafe_native:
            raise PickleError(
                f"it holds {full[:100]!r}, which is not among what only computes"
            )
        self.classes.add(full)
        return type("_Object", (_Opaque,), {})

    def persistent_load(self, pid: Any) -> Any:
        tag, kind, key, _, count = pid
        item_bytes = _ITEM_BYTES[kind.name.removesuffix("Storage")]
        is_known = tag == "storage" and type(key) is str and type(count) is int
        if not is_known or count < 0:
            raise PickleError("a weight is described in an unknown way")
        if count and count * item_bytes > self._storage_bytes(key):
            raise PickleError("a weight claims more bytes than the file has for it")
        return _Storage(count)


def _is_type_name(name: str) -> bool:
    """Return whether a name of PyTorch is a storage's type or a scheme."""
    if name in _SCHEMES:
        return True
    return name.endswith("Storage") and name.removesuffix("Storage") in _ITEM_BYTES


def _debug_pieces(document: Any) -> int:
    """Check a debug record; return the number of texts that it joins.

    Before PyTorch 1.11, records had no table of texts.
    """
    sizes: list[int] = []
    match document:
        case ("FORMAT_WITH_STRING_TABLE", tuple(texts), tuple(entries)):
            sizes = [len(text.encode()) for text in texts]
        case tuple(entries):
            pass
        case _:
            raise PickleError("its positions are not a table")
    sources: dict[int, _JoinedSource] = {}
    for _, place, *_ in entries:
        source, start, end = place
        if id(source) not in sources:
            sources[id(source)] = _joined(source, sizes)
        # PyTorch itself writes the end of an empty text one too far.
        maximum = sources[id(source)].size + 1
        for position in (start, end):
            if type(position) is not int or not 0 <= position <= maximum:
                raise PickleError("a place is outside of its text")
    return sum(source.pieces for source in sources.values())


class _JoinedSource(NamedTuple):
    """The number of texts that make up a source, and their bytes."""

    pieces: int
    size: int


def _joined(source: Any, sizes: Sequence[int]) -> _JoinedSource:
    """Measure a source; it is one text or refers to texts in the table."""
    pieces, _, _ = source
    if isinstance(pieces, str) and not sizes:
        return _JoinedSource(1, len(pieces.encode()))
    if not isinstance(pieces, list):
        raise PickleError("a place is in a text that is not there")
    size = 0
    for number in pieces:
        if type(number) is not int or not 0 <= number < len(sizes):
            raise PickleError("a place is in a text that is not there")
        size += sizes[number]
    return _JoinedSource(len(pieces), size)


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *_: Any
) -> _Opaque:
    """Check a weight; it must lie in its storage."""
    for number in (offset, *size, *stride):
        if type(number) is not int or not 0 <= number < 2**62:
            raise _unknown_weight()
    if not isinstance(storage, _Storage) or len(size) != len(stride):
        raise _unknown_weight()
    end = offset + 1
    for count, step in zip(size, stride, strict=True):
        end += (count - 1) * step
    if prod(size) and end > storage.items:
        raise PickleError("a weight lies outside of its own bytes")
    return _Opaque()


def _unknown_weight() -> PickleError:
    return PickleError("a weight is described in an unknown way")


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
"""Names that PyTorch's own reader knows.

Sparse tensors are left out: PyTorch trusts their claims about memory.
"""
