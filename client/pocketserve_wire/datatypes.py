"""The datatypes of the Open Inference Protocol and their memory layout.

Elements are little-endian and row-major on the wire. Source: Open Inference Protocol,
"Tensor Data Types", and Triton's binary tensor data extension for BF16 and BYTES.
"""

from __future__ import annotations

from typing import NamedTuple


class Datatype(NamedTuple):
    """A datatype. NumPy has no BF16: its 16 bits are sent as unsigned integers."""

    name: str
    itemsize: int
    """Bytes per element; 0 for BYTES, whose elements vary in length."""
    typestr: str
    """NumPy's array-interface notation; BYTES elements are Python objects."""
    array_code: str | None
    """Type code for :mod:`array`; None if that module has no such element."""

    @property
    def protobuf_name(self) -> str:
        """Return the datatype's name in Triton's model configuration."""
        name = "STRING" if self.name == "BYTES" else self.name
        return f"TYPE_{name}"

    @property
    def is_integer(self) -> bool:
        """Return whether elements are integers (BOOL is not)."""
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
