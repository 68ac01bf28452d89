"""A FlatBuffer as a tree that can be changed and written anew.

The format does not describe itself: a schema says which fields lead elsewhere. Numbers inside a table are carried over
as they lie there, so that the schema names nothing but those fields. Tables and vectors that several places share are
shared in the tree, too. Source: "FlatBuffers internals", flatbuffers.dev.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffers import FlatBuffer

MAX_BYTES = 2**31 - 1
"""Offsets have 32 bits and, towards a table's list of fields, a sign."""

_PHASE = 8
"""The largest alignment of a field: what is aligned inside a table stays so where it moves by a multiple of this."""


@dataclass(frozen=True)
class VectorField:
    """A field of a schema that leads to a vector of numbers, or to a text (size 1).

    Attributes:
        itemsize: bytes of an element.
        alignment: of the first element in the file, in bytes, if it is more than an element's size.
    """

    itemsize: int = 1
    alignment: int = 4


@dataclass(frozen=True)
class TableField:
    """A field that leads to a table, or to a vector of tables.

    Attributes:
        fields: those of the table that lead elsewhere.
        count: of all its fields. A table with more is newer than the schema, and refused.
        many: whether it is a vector of them.
    """

    fields: Mapping[int, SchemaField]
    count: int
    many: bool = False


@dataclass(frozen=True)
class UnionField:
    """A field that leads to a table of one of several types, whose number is in the byte of the field before it.

    Attributes:
        types: the fields of each type that has such which lead elsewhere.
        newest: the largest number of a type that is known; the others up to here hold numbers only.
    """

    types: Mapping[int, Mapping[int, SchemaField]]
    newest: int


SchemaField = VectorField | TableField | UnionField

_NUMBERS_ONLY: Mapping[int, SchemaField] = {}
_Part = TypeVar("_Part")


class FlatVector:
    """A vector of numbers, or a text; ``data`` are its bytes without the count."""

    def __init__(
        self, data: bytes | memoryview, itemsize: int = 1, alignment: int = 4
    ) -> None:
        self.data = data
        self.itemsize = itemsize
        self.alignment = max(alignment, itemsize, 4)


@dataclass
class FlatNode:
    """A table. Its fields are set and read by number.

    Attributes:
        inline: the bytes of the table itself; the first four are filled in when it is written.
        slots: where in ``inline`` each field lies; 0 for one that has its default.
        children: what the fields lead to.
        phase: the table's position in its file, modulo 8.
    """

    inline: bytearray = field(default_factory=lambda: bytearray(4))
    slots: list[int] = field(default_factory=list)
    children: dict[int, FlatChild] = field(default_factory=dict)
    phase: int = 0

    def number(self, index: int, code: str, default: int = 0) -> int:
        """Return an integer; ``code`` is one of struct's."""
        at = self._slot(index)
        if at and at + struct.calcsize(f"<{code}") > len(self.inline):
            raise DamagedFileError("a field leads out of its table")
        value: int = (
            struct.unpack_from(f"<{code}", self.inline, at)[0] if at else default
        )
        return value

    def set_number(self, index: int, code: str, value: int) -> None:
        """Set an integer, also one that had its default."""
        struct.pack_into(
            f"<{code}",
            self.inline,
            self._make_slot(index, struct.calcsize(f"<{code}")),
            value,
        )

    def vector(self, index: int) -> FlatVector | None:
        """Return a vector of numbers or a text; None where there is none."""
        child = self.children.get(index)
        return child if isinstance(child, FlatVector) else None

    def text(self, index: int) -> str:
        """Return a text; empty where there is none."""
        vector = self.vector(index)
        return (
            ""
            if vector is None
            else bytes(vector.data).decode("utf-8", errors="replace")
        )

    def nodes(self, index: int) -> list[FlatNode]:
        """Return the tables of a vector, which may be changed in place; empty where there is none."""
        child = self.children.get(index)
        return child if isinstance(child, list) else []

    def set_child(self, index: int, child: FlatChild) -> None:
        """Have a field lead to something else."""
        self._make_slot(index, 4)
        self.children[index] = child

    def copy(self) -> FlatNode:
        """Return a table of its own that leads to the same parts."""
        return FlatNode(self.inline[:], self.slots[:], dict(self.children), self.phase)

    def remove(self, index: int) -> None:
        """Give a field its default again."""
        self.children.pop(index, None)
        if index < len(self.slots):
            self.slots[index] = 0

    def _slot(self, index: int) -> int:
        return self.slots[index] if index < len(self.slots) else 0

    def _make_slot(self, index: int, size: int) -> int:
        self.slots += [0] * (index + 1 - len(self.slots))
        if not self.slots[index]:
            self.inline += bytes(-(len(self.inline) + self.phase) % size)
            self.slots[index] = len(self.inline)
            self.inline += bytes(size)
        return self.slots[index]


