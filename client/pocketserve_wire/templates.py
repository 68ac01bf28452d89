"""JSON parts that are read, or written, once for all messages that differ in the raw bytes behind them alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from .tensor import Tensor

MAX_TEMPLATE_BYTES: Final = 2048
"""Bytes of a JSON part that is cached."""

MAX_TEMPLATES: Final = 64
"""JSON parts that a cache holds; one more empties it."""

_CHECKED: Final = frozenset({"BYTES", "BOOL"})
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TemplateCache(dict[K, V]):
    """A dictionary of at most :data:`MAX_TEMPLATES` entries."""

    def keep(self, key: K, value: V) -> None:
        """Add an entry; the others go first where there are too many."""
        if len(self) >= MAX_TEMPLATES:
            self.clear()
        self[key] = value


BodyKey = tuple[bytes, int]


def body_key(body: memoryview, json_length: int | None) -> BodyKey | None:
    """Return what a body's meaning depends on besides its raw bytes: JSON part and length; None for a long one."""
    if json_length is None or not 0 < json_length <= MAX_TEMPLATE_BYTES:
        return None
    return bytes(body[:json_length]), len(body)


class TensorPlace(NamedTuple):
    """A tensor without its bytes, and where they start and end in the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    end: int
    parameters: dict[str, Any]


def places_of(tensors: Iterable[Tensor], start: int) -> list[TensorPlace]:
    """Return where tensors lie whose bytes follow each other from ``start`` on."""
    places = []
    for tensor in tensors:
        end = start + len(tensor.data)
        places.append(
            TensorPlace(
                tensor.name,
                tensor.datatype,
                tensor.shape,
                start,
                end,
                dict(tensor.parameters),
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
    """Return whether all tensors are raw, and of datatypes whose bytes may have any value."""
    sizes = [len(tensor.data) for tensor in tensors if tensor.datatype not in _CHECKED]
    return len(sizes) == len(tensors) and sum(sizes) == raw_bytes > 0


def header_key(tensors: Iterable[Tensor]) -> tuple[Any, ...] | None:
    """Return what the JSON part of raw tensors depends on; None where it changes each time."""
    entries = []
    for tensor in tensors:
        # Elements of no bytes are left out, and the lengths of texts are only known once they are written.
        if (
            tensor.parameters
            or not isinstance(tensor.data, memoryview)
            or not tensor.data.nbytes
        ):
            return None
        entries.append((tensor.name, tensor.datatype, tensor.shape, tensor.data.nbytes))
    return tuple(entries)
