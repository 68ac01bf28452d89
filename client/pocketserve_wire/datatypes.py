"""The Open Inference Protocol's datatypes and how their elements lie in memory.

Elements are little-endian and row-major on the wire. Source: Open Inference Protocol, "Tensor Data Types", and
Triton's binary tensor data extension for BF16 and BYTES.
"""

from __future__ import annotations

from typing import NamedTuple


class Datatype(NamedTuple):
    """A datatype. BF16 has no type of NumPy's: its 16 bits travel as unsigned integers."""

    name: str
    itemsize: int  # bytes per element; 0 for BYTES, whose elements vary
    typestr: (
        str  # in NumPy's array-interface notation; BYTES elements are Python objects
    )
    array_code: (
        str | None
    )  # for :mod:`array`; None where that module has no such element

    @property
    def protobuf_name(self) -> str:
        """Return the name in Triton's model configuration."""
        return f"TYPE_{'STRING' if self.name == 'BYTES' else self.name}"

    @property
    def is_integer(self) -> bool:
        """Return whether elements are whole numbers (BOOL is not)."""
        return self.name.startswith(("INT", "UINT"))


DATATYPES: dict[str, Datatype] = {
    row.name: row
    for row in (
        Datatype("BOOL", 1, "|b1", None),
        Datatype("UINT8", 1, "|u1", "B"),
        Datatype("UINT16", 2, "<u2", "H"),
        Datatype("UINT32", 4, "<u4", "I"),
        Datatype("UINT64", 8, "<u8", "Q"),
        Datatype("INT8", 1, "|i1", "b"),
        Datatype("INT16", 2, "<i2", "h"),
        Datatype("INT32", 4, "<i4", "i"),
        Datatype("INT64", 8, "<i8", "q"),
        Datatype("FP16", 2, "<f2", None),
        Datatype("BF16", 2, "<u2", None),
        Datatype("FP32", 4, "<f4", "f"),
        Datatype("FP64", 8, "<f8", "d"),
        Datatype("BYTES", 0, "|O", None),
    )
}
