"""The Open Inference Protocol's datatypes and how their elements lie in memory.

Elements are little-endian and row-major on the wire. Source: Open Inference Protocol, "Tensor Data Types", and
Triton's binary tensor data extension for BF16 and BYTES.
"""

from __future__ import annotations

from typing import NamedTuple


class Datatype(NamedTuple):
    """A datatype.

    Attributes:
        itemsize: bytes per element; 0 for BYTES, whose elements vary.
        typestr: the element type in NumPy's array-interface notation. BF16 has none of its own: its 16 bits
            travel as unsigned integers. BYTES elements are Python objects.
        array_code: type code for :mod:`array`, or None where that module has no such element.
        protobuf_name: the name in Triton's model configuration (``TYPE_...``).
    """

    name: str
    itemsize: int
    typestr: str
    array_code: str | None
    protobuf_name: str

    @property
    def is_integer(self) -> bool:
        """Return whether elements are whole numbers (BOOL is not)."""
        return self.name.startswith(("INT", "UINT"))


DATATYPES: dict[str, Datatype] = {
    row.name: row
    for row in (
        Datatype("BOOL", 1, "|b1", None, "TYPE_BOOL"),
        Datatype("UINT8", 1, "|u1", "B", "TYPE_UINT8"),
        Datatype("UINT16", 2, "<u2", "H", "TYPE_UINT16"),
        Datatype("UINT32", 4, "<u4", "I", "TYPE_UINT32"),
        Datatype("UINT64", 8, "<u8", "Q", "TYPE_UINT64"),
        Datatype("INT8", 1, "|i1", "b", "TYPE_INT8"),
        Datatype("INT16", 2, "<i2", "h", "TYPE_INT16"),
        Datatype("INT32", 4, "<i4", "i", "TYPE_INT32"),
        Datatype("INT64", 8, "<i8", "q", "TYPE_INT64"),
        Datatype("FP16", 2, "<f2", None, "TYPE_FP16"),
        Datatype("BF16", 2, "<u2", None, "TYPE_BF16"),
        Datatype("FP32", 4, "<f4", "f", "TYPE_FP32"),
        Datatype("FP64", 8, "<f8", "d", "TYPE_FP64"),
        Datatype("BYTES", 0, "|O", None, "TYPE_STRING"),
    )
}
"""Name -> datatype."""
