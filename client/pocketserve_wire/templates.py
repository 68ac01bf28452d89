"""Caches of JSON headers, for messages that differ only in their raw bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from .tensor import Tensor

MAX_TEMPLATE_BYTES: Final = 2048
"""Largest JSON part that is cached, in bytes."""

MAX_TEMPLATES: Final = 64
"""Entries of a cache; adding another one clears it."""

_CHECKED: Final = frozenset({"BYTES", "BOOL"})
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TemplateCache(dict[K, V]):
    """A dictionary of at most :data:`MAX_TEMPLATES` entries."""

    def keep(self, key: K, value: V) -> None:
        """Add an entry; clear the cache first if it is full."""
        if len(self) >= MAX_TEMPLATES:
            self.clear()
        self[key] = value


BodyKey = tuple[bytes, int]


def body_key(body: memoryview, json_length: int | None) -> BodyKey | None:
    """Return a body's cache key (JSON part, length); None if too long."""
    if json_length is None or not 0 < json_length <= MAX_TEMPLATE_BYTES:
        return None
    return bytes(body[:json_length]), len(body)


class TensorPlace(NamedTuple):
    """A tensor's header, and the range of its bytes in the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    end: int
    parameters: dict[str, Any]


def places_of(tensors: Iterable[Tensor], start: int) -> list[TensorPlace]:
    """Return the positions of consecutive tensors from ``start`` on."""
    places = []
    for tensor in tensors:
        end = start + len(tensor.data)
        parameters = dict(tensor.parameters)
        places.append(
            TensorPlace(
                tensor.name, tensor.datatype, tensor.shape, start, end, parameters
            )
        )
        start = end
    return places


def tensors_at(places: Iterable[TensorPlace], body: memoryview) -> list[Tensor]:
    """Return the tensors of a body; they reference its memory."""
    return [
        Tensor(name, datatype, shape, body[start:end], own.copy())
        for name, datatype, shape, start, end, own in places
    ]


def is_plain(tensors: Sequence[Tensor], raw_bytes: int) -> bool:
    """Return whether all tensors are raw and need no check of their bytes."""
    sizes = [len(tensor.data) for tensor in tensors if tensor.datatype not in _CHECKED]
    return len(sizes) == len(tensors) and sum(sizes) == raw_bytes > 0


def header_key(tensors: Iterable[Tensor]) -> tuple[Any, ...] | None:
    """Return the cache key of raw tensors; None if they are not cacheable."""
    entries = []
    for tensor in tensors:
        # Empty tensors have no binary data, and the length of BYTES is only known after
        # encoding.
        if tensor.parameters or not isinstance(tensor.data, memoryview):
            return None
        if not tensor.data.nbytes:
            return None
        entries.append((tensor.name, tensor.datatype, tensor.shape, tensor.data.nbytes))
    return tuple(entries)
