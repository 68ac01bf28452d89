"""Inference bodies in both directions: each datatype, raw and as JSON."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

from .wire import Piece, Vector, frames_vector

INFER = "POST /v2/models/m/infer"
RULE = "bodies"


@dataclass
class Sample:
    """A tensor for a vector.

    Attributes:
        values: as JSON text of a flat array; None where it is sent as raw bytes.
        raw: the raw form, always.
    """

    name: str
    datatype: str
    shape: list[int]
    raw: bytes
    values: str | None = None

    def expected(self) -> dict[str, Any]:
        """Return the entry of ``tensors`` in NAME.json."""
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": self.shape,
            "binary": self.values is None,
            "raw": self.raw.hex(),
        }

    def member(self) -> str:
        """Return the tensor's JSON object."""
        head = f'{{"name":{json.dumps(self.name)},"datatype":"{self.datatype}","shape":{json.dumps(self.shape)},'
        if self.values is None:
            return head + f'"parameters":{{"binary_data_size":{len(self.raw)}}}}}'
        return head + f'"data":{self.values}}}'


def body(
    key: str, samples: list[Sample], *, before: str = "", pad: bool = True
) -> tuple[bytes, int]:
    """Return an inference body and the length of its JSON part.

    The JSON is padded so that the raw bytes start at a multiple of 8.
    """
    members = ",".join(sample.member() for sample in samples)
    text = f'{{{before}"{key}":[{members}]}}'.encode()
    raw = b"".join(sample.raw for sample in samples if sample.values is None)
    if raw and pad:
        text += b" " * (-len(text) % 8)
    return text + raw, len(text)


def request(
    samples: list[Sample], *, before: str = "", pad: bool = True, request_id: int = 1
) -> Piece:
    """Return an inference REQUEST."""
    content, json_length = body("inputs", samples, before=before, pad=pad)
    tensors = [sample.expected() for sample in samples]
    return Piece(
        "REQUEST",
        request_id,
        0,
        INFER,
        body=content,
        json_length=json_length,
        tensors=tensors,
    )


def response(
    samples: list[Sample], *, before: str = "", pad: bool = True, request_id: int = 1
) -> Piece:
    """Return an inference RESPONSE."""
    before = before or '"model_name":"m","model_version":"1",'
    content, json_length = body("outputs", samples, before=before, pad=pad)
    tensors = [sample.expected() for sample in samples]
    return Piece(
        "RESPONSE",
        request_id,
        200,
        body=content,
        json_length=json_length,
        tensors=tensors,
    )


