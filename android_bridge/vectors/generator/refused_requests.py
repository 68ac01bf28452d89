"""Well-formed REQUESTs that a server refuses with a RESPONSE, and goes on. The models are those of this project."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .good_frames import LIVE
from .inference import strings
from .wire import DEFAULT_MAX_BODY, Vector, compact, extensions, raw_frame

INFER = b"POST /v2/models/petals/infer"
RAW = b"POST /predictions/petals"
REQUEST = 0x10


@dataclass
class Asked:
    """A REQUEST, and the status and code of its answer."""

    target: bytes
    status: int
    code: str
    body: bytes = b""
    json_length: int | None = None
    ext: bytes = b""
    arg: int = 0

    def wire(self, request_id: int) -> bytes:
        """Return the frame."""
        return raw_frame(
            REQUEST,
            request_id=request_id,
            arg=self.arg,
            target=self.target,
            ext=self.ext,
            body=self.body,
            json_length=self.json_length,
        )


def vector(
    name: str,
    description: str,
    rule: str,
    *asked: Asked,
    max_body: int = DEFAULT_MAX_BODY,
) -> Vector:
    """Return some requests, and a valid one at the end."""
    everything = [*asked, Asked(LIVE.encode(), 200, "")]
    data = b"".join(one.wire(number) for number, one in enumerate(everything, 1))
    answers = [
        {"request_id": n, "status": one.status, "code": one.code}
        for n, one in enumerate(everything, 1)
    ]
    facts = {
        "kind": "request",
        "description": description,
        "rule": rule,
        "max_body": max_body,
        "answers": answers,
    }
    return Vector("invalid", f"request_{name}", data, facts)


def vectors() -> list[Vector]:
    """Return all vectors of this file."""
    return [*targets(), *documents(), *tensors(), *others()]


def targets() -> list[Vector]:
    """Return targets that do not exist."""

    def bad(name: str, description: str, *raw: bytes) -> Vector:
        asked = [Asked(target, 400, "INVALID_REQUEST") for target in raw]
        return vector(f"target_{name}", description, "target", *asked)

    return [
        bad("without_space", "No space.", b"GET", b"GET/v2"),
        bad(
            "two_spaces",
            "Two spaces, and a space in the path.",
            b"GET  /v2",
            b"GET /v2 ",
            b"GET /v2/models/a b",
        ),
        bad("http_version", "A whole request line.", b"GET /v2 HTTP/1.1"),
        bad("no_method", "No method.", b" /v2", b"/v2"),
        bad(
            "lower_case_method", "Methods are capital letters.", b"get /v2", b"Get /v2"
        ),
        bad("no_path", "Nothing behind the space.", b"GET "),
        bad(
            "no_slash",
            "A path that does not begin with a slash.",
            b"GET v2",
            b"GET ?x=1",
        ),
        bad("with_host", "The form that proxies use.", b"GET http://127.0.0.1/v2"),
        bad("asterisk", "The form that OPTIONS may use in HTTP.", b"OPTIONS *"),
        bad("fragment", "A fragment is the client's own affair.", b"GET /v2#top"),
        bad(
            "not_ascii",
            "UTF-8 that is not percent-encoded.",
            "GET /v2/models/größe".encode(),
        ),
        bad("invalid_utf8", "A byte that UTF-8 does not have.", b"GET /v2/models/\xff"),
        bad(
            "control_character",
            "A tab, a line break, a zero.",
            b"GET /v2\t",
            b"GET /v2\r\nX: y",
            b"GET /v2\0",
        ),
        bad("all_zeros", "1,024 zeros.", bytes(1024)),
        vector(
            "target_unknown",
            "Paths that do not exist.",
            "target",
            Asked(b"GET /nowhere", 404, "NOT_FOUND"),
            Asked(b"GET /v2/models/petals/infer/more", 404, "NOT_FOUND"),
            Asked(b"GET /" + b"a" * 1019, 404, "NOT_FOUND"),
        ),
        vector(
            "target_wrong_method",
            "Paths that exist, with methods that they do not have.",
            "target",
            Asked(b"GET /v2/models/petals/infer", 405, "METHOD_NOT_ALLOWED"),
            Asked(b"DELETE /v2", 405, "METHOD_NOT_ALLOWED"),
            Asked(b"POST /v2/health/live", 405, "METHOD_NOT_ALLOWED"),
        ),
        vector(
            "model_unknown",
            "Models and versions that do not exist; an encoded slash does not leave its segment.",
            "target",
            Asked(b"GET /v2/models/nobody", 404, "MODEL_NOT_FOUND"),
            Asked(b"GET /v2/models/petals/versions/nothing", 404, "VERSION_NOT_FOUND"),
            Asked(b"POST /predictions/nobody", 404, "MODEL_NOT_FOUND", b"[1]"),
        ),
        vector(
            "query",
            "Query parameters that are unknown, given twice, or out of range.",
            "target",
            Asked(RAW + b"?tpo_k=1", 400, "INVALID_PARAMETER", b"[1,2,3]"),
            Asked(RAW + b"?version=a&version=b", 400, "INVALID_PARAMETER", b"[1,2,3]"),
            Asked(RAW + b"?timeout_ms=-1", 400, "INVALID_PARAMETER", b"[1,2,3]"),
            Asked(RAW + b"?timeout_ms=soon", 400, "INVALID_PARAMETER", b"[1,2,3]"),
        ),
    ]


def documents() -> list[Vector]:
    """JSON that is none, or not what a route wants."""

    def bad(
        name: str, description: str, *bodies: bytes, code: str = "MALFORMED_JSON"
    ) -> Vector:
        asked = [Asked(INFER, 400, code, body) for body in bodies]
        return vector(f"json_{name}", description, "bodies", *asked)

    good = b'{"inputs":[{"name":"features","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'
    deep = b'{"inputs":' + b"[" * 100 + b"]" * 100 + b"}"
    return [
        bad("empty", "json_len and body_len are 0: an empty document.", b""),
        bad("broken", "No JSON.", b"hello", b"{", good[:-1], good + b"x"),
        bad("bom", "A byte order mark.", b"\xef\xbb\xbf" + good),
        bad(
            "not_utf8",
            "A byte that UTF-8 does not have.",
            good.replace(b"features", b"\xff"),
        ),
        bad("utf16", "UTF-16.", good.decode().encode("utf-16-le")),
        bad(
            "duplicate_key",
            "A key twice: plainly, in escapes, deeper inside.",
            good[:-1] + b',"inputs":[]}',
            good[:-1] + b',"\\u0069nputs":[]}',
            good.replace(b'"shape"', b'"name":"y","shape"'),
        ),
        bad("too_deep", "101 deep.", deep),
        bad("not_an_object", "An array, a text, nothing.", b"[]", b'"x"', b"null"),
        vector(
            "json_cut_by_json_len",
            "json_len ends within the JSON.",
            "bodies",
            Asked(INFER, 400, "MALFORMED_JSON", good, len(good) - 1),
        ),
        bad(
            "wrong_structure",
            "Objects without inputs, or with inputs of another type.",
            b"{}",
            b'{"inputs":null}',
            b'{"inputs":{}}',
            b'{"inputs":[3]}',
            code="INVALID_REQUEST",
        ),
        bad(
            "id",
            "An id that is no text.",
            good[:-1] + b',"id":7}',
            code="INVALID_REQUEST",
        ),
        bad(
            "half_a_surrogate",
            "A name that is no Unicode text.",
            good.replace(b"features", b"\\ud800"),
            code="INVALID_REQUEST",
        ),
        bad(
            "parameters",
            "Parameters that are not flat.",
            good[:-1] + b',"parameters":{"a":[1]}}',
            good[:-1] + b',"parameters":[]}',
            code="INVALID_PARAMETER",
        ),
    ]


def tensors() -> list[Vector]:
    """Return tensors whose sizes do not match."""

    def infer(item: dict[str, object], raw: bytes = b"") -> tuple[bytes, int]:
        usual = {
            "name": "features",
            "shape": [1, 3],
            "datatype": "FP32",
            "data": [1, 2, 3],
        }
        text = compact(
            {
                "inputs": [
                    {
                        key: value
                        for key, value in (usual | item).items()
                        if value is not ...
                    }
                ]
            }
        )
        return text + raw, len(text)

    def bad(
        name: str,
        description: str,
        *bodies: tuple[bytes, int],
        code: str = "INVALID_TENSOR",
    ) -> Vector:
        asked = [Asked(INFER, 400, code, body, length) for body, length in bodies]
        return vector(f"tensor_{name}", description, "bodies", *asked)

    def raw(size: object, data: bytes, **item: object) -> tuple[bytes, int]:
        return infer(
            {"data": ..., "parameters": {"binary_data_size": size}} | item, data
        )

    twelve = struct.pack("<3f", 1, 2, 3)
    return [
        bad(
            "datatype",
            "No such datatype; names are exact.",
            infer({"datatype": "fp32"}),
            infer({"datatype": "FLOAT"}),
        ),
        bad(
            "shape",
            "Negative, too many elements, no integers.",
            infer({"shape": [-1, 3]}),
            infer({"shape": [2**31, 3]}),
            infer({"shape": [1.0, 3]}),
        ),
        bad("count", "Two elements for a shape of three.", infer({"data": [1, 2]})),
        bad(
            "values",
            "Texts and booleans are no numbers; 1e300 is none of FP32.",
            infer({"data": ["1", 2, 3]}),
            infer({"data": [True, 2, 3]}),
            infer({"data": [1e300, 2, 3]}),
        ),
        bad(
            "integers",
            "Out of range, or with a point: refused, never adjusted.",
            infer({"datatype": "UINT8", "data": [256, 1, 1]}),
            infer({"datatype": "INT8", "data": [-129, 1, 1]}),
            infer({"datatype": "INT32", "data": [1.0, 1, 1]}),
        ),
        bad(
            "size",
            "binary_data_size that does not fit the shape, or is no number.",
            raw(8, bytes(8)),
            raw(13, bytes(13)),
            raw("12", twelve),
            raw(-1, b""),
        ),
        bad("short", "Fewer raw bytes than announced.", raw(12, bytes(11))),
        bad(
            "left_over",
            "A byte behind the last tensor.",
            raw(12, bytes(13)),
            code="INVALID_REQUEST",
        ),
        bad(
            "both",
            "Data and raw bytes.",
            infer({"parameters": {"binary_data_size": 12}}, twelve),
        ),
        bad("neither", "Neither.", infer({"data": ...})),
        bad("bool", "A BOOL of 2.", raw(3, b"\0\1\2", datatype="BOOL")),
        bad(
            "bytes",
            "BYTES whose lengths overrun, or leave something over.",
            raw(12, struct.pack("<3I", 0, 0, 1), datatype="BYTES"),
            raw(13, strings(b"", b"", b"") + b"\0", datatype="BYTES"),
        ),
        bad("half_as_json", "FP16 has no JSON form.", infer({"datatype": "FP16"})),
        bad(
            "raw_body",
            "json_len 0: the body's length must fit the only input.",
            (bytes(13), 0),
        ),
    ]


def others() -> list[Vector]:
    """Extensions, lengths and deadlines."""
    long = bytes(1025)
    return [
        vector(
            "critical_extension",
            "An unknown extension that must be understood.",
            "extensions",
            Asked(
                LIVE.encode(), 501, "NOT_IMPLEMENTED", ext=extensions([(0x83, b"x")])
            ),
            Asked(
                LIVE.encode(),
                501,
                "NOT_IMPLEMENTED",
                ext=extensions([(2, b"a/b"), (0x82, b"")]),
            ),
        ),
        vector(
            "body_too_large",
            "Over the server's max_frame by one byte, with and without broken extensions.",
            "bodies",
            Asked(RAW, 413, "BODY_TOO_LARGE", long, 0),
            Asked(RAW, 413, "BODY_TOO_LARGE", long, ext=b"\1"),
            max_body=1024,
        ),
    ]