FlatChild = FlatVector | FlatNode | list[FlatNode]


def read_tree(buffer: FlatBuffer, view: memoryview, schema: TableField) -> FlatNode:
    """Return the root of a buffer, with vectors that are parts of ``view``, the buffer's memory.

    Raises:
        DamagedFileError: an offset leads outside, the budget is spent, or something is newer than the schema.
    """
    return _TreeReader(buffer, view).table(buffer.follow(0), schema)


class _TreeReader:
    """Reads tables once each: what is shared in the file is shared in the tree."""

    def __init__(self, buffer: FlatBuffer, view: memoryview) -> None:
        self._buffer = buffer
        self._view = view
        self._nodes: dict[tuple[int, int], FlatNode] = {}
        self._vectors: dict[tuple[int, VectorField], FlatVector] = {}

    def table(self, at: int, kind: TableField) -> FlatNode:
        node = self._node(at, kind.fields)
        if any(node.slots[kind.count :]):
            raise DamagedFileError(
                "it has a table with fields newer than what is known here"
            )
        return node

    def _node(self, at: int, schema: Mapping[int, SchemaField]) -> FlatNode:
        key = (at, id(schema))
        if key in self._nodes:
            return self._nodes[key]
        buffer = self._buffer
        fields = at - buffer.number("i", at)
        fields_size, size = buffer.number("H", fields), buffer.number("H", fields + 2)
        if fields_size < 4 or fields_size % 2 or size < 4:
            raise DamagedFileError("a table's field list has an impossible size")
        slots = list(
            struct.unpack(
                f"<{fields_size // 2 - 2}H", buffer.slice(fields + 4, fields_size - 4)
            )
        )
        if any(slot and not 4 <= slot < size for slot in slots):
            raise DamagedFileError("a field leads out of its table")
        node = FlatNode(bytearray(buffer.slice(at, size)), slots, {}, at % _PHASE)
        self._nodes[key] = node
        for index, kind in schema.items():
            if node._slot(index):
                node.children[index] = self._child(at, node, index, kind)
        return node

    def _child(
        self, at: int, node: FlatNode, index: int, kind: SchemaField
    ) -> FlatChild:
        target = self._buffer.follow(at + node.slots[index])
        if isinstance(kind, VectorField):
            return self._vector(target, kind)
        if isinstance(kind, UnionField):
            number = node.number(index - 1, "B")
            if number > kind.newest:
                raise DamagedFileError(
                    f"it has options of type {number}, which is newer than what is known here"
                )
            return self._node(target, kind.types.get(number, _NUMBERS_ONLY))
        if not kind.many:
            return self.table(target, kind)
        offsets = self._vector(target, VectorField(4))
        count = len(offsets.data) // 4
        return [
            self.table(self._buffer.follow(target + 4 + 4 * i), kind)
            for i in range(count)
        ]

    def _vector(self, at: int, kind: VectorField) -> FlatVector:
        key = (at, kind)
        if key not in self._vectors:
            size = self._buffer.number("I", at) * kind.itemsize
            if at + 4 + size > len(self._view):
                raise DamagedFileError(f"a vector claims {size} bytes")
            self._vectors[key] = FlatVector(
                self._view[at + 4 : at + 4 + size], kind.itemsize, kind.alignment
            )
        return self._vectors[key]