def strings(*elements: bytes) -> bytes:
    """Return the raw form of BYTES."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def integers(code: str, bits: int) -> tuple[bytes, str, int]:
    """Return the extremes of an integer type: raw, JSON, count."""
    low, high = (
        (0, 2**bits - 1)
        if code.isupper()
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    values = [low, high, 1]
    return (
        struct.pack(f"<3{code}", *values),
        json.dumps(values, separators=(",", ":")),
        3,
    )


def floats(code: str, least: float, most: float) -> tuple[bytes, str, int]:
    """Return minus zero, a subnormal number, the largest and a third: raw, JSON, count."""
    values = [
        -0.0,
        least,
        most,
        struct.unpack(f"<{code}", struct.pack(f"<{code}", 1 / 3))[0],
    ]
    return (
        struct.pack(f"<4{code}", *values),
        json.dumps(values, separators=(",", ":")),
        4,
    )


HALF = struct.pack("<5e", -0.0, 2.0**-24, 65504.0, -1.5, math.inf)
BRAIN = b"".join(
    struct.pack("<f", value)[2:] for value in (-0.0, 1.0, -2.5, math.inf, 3.0e38)
)

# datatype -> raw bytes, the same as JSON (None: it has no JSON form), number of elements
DATATYPES: dict[str, tuple[bytes, str | None, int]] = {
    "BOOL": (b"\x00\x01\x01", "[false,true,true]", 3),
    "UINT8": integers("B", 8),
    "UINT16": integers("H", 16),
    "UINT32": integers("I", 32),
    "UINT64": integers("Q", 64),
    "INT8": integers("b", 8),
    "INT16": integers("h", 16),
    "INT32": integers("i", 32),
    "INT64": integers("q", 64),
    "FP16": (HALF, None, 5),
    "BF16": (BRAIN, None, 5),
    "FP32": floats("f", 2.0**-149, float.fromhex("0x1.fffffep+127")),
    "FP64": floats("d", 5e-324, 1.7976931348623157e308),
    "BYTES": (
        strings(b"", b"a\0b", "gr\u00fc\u00df \U0001f600".encode()),
        '["","a\\u0000b","gr\\u00fc\\u00df \\ud83d\\ude00"]',
        3,
    ),
}


def samples_of(datatype: str) -> list[Sample]:
    """Return vectors of the datatype as raw bytes and, if that form exists, as JSON."""
    raw, values, count = DATATYPES[datatype]
    found = [Sample("raw", datatype, [count], raw)]
    if values is not None:
        found.append(Sample("json", datatype, [1, count], raw, values))
    return found


def vectors() -> list[Vector]:
    """Return all vectors of this file."""
    found = []
    for datatype in DATATYPES:
        forms = (
            "raw bytes and JSON values"
            if DATATYPES[datatype][1]
            else "raw bytes, its only form"
        )
        name, what = datatype.lower(), f"{datatype} as {forms}, extreme values included"
        samples = samples_of(datatype)
        found.append(
            _of(
                f"infer_request_{name}",
                f"An inference request: {what}.",
                "server",
                request(samples),
            )
        )
        found.append(
            _of(
                f"infer_response_{name}",
                f"An inference answer: {what}.",
                "client",
                response(samples),
            )
        )
    return found + _shapes() + _texts()


def _of(name: str, description: str, receiver: str, piece: Piece) -> Vector:
    return frames_vector(name, description, RULE, receiver, [piece])


def _shapes() -> list[Vector]:
    one = struct.pack("<f", 1.5)
    two = struct.pack("<2f", 1.0, 2.0)
    mixed = [
        Sample("first", "FP32", [1, 2], two),
        Sample("between", "INT32", [1], struct.pack("<i", -7), "[-7]"),
        Sample("last", "BYTES", [2], strings(b"x", b"yz")),
    ]
    raw_body = Piece("REQUEST", 1, 0, INFER, body=two, json_length=0)
    return [
        _of(
            "infer_request_scalar",
            "Shape [] is a scalar of one element.",
            "server",
            request([Sample("x", "FP32", [], one)]),
        ),
        _of(
            "infer_request_empty_tensor",
            "A dimension of 0: no data, and binary_data_size 0 needs no bytes behind the JSON.",
            "server",
            request([Sample("x", "FP32", [0, 3], b"")]),
        ),
        _of(
            "infer_request_mixed",
            "Raw tensors lie behind the JSON in its order; a JSON tensor between them takes no bytes there.",
            "server",
            request(mixed),
        ),
        _of(
            "infer_request_unpadded",
            "Raw bytes may start anywhere: here the JSON part is not padded to a multiple of 8.",
            "server",
            request([Sample("xy", "FP32", [1, 2], two)], pad=False),
        ),
        _of(
            "infer_request_raw_body",
            "json_len 0 with a body: the whole body is the raw bytes of the only input, without any JSON.",
            "server",
            raw_body,
        ),
        _of(
            "infer_request_bytes_not_utf8",
            "BYTES elements are bytes, not text; one has 300 of them, so that its length needs two bytes.",
            "server",
            request([Sample("x", "BYTES", [2], strings(b"\xff\xfe\x80", b"\0" * 300))]),
        ),
        _of(
            "infer_response_many_outputs",
            "Outputs come in any order, raw and JSON ones mixed; clients look them up by name.",
            "client",
            response([mixed[2], mixed[1], mixed[0]]),
        ),
        _of(
            "infer_response_all_empty",
            "Only empty outputs: plain JSON, json_len equals body_len.",
            "client",
            response([Sample("boxes", "FP32", [0, 4], b"")]),
        ),
    ]


def _texts() -> list[Vector]:
    not_numbers = struct.pack("<3I", 0x7FC00000, 0x7F800000, 0xFF800000)
    nulls = struct.pack("<If", 0x7FC00000, 1.0)
    sample = Sample("x", "FP32", [1], struct.pack("<f", 1.0))
    named = Sample(
        "gr\u00f6\u00dfe \U0001f600", "FP32", [1], struct.pack("<f", 1.0), "[1.0]"
    )
    with_id = (
        r'"id":"caf\u00e9 \ud83d\ude00 \"q\" \\ \/",'
        '"parameters":{"sequence_id":18446744073709551615,"sequence_start":true},'
    )
    return [
        _of(
            "infer_request_null_is_nan",
            "null in FP32 data is read as NaN: two Python clients write it so.",
            "server",
            request([Sample("x", "FP32", [2], nulls, "[null,1]")]),
        ),
        _of(
            "infer_response_nan_tokens",
            "NaN and infinities are bare tokens in an answer, which plain JSON parsers refuse; raw bytes avoid them.",
            "client",
            response(
                [Sample("x", "FP32", [3], not_numbers, "[NaN,Infinity,-Infinity]")]
            ),
        ),
        _of(
            "infer_request_number_forms",
            "Numbers of FP64 in all spellings of JSON; integers are numbers too.",
            "server",
            request(
                [
                    Sample(
                        "x",
                        "FP64",
                        [4],
                        struct.pack("<4d", 1.0, -10.0, 0.0025, 150.0),
                        "[1,-10.0,2.5e-3,1.5E+2]",
                    )
                ]
            ),
        ),
        _of(
            "infer_request_nested_data",
            "data may nest in any way; only the number of elements counts.",
            "server",
            request([Sample("x", "INT8", [2, 2], b"\1\2\3\4", "[[1,2],[3,4]]")]),
        ),
        _of(
            "infer_request_id_and_parameters",
            "Escapes in the id, and an integer of 64 bits without sign among the parameters.",
            "server",
            request([sample], before=with_id),
        ),
        _of(
            "infer_request_utf8_name",
            "A name with characters of two and four bytes, escaped.",
            "server",
            request([named]),
        ),
        _of(
            "infer_response_raw_utf8",
            "The same kinds of characters, not escaped: JSON is UTF-8, and lengths count bytes.",
            "client",
            response(
                [sample],
                before='"id":"caf\u00e9 \U0001f600","model_name":"gr\u00f6\u00dfe","model_version":"1",',
            ),
        ),
    ]
