"""A FlatBuffer as a tree that can be changed and written again.

The format does not describe itself: a schema lists the fields with offsets. Plain
numbers in a table are copied with its bytes, so the schema does not list them. Shared
tables and vectors stay shared in the tree. Source: "FlatBuffers internals",
flatbuffers.dev.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffers import FlatBuffer

MAX_BYTES = 2**31 - 1
"""The limit of offsets: 32 bits, and signed towards a table's list of fields."""

_PHASE = 8
"""The largest alignment of a field. Moving a table by a multiple keeps alignments."""


@dataclass(frozen=True)
class VectorField:
    """A schema's field with a vector of numbers, or a string (size 1).

    Attributes:
        itemsize: bytes of an element.
        alignment: of the first element in the file, if more than an element's size.
    """

    itemsize: int = 1
    alignment: int = 4


@dataclass(frozen=True)
class TableField:
    """A schema's field with a table, or with a vector of tables.

    Attributes:
        fields: the table's fields with offsets.
        count: the number of all its fields. A table with more is newer than the schema,
            and rejected.
        many: whether it is a vector of tables.
    """

    fields: Mapping[int, SchemaField]
    count: int
    many: bool = False


@dataclass(frozen=True)
class UnionField:
    """A schema's field with a table of one of several types.

    The byte of the previous field has the type's number.

    Attributes:
        types: the fields with offsets, for types that have such fields.
        newest: the largest known type; types that are not listed have only numbers.
    """

    types: Mapping[int, Mapping[int, SchemaField]]
    newest: int


SchemaField = VectorField | TableField | UnionField

_NUMBERS_ONLY: Mapping[int, SchemaField] = {}
_Part = TypeVar("_Part")


class FlatVector:
    """A vector of numbers or a string, without its count."""

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
        inline: the table's bytes; the first four are set when it is written.
        slots: the position of each field in ``inline``; 0 for a default value.
        children: the targets of the fields with offsets.
        phase: the table's position in its file, modulo 8.
    """

    inline: bytearray = field(default_factory=lambda: bytearray(4))
    slots: list[int] = field(default_factory=list)
    children: dict[int, FlatChild] = field(default_factory=dict)
    phase: int = 0

    def number(self, index: int, code: str, default: int = 0) -> int:
        """Return an integer; ``code`` is a ``struct`` code."""
        at = self._slot(index)
        if not at:
            return default
        size = struct.calcsize(f"<{code}")
        if at + size > len(self.inline):
            raise DamagedFileError("a field points outside its table")
        value: int
        (value,) = struct.unpack_from(f"<{code}", self.inline, at)
        return value

    def set_number(self, index: int, code: str, value: int) -> None:
        """Set an integer, also one with its default value."""
        slot = self._make_slot(index, struct.calcsize(f"<{code}"))
        struct.pack_into(f"<{code}", self.inline, slot, value)

    def vector(self, index: int) -> FlatVector | None:
        """Return a vector of numbers or a string, or None."""
        child = self.children.get(index)
        if isinstance(child, FlatVector):
            return child
        return None

    def text(self, index: int) -> str:
        """Return a string; empty if missing."""
        vector = self.vector(index)
        if vector is None:
            return ""
        return bytes(vector.data).decode("utf-8", errors="replace")

    def nodes(self, index: int) -> list[FlatNode]:
        """Return a vector's tables, which may be changed; empty if missing."""
        child = self.children.get(index)
        if isinstance(child, list):
            return child
        return []

    def set_child(self, index: int, child: FlatChild) -> None:
        """Set the target of a field."""
        self._make_slot(index, 4)
        self.children[index] = child

    def copy(self) -> FlatNode:
        """Return a copy with the same children."""
        return FlatNode(self.inline[:], self.slots[:], dict(self.children), self.phase)

    def remove(self, index: int) -> None:
        """Reset a field to its default."""
        self.children.pop(index, None)
        if index < len(self.slots):
            self.slots[index] = 0

    def _slot(self, index: int) -> int:
        if index < len(self.slots):
            return self.slots[index]
        return 0

    def _make_slot(self, index: int, size: int) -> int:
        """Return a field's position; make room for a field that is missing."""
        missing = index + 1 - len(self.slots)
        self.slots += [0] * missing
        if not self.slots[index]:
            padding = -(len(self.inline) + self.phase) % size
            self.inline += bytes(padding)
            self.slots[index] = len(self.inline)
            self.inline += bytes(size)
        return self.slots[index]