def write_tree(root: FlatNode, identifier: bytes, file: BinaryIO) -> int:
    """Write a tree as a FlatBuffer to the start of a file, and return its size in bytes.

    Tables come first and vectors last, so that the description of a large model lies together.

    Raises:
        DamagedFileError: it would be larger than offsets can say.
    """
    layout = _Layout(root)
    if layout.size > MAX_BYTES:
        raise DamagedFileError(
            f"it would have {layout.size} bytes, and a FlatBuffer ends at {MAX_BYTES}"
        )
    end = 0
    for at, piece in layout.pieces(identifier):
        file.write(bytes(at - end))
        file.write(piece)
        end = at + len(piece)
    file.write(bytes(layout.size - end))
    return layout.size


class _Layout:
    """Positions of everything in a tree. Offsets lead forward only, so that a parent comes before its children."""

    def __init__(self, root: FlatNode) -> None:
        self._root = root
        self._at = 8
        self._positions: dict[int, int] = {}  # by the identity of what the tree holds
        self._field_lists: dict[bytes, int] = {}
        self._order: list[FlatChild] = []
        for part in _in_order(root):
            self._place(part)
        self.size = self._at + -self._at % 16

    def pieces(self, identifier: bytes) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield the position and bytes of every part, in the file's order."""
        yield 0, struct.pack("<I", self._positions[id(self._root)]) + identifier
        lists = {at: content for content, at in self._field_lists.items()}
        for part in self._order:
            at = self._positions[id(part)]
            if isinstance(part, FlatNode):
                fields = self._field_lists[_field_list(part)]
                if fields in lists:
                    yield fields, lists.pop(fields)
                yield at, self._node_bytes(part, at, fields)
            elif isinstance(part, FlatVector):
                yield at, struct.pack("<I", len(part.data) // part.itemsize)
                yield at + 4, part.data
            else:
                offsets = [
                    self._positions[id(node)] - at - 4 - 4 * i
                    for i, node in enumerate(part)
                ]
                yield at, struct.pack(f"<{len(part) + 1}I", len(part), *offsets)

    def _place(self, part: FlatChild) -> None:
        self._order.append(part)
        if isinstance(part, FlatNode):
            fields = _field_list(part)
            if fields not in self._field_lists:
                self._at += self._at % 2
                self._field_lists[fields] = self._at
                self._at += len(fields)
            self._at += (part.phase - self._at) % _PHASE
            size = len(part.inline)
        elif isinstance(part, FlatVector):
            self._at += -(self._at + 4) % part.alignment
            size = 4 + len(part.data) + 1  # a text ends with a zero
        else:
            self._at += -self._at % 4
            size = 4 + 4 * len(part)
        self._positions[id(part)] = self._at
        self._at += size

    def _node_bytes(self, node: FlatNode, at: int, fields: int) -> bytes:
        content = bytearray(node.inline)
        struct.pack_into("<i", content, 0, at - fields)
        for index, child in node.children.items():
            slot = node.slots[index]
            struct.pack_into(
                "<I", content, slot, self._positions[id(child)] - at - slot
            )
        return bytes(content)


def _field_list(node: FlatNode) -> bytes:
    sizes = (4 + 2 * len(node.slots), len(node.inline))
    return struct.pack(f"<{2 + len(node.slots)}H", *sizes, *node.slots)


def _in_order(root: FlatNode) -> list[FlatChild]:
    """Return all parts of a tree, each once and after every parent of it, also after those on a deeper level."""
    return [*_unique(reversed([*_walk(root)]))][::-1]


def _walk(root: FlatNode) -> Iterator[FlatChild]:
    """Yield all parts of a tree level by level for tables, then the vectors; what levels share, on each of them."""
    vectors: list[FlatVector] = []
    level: list[FlatNode] = [root]
    while level:
        yield from level
        below: list[FlatNode] = []
        for node in level:
            for child in node.children.values():
                if isinstance(child, FlatVector):
                    vectors.append(child)
                elif isinstance(child, list):
                    yield child
                    below += child
                else:
                    below.append(child)
        level = list(_unique(below))
    yield from vectors


def _unique(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Yield each object once."""
    return iter({id(part): part for part in parts}.values())
