"""A bounded reader of Protocol Buffers.

Callers bound the nesting, because they follow a schema. Of a repeated field all values
are returned. Source: "Encoding", protobuf.dev.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pocketserve.formats import BoundedReader, DamagedFileError

Span = tuple[int, int]
"""Start and end of a message or string in the data."""

# Messages may contain millions of plain numbers, such as a forest's nodes, so runs of
# them are skipped at once. These are the tags of fields 1 to 15 with wire types 0
# (varint), 5 (four bytes) and 1 (eight bytes). The pattern is possessive, so that it
# keeps no state for each number.
_VARINT_TAGS, _FIXED32_TAGS, _FIXED64_TAGS = (
    re.escape(bytes(range(8 + kind, 128, 8))) for kind in (0, 5, 1)
)
_NUMBERS = re.compile(
    b"(?:[%b][\x80-\xff]{0,9}[\x00-\x7f]|[%b].{4}|[%b].{8})++"
    % (_VARINT_TAGS, _FIXED32_TAGS, _FIXED64_TAGS),
    re.DOTALL,
)


class ProtobufReader(BoundedReader):
    """Reads fields, each within its message and paid from the budget."""

    def fields(self, span: Span) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type, value and end of each field.

        For wire types other than 0 the value is the start of the content.
        """
        at, end = span
        while at < end:
            field = self._field(at, end)
            yield field
            at = field[3]

    def parts(self, span: Span) -> Iterator[tuple[int, Span]]:
        """Yield number and span of messages, strings and packed numbers."""
        at, end = span
        while at < end:
            if self.data[at] & 7 != 2:
                run = _NUMBERS.match(self.data, at, end)
                if run is not None:
                    self.pay(1 + (run.end() - at) // 256)
                    at = run.end()
                    continue
            number, wire_type, start, at = self._field(at, end)
            if wire_type == 2:
                yield number, (start, at)

    def messages(self, span: Span, *numbers: int) -> Iterator[Span]:
        """Yield the spans of messages or strings in these fields."""
        return (part for number, part in self.parts(span) if number in numbers)

    def text(self, span: Span) -> str:
        """Return a string; invalid UTF-8 becomes surrogates, as in file names."""
        return self.data[span[0] : span[1]].decode("utf-8", errors="surrogateescape")

    def spans(self, span: Span, *path: int) -> list[Span]:
        """Return the messages or strings at a path of field numbers."""
        spans = [span]
        for number in path:
            inner: list[Span] = []
            for outer in spans:
                inner += self.messages(outer, number)
            spans = inner
        return spans

    def texts(self, span: Span, *path: int) -> list[str]:
        """Return the strings at a path of field numbers."""
        return [self.text(part) for part in self.spans(span, *path)]

    def integers(self, span: Span, number: int) -> list[int]:
        """Return a repeated unsigned integer, packed or not."""
        values: list[int] = []
        for field, wire_type, value, end in self.fields(span):
            if field != number:
                continue
            if wire_type == 0:
                values.append(value)
            elif wire_type == 2:
                values += self._packed(value, end)
        return values

    def _packed(self, at: int, end: int) -> list[int]:
        """Return the integers in a range of bytes."""
        values = []
        while at < end:
            self.pay(1)
            item, at = self._varint(at, end)
            values.append(item)
        return values

    def _field(self, at: int, end: int) -> tuple[int, int, int, int]:
        self.pay(1)
        tag, at = self._varint(at, end)
        number = tag >> 3
        wire_type = tag & 7
        if number == 0 or tag > 0xFFFFFFFF:  # other readers disagree about these
            raise DamagedFileError("a field has an impossible number")
        if wire_type == 0:
            value, after = self._varint(at, end)
            return number, wire_type, value, after
        if wire_type == 2:
            size, at = self._varint(at, end)
        elif wire_type in (1, 5):
            size = 4
            if wire_type == 1:
                size = 8
        else:  # no format here uses groups
            raise DamagedFileError(f"a field has the wire type {wire_type}")
        if at + size > end:
            raise DamagedFileError("a field points outside its message")
        return number, wire_type, at, at + size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        if at < end:
            byte = self.data[at]
            if byte < 0x80:  # fast path for nearly all numbers
                return byte, at + 1
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise DamagedFileError("a number is not terminated")