FlatChild = FlatVector | FlatNode | list[FlatNode]


def read_tree(buffer: FlatBuffer, view: memoryview, schema: TableField) -> FlatNode:
    """Return the root of a buffer as a tree.

    Raises:
        DamagedFileError: an offset is invalid, the budget is exhausted, or something is
            newer than the schema.
    """
    return _TreeReader(buffer, view).table(buffer.follow(0), schema)


class _TreeReader:
    """Reads each table once, so that shared parts stay shared."""

    def __init__(self, buffer: FlatBuffer, view: memoryview) -> None:
        self._buffer = buffer
        self._view = view
        self._nodes: dict[tuple[int, int], FlatNode] = {}
        self._vectors: dict[tuple[int, VectorField], FlatVector] = {}

    def table(self, at: int, kind: TableField) -> FlatNode:
        node = self._node(at, kind.fields)
        if any(node.slots[kind.count :]):
            raise DamagedFileError(
                "it has a table with fields that are newer than this server"
            )
        return node

    def _node(self, at: int, schema: Mapping[int, SchemaField]) -> FlatNode:
        """Read a table with its targets; each table is read once."""
        key = (at, id(schema))
        if key in self._nodes:
            return self._nodes[key]
        node = self._read_node(at)
        # Remembered before its children: they may refer to it.
        self._nodes[key] = node
        for index, kind in schema.items():
            if node._slot(index):
                node.children[index] = self._child(at, node, index, kind)
        return node

    def _read_node(self, at: int) -> FlatNode:
        """Read a table without its children."""
        buffer = self._buffer
        fields = at - buffer.number("i", at)
        fields_size = buffer.number("H", fields)
        size = buffer.number("H", fields + 2)
        if fields_size < 4 or fields_size % 2 or size < 4:
            raise DamagedFileError("a table's field list has an impossible size")
        slot_bytes = buffer.slice(fields + 4, fields_size - 4)
        count = len(slot_bytes) // 2
        slots = list(struct.unpack(f"<{count}H", slot_bytes))
        for slot in slots:
            if slot and not 4 <= slot < size:
                raise DamagedFileError("a field points outside its table")
        inline = bytearray(buffer.slice(at, size))
        return FlatNode(inline, slots, phase=at % _PHASE)

    def _child(
        self, at: int, node: FlatNode, index: int, kind: SchemaField
    ) -> FlatChild:
        """Read the target of a table's field."""
        target = self._buffer.follow(at + node.slots[index])
        if isinstance(kind, VectorField):
            return self._vector(target, kind)
        if isinstance(kind, UnionField):
            number = node.number(index - 1, "B")
            if number > kind.newest:
                raise DamagedFileError(
                    f"it has options of type {number}, which is newer than this server"
                )
            fields = kind.types.get(number, _NUMBERS_ONLY)
            return self._node(target, fields)
        if kind.many:
            return self._tables(target, kind)
        return self.table(target, kind)

    def _tables(self, at: int, kind: TableField) -> list[FlatNode]:
        """Read a vector of tables."""
        offsets = self._vector(at, VectorField(4))
        count = len(offsets.data) // 4
        nodes = []
        for number in range(count):
            offset_at = at + 4 + 4 * number
            node = self.table(self._buffer.follow(offset_at), kind)
            nodes.append(node)
        return nodes

    def _vector(self, at: int, kind: VectorField) -> FlatVector:
        """Read a vector of numbers; each vector is read once."""
        key = (at, kind)
        if key in self._vectors:
            return self._vectors[key]
        size = self._buffer.number("I", at) * kind.itemsize
        start = at + 4
        end = start + size
        if end > len(self._view):
            raise DamagedFileError(f"a vector claims {size} bytes")
        vector = FlatVector(self._view[start:end], kind.itemsize, kind.alignment)
        self._vectors[key] = vector
        return vector


