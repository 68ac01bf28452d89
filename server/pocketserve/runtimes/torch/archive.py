"""Looks at a PyTorch archive as PyTorch's own reader sees it, and checks the pickles in it before PyTorch reads them.

PyTorch's reader believes the pickles: a weight may claim more bytes than the file has for it, and then lies over
foreign memory. The names are looked up without regard to case, so twins that differ in nothing else are refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.torch.operators import CLASSES, NATIVE

MAX_TEXT_BYTES = 64 * 1024 * 1024
"""One source file or pickle of an archive; the largest known ones have a few megabytes."""

MAX_PIECES = 1_000_000
"""Lines of an archive's debug records; the largest known ones have some ten thousand."""

MAX_NAME = 400
"""Letters of a member's name: PyTorch lists longer ones cut, but finds them."""

_ITEM_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1, "Half": 2, "BFloat16": 2, "Short": 2, "Int": 4,
    "Float": 4, "QInt32": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_SCHEMES = ("per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams")
_CLASS_NAME = re.compile(r"__torch__(?:\.\w+)+", re.ASCII)


class PickleError(ValueError):
    """A pickle that names or claims what PyTorch must not be given."""


class Archive:
    """One archive.

    Raises:
        ModelLoadError: PyTorch cannot read its directory, or the members' names do not stand for one thing each.
    """

    def __init__(self, torch: Any, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            if file.read(8)[4:] == b"PTMF":
                raise ModelLoadError(f"{path.name} is a mobile model in FlatBuffer form, which is not served")
        try:
            self._reader = torch._C.PyTorchFileReader(str(path))
            self.names: list[str] = self._reader.get_all_records()
        except Exception as error:  # it raises plain RuntimeError
            raise ModelLoadError(f"{path.name} is damaged: PyTorch cannot read its directory; copy it again") from error
        lower = [name.lower() for name in self.names]
        if len(set(lower)) != len(lower) or "model.json" in lower or any(len(name) > MAX_NAME for name in lower):
            raise ModelLoadError(f"{path.name} has members that could be taken for one another; save it again")
        self._records = dict(zip(lower, self.names, strict=True))

    def size(self, name: str) -> int | None:
        """Return the bytes of a member, or None where there is none."""
        found = self._records.get(name.lower())
        return None if found is None else int(self._reader.get_record_size(found))

    def read(self, name: str, maximum: int = MAX_TEXT_BYTES) -> bytes:
        """Return a member's content.

        Raises:
            ModelLoadError: it is missing, longer than ``maximum`` bytes, or damaged.
        """
        size = self.size(name)
        try:
            if size is None or size > maximum:
                raise ValueError("missing or too large")
            return bytes(self._reader.get_record(self._records[name.lower()]))
        except Exception as error:
            raise ModelLoadError(f"{self._path.name} is damaged (its member {name[:80]!r}); copy it again") from error

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield the source files: name below ``code/`` and text."""
        for lower, name in self._records.items():
            if lower.startswith("code/") and lower.endswith(".py"):
                yield name[5:], self.read(name)

    def unpickle(self, name: str) -> tuple[Any, frozenset[str]]:
        """Read a pickle without running anything, as far as PyTorch would take it.

        Args:
            name: without ``.pkl``.

        Returns:
            The value, with :class:`Opaque` where a tensor or an object is, and the names of the classes in it.

        Raises:
            ModelLoadError: PyTorch's reader must not get it; the text says why.
        """
        reader = _Reader(self.read(f"{name}.pkl"), lambda key: self._record_bytes(name, key))
        with self._reading():
            return reader.load(), frozenset(reader.classes)

    def check_debug(self) -> None:
        """Check what tells PyTorch where a program was written: it believes that as well, when a run fails.

        Raises:
            ModelLoadError: it points outside of its texts.
        """
        left = MAX_PIECES
        for name in self.names:
            if name.lower().endswith(".debug_pkl"):
                with self._reading():
                    left -= _pieces(_Reader(self.read(name), lambda key: 0).load())
                    if left < 0:
                        raise PickleError("its debug records have too many lines")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Tell what is wrong with a pickle."""
        try:
            yield
        except ModelLoadError:
            raise
        except PickleError as error:
            raise ModelLoadError(f"{self._path.name} is not loaded: {error}") from error
        except Exception as error:  # pickle raises almost anything on a damaged file
            raise ModelLoadError(f"{self._path.name} is damaged ({excerpt(error, 200)}); copy it again") from error

    def _record_bytes(self, name: str, key: str) -> int:
        """The bytes behind a storage. Bytecode has them in one folder or the other by version: the smaller counts."""
        folders = ("bytecode", "constants") if name == "bytecode" else (name,)
        sizes = [size for folder in folders if (size := self.size(f"{folder}/{key}")) is not None]
        if not sizes:
            raise PickleError(f"the data of a weight ({key[:80]!r}) is missing")
        return min(sizes)


class Opaque:
    """Stands for a tensor or an object.

    Attributes:
        slots: an object's attributes in order, as they are when PyTorch makes it.
    """

    slots: tuple[Any, ...] | None = None

    def __setstate__(self, state: Any) -> None:
        """Take what a pickle fills an object with; PyTorch would make a second object of a second time."""
        if self.slots is not None:
            raise PickleError("an object in it is made twice")
        self.slots = tuple(state.values()) if isinstance(state, dict) and all(type(k) is str for k in state) else ()


class _Storage:
    def __init__(self, items: int) -> None:
        self.items = items


class _Kind:
    """The kind of a storage, or another plain word; it cannot be called."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Reader(pickle.Unpickler):
    """Knows what PyTorch's own reader knows, and nothing else; nothing is called that a pickle names."""

    def __init__(self, content: bytes, record_bytes: Callable[[str], int]) -> None:
        super().__init__(io.BytesIO(content))
        self._record_bytes = record_bytes
        self.classes: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _KNOWN:
            return _KNOWN[full]
        if module == "torch" and (name in _SCHEMES or (name[-7:] == "Storage" and name[:-7] in _ITEM_BYTES)):
            return _Kind(name)
        if not _CLASS_NAME.fullmatch(full) or (full.startswith(NATIVE) and full not in CLASSES):
            raise PickleError(f"it holds {full[:100]!r}, which is not among what only computes")
        self.classes.add(full)
        return type("_Object", (Opaque,), {})

    def persistent_load(self, pid: Any) -> Any:
        what, kind, key, _, count = pid
        item = _ITEM_BYTES[kind.name[:-7]]
        if what != "storage" or type(key) is not str or type(count) is not int or count < 0:
            raise PickleError("a weight is described in an unknown way")
        if count and count * item > self._record_bytes(key):
            raise PickleError("a weight claims more bytes than the file has for it")
        return _Storage(count)


def _pieces(document: Any) -> int:
    """Check one record of places, with a table of texts or in the form of before PyTorch 1.11; the pieces it joins."""
    sizes: list[int] = []
    match document:
        case ("FORMAT_WITH_STRING_TABLE", tuple(texts), tuple(entries)):
            sizes = [len(text.encode()) for text in texts]
        case tuple(entries):
            pass
        case _:
            raise PickleError("its places are not a table")
    known: dict[int, tuple[int, int]] = {}
    for _, place, *_ in entries:
        source, start, end = place
        if id(source) not in known:
            known[id(source)] = _joined(source, sizes)
        maximum = known[id(source)][1] + 1  # PyTorch itself writes the end of an empty text one too far
        if not all(type(at) is int and 0 <= at <= maximum for at in (start, end)):
            raise PickleError("a place is outside of its text")
    return sum(count for count, _ in known.values())


def _joined(source: Any, sizes: Sequence[int]) -> tuple[int, int]:
    """Return how many pieces make up a source, and their bytes."""
    pieces, _, _ = source
    if isinstance(pieces, str) and not sizes:
        return 1, len(pieces.encode())
    if not isinstance(pieces, list) or any(type(at) is not int or not 0 <= at < len(sizes) for at in pieces):
        raise PickleError("a place is in a text that is not there")
    return len(pieces), sum(sizes[at] for at in pieces)


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Opaque:
    numbers = (offset, *size, *stride)
    plain = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
    if not isinstance(storage, _Storage) or not plain or len(size) != len(stride):
        raise PickleError("a weight is described in an unknown way")
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) + 1
    if prod(size) and last > storage.items:
        raise PickleError("a weight lies outside of its own bytes")
    return Opaque()


def _opaque(*_: Any) -> Opaque:
    return Opaque()


def _same(value: Any, *_: Any) -> Any:
    return value


_KNOWN: dict[str, Any] = {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_qtensor": _rebuild_tensor,
    "collections.OrderedDict": lambda *_: OrderedDict(),
    "torch.device": _opaque,
    "builtins.complex": _opaque,
    **{f"torch.jit._pickle.build_{kind}list": _same for kind in ("int", "tensor", "double", "bool")},
    "torch.jit._pickle.restore_type_tag": _same,
}
"""What PyTorch's own reader knows by name. Sparse tensors are left out: it believes what they say about memory."""