def write_tree(root: FlatNode, identifier: bytes, file: BinaryIO) -> int:
    """Write a tree to a file as a FlatBuffer; return its size in bytes.

    Tables come first and vectors last, so that a large model's description is compact.

    Raises:
        DamagedFileError: it would exceed the limit of offsets.
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
    """The positions of a tree's parts, parents first."""

    def __init__(self, root: FlatNode) -> None:
        self._root = root
        self._at = 8
        self._positions: dict[int, int] = {}  # by the part's id()
        self._field_lists: dict[bytes, int] = {}
        self._order: list[FlatChild] = []
        for part in _in_order(root):
            self._place(part)
        self.size = self._at + -self._at % 16

    def pieces(self, identifier: bytes) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield position and bytes of each part, in the file's order."""
        root_at = self._positions[id(self._root)]
        yield 0, struct.pack("<I", root_at) + identifier
        lists = {at: content for content, at in self._field_lists.items()}
        for part in self._order:
            at = self._positions[id(part)]
            if isinstance(part, FlatNode):
                fields = self._field_lists[_field_list(part)]
                if fields in lists:
                    yield fields, lists.pop(fields)
                yield at, self._node_bytes(part, at, fields)
            elif isinstance(part, FlatVector):
                count = len(part.data) // part.itemsize
                yield at, struct.pack("<I", count)
                yield at + 4, part.data
            else:
                yield at, self._list_bytes(part, at)

    def _list_bytes(self, nodes: list[FlatNode], at: int) -> bytes:
        """Return the bytes of a vector of tables: its count and offsets."""
        numbers = [len(nodes)]
        for node in nodes:
            offset_at = at + 4 * len(numbers)
            numbers.append(self._positions[id(node)] - offset_at)
        return struct.pack(f"<{len(numbers)}I", *numbers)

    def _place(self, part: FlatChild) -> None:
        """Give a part the next position that fits its alignment."""
        self._order.append(part)
        if isinstance(part, FlatNode):
            self._place_fields(_field_list(part))
            self._at += (part.phase - self._at) % _PHASE
            size = len(part.inline)
        elif isinstance(part, FlatVector):
            self._align(part.alignment, after=4)
            size = 4 + len(part.data) + 1  # a string ends with a zero
        else:
            self._align(4)
            size = 4 + 4 * len(part)
        self._positions[id(part)] = self._at
        self._at += size

    def _place_fields(self, fields: bytes) -> None:
        """Give a list of fields a position; tables with equal lists share it."""
        if fields in self._field_lists:
            return
        self._align(2)
        self._field_lists[fields] = self._at
        self._at += len(fields)

    def _align(self, alignment: int, after: int = 0) -> None:
        """Advance until the position ``after`` bytes further is aligned."""
        self._at += -(self._at + after) % alignment

    def _node_bytes(self, node: FlatNode, at: int, fields: int) -> bytes:
        content = bytearray(node.inline)
        struct.pack_into("<i", content, 0, at - fields)
        for index, child in node.children.items():
            slot = node.slots[index]
            offset = self._positions[id(child)] - at - slot
            struct.pack_into("<I", content, slot, offset)
        return bytes(content)


def _field_list(node: FlatNode) -> bytes:
    sizes = (4 + 2 * len(node.slots), len(node.inline))
    return struct.pack(f"<{2 + len(node.slots)}H", *sizes, *node.slots)


def _in_order(root: FlatNode) -> list[FlatChild]:
    """Return each part of a tree once, after all of its parents."""
    return [*_unique(reversed([*_walk(root)]))][::-1]


def _walk(root: FlatNode) -> Iterator[FlatChild]:
    """Yield all parts; shared parts repeat."""
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
