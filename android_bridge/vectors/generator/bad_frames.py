"""Frames that end the connection: each rule of the header, in each state.

A long file, because it is a table: one entry for each vector.
"""

from __future__ import annotations

from typing import Any

from .good_frames import LIVE, get, ok
from .wire import (
    MAX_U32,
    MIB,
    TYPES,
    Piece,
    Vector,
    compact,
    extensions,
    fault_vector,
    raw_frame,
)

BODY = compact({"error": "x", "code": "X"})
OPPOSITE = {
    "HELLO": "server",
    "CHALLENGE": "client",
    "AUTH": "server",
    "READY": "client",
    "REQUEST": "server",
    "RESPONSE": "client",
    "PART": "client",
    "CANCEL": "server",
    "PING": "server",
    "PONG": "client",
    "GOAWAY": "client",
    "ERROR": "client",
}
ONLY_JSON = ("HELLO", "CHALLENGE", "AUTH", "READY", "GOAWAY", "ERROR")


def frame(kind: str, **changes: Any) -> bytes:
    """Return a good frame of a type, with changes."""
    usual: dict[str, Any] = {"body": BODY} if kind in ONLY_JSON else {}
    if kind in ("REQUEST", "RESPONSE", "PART", "CANCEL"):
        usual["request_id"] = 1
    if kind == "REQUEST":
        usual["target"] = LIVE.encode()
    if kind == "RESPONSE":
        usual["arg"] = 200
    return raw_frame(TYPES[kind], **(usual | changes))


def bad(
    name: str,
    description: str,
    code: str,
    kind: str,
    rule: str = "header",
    **changes: Any,
) -> Vector:
    """Return a changed frame for the side that receives its type.

    The receiver is in the state in which the unchanged frame would be valid.
    """
    awaits = kind if kind in ("HELLO", "CHALLENGE", "AUTH", "READY") else None
    return fault_vector(
        name,
        description,
        rule,
        OPPOSITE[kind],
        code,
        frame(kind, **changes),
        awaits=awaits,
    )


def vectors() -> list[Vector]:
    """Return all vectors of this file."""
    return [
        *marks(),
        *types(),
        *fields(),
        *lengths(),
        *ids(),
        *states(),
        *sizes(),
        *tlvs(),
        *order(),
    ]


def marks() -> list[Vector]:
    """Return first bytes that are not a frame."""

    def mark(name: str, description: str, data: bytes, **more: Any) -> Vector:
        return fault_vector(
            f"mark_{name}", description, "mark", "server", "BAD_MARK", data, **more
        )

    def http(name: str, line: bytes) -> Vector:
        text = (
            f"The peer speaks HTTP ({line.split()[0].decode()}); it is told so in HTTP."
        )
        return mark(
            f"http_{name}",
            text,
            line + b"\r\nHost: x\r\n\r\n",
            awaits="HELLO",
            http=True,
        )

    return [
        mark("first_byte", "One byte is enough to see it.", b"N"),
        mark("second_byte", "The first byte is right.", b"OX"),
        mark(
            "swapped",
            "The mark in the other order: a peer that writes big-endian numbers.",
            b"IO" + frame("PING")[2:],
        ),
        mark("zeros", "24 zeros.", bytes(24)),
        mark("lower_case", "oi.", raw_frame(0x30, mark=b"oi")),
        mark(
            "third_frame",
            "Two good frames, then one byte too many: the stream has lost step.",
            get(1).wire() + get(2).wire() + b"\0" + get(3).wire(),
            good=2,
        ),
        mark(
            "tls",
            "A TLS ClientHello.",
            bytes.fromhex("16030100c8010000c40303"),
            awaits="HELLO",
        ),
        mark(
            "http2",
            "The preface of HTTP/2.",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            awaits="HELLO",
        ),
        mark(
            "http_lower_case",
            "Methods are capital letters: this is no HTTP.",
            b"get / HTTP/1.1\r\n\r\n",
            awaits="HELLO",
        ),
        mark(
            "http_without_space",
            "GETX is no method.",
            b"GETX / HTTP/1.1\r\n\r\n",
            awaits="HELLO",
        ),
        mark(
            "http_after_ready",
            "HTTP is only told from noise at the very beginning.",
            b"GET / HTTP/1.1\r\n\r\n",
        ),
        http("get", b"GET / HTTP/1.1"),
        http("post", b"POST /v2/models/m/infer HTTP/1.1"),
        http("put", b"PUT /predictions/m HTTP/1.1"),
        http("head", b"HEAD / HTTP/1.1"),
        http("delete", b"DELETE / HTTP/1.1"),
        http("options", b"OPTIONS * HTTP/1.1"),
        http("patch", b"PATCH / HTTP/1.1"),
        http("connect", b"CONNECT a:443 HTTP/1.1"),
        http("trace", b"TRACE / HTTP/1.1"),
        fault_vector(
            "mark_http_to_client",
            "A client that reached an HTTP server.",
            "mark",
            "client",
            "BAD_MARK",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            awaits="CHALLENGE",
        ),
    ]


def types() -> list[Vector]:
    """Return frames of unknown types that the receiver must refuse."""
    found = []
    for number, receiver in (
        (0x00, "server"),
        (0x05, "server"),
        (0x13, "client"),
        (0x21, "server"),
        (0x32, "client"),
        (0x42, "client"),
        (0x7F, "server"),
    ):
        text = (
            f"Type 0x{number:02x} is not known, and below 0x80 it may not be skipped."
        )
        found.append(
            fault_vector(
                f"type_{number:02x}",
                text,
                "types",
                receiver,
                "UNKNOWN_FRAME",
                raw_frame(number),
            )
        )
    return [
        *found,
        fault_vector(
            "type_05_in_handshake",
            "The same before READY.",
            "types",
            "client",
            "UNKNOWN_FRAME",
            raw_frame(5),
            awaits="READY",
        ),
        fault_vector(
            "type_7f_after_skipped",
            "After a frame that was skipped.",
            "types",
            "server",
            "UNKNOWN_FRAME",
            raw_frame(0x80) + raw_frame(0x7F),
        ),
    ]


def fields() -> list[Vector]:
    """Return frames with invalid flags or arg."""
    found = [
        bad("flags_bit_0", "Bit 0 is reserved.", "BAD_FRAME", "REQUEST", flags=1),
        bad("flags_bit_7", "Bit 7 is reserved.", "BAD_FRAME", "RESPONSE", flags=0x80),
        bad("flags_hello", "In the handshake too.", "BAD_FRAME", "HELLO", flags=2),
        bad("flags_ping", "In a frame without body.", "BAD_FRAME", "PING", flags=0xFF),
        fault_vector(
            "flags_skipped",
            "In a frame that is skipped.",
            "skipping",
            "server",
            "BAD_FRAME",
            raw_frame(0x80, flags=1),
        ),
    ]
    for kind in ("HELLO", "CHALLENGE", "AUTH", "READY", "PART", "CANCEL"):
        found.append(
            bad(
                f"arg_{kind.lower()}",
                f"arg must be 0 in {kind}.",
                "BAD_FRAME",
                kind,
                arg=1,
            )
        )
    for status in (0, 101, 199, 600, 2**31, MAX_U32):
        text = f"{status} is no status."
        found.append(
            bad(
                f"status_{status}",
                text,
                "BAD_FRAME",
                "RESPONSE",
                "response",
                arg=status,
            )
        )
    return found


def lengths() -> list[Vector]:
    """Return lengths that do not match the type or each other."""
    found = [
        bad(
            "target_empty",
            "A REQUEST without a target.",
            "BAD_FRAME",
            "REQUEST",
            target=b"",
        ),
        bad(
            "target_1025",
            "One byte over the longest target.",
            "BAD_FRAME",
            "REQUEST",
            target=b"GET /" + b"a" * 1020,
        ),
        bad(
            "target_65535",
            "The largest number of the field.",
            "BAD_FRAME",
            "REQUEST",
            target_length=65_535,
        ),
        bad(
            "ext_4097",
            "One byte over the longest extensions.",
            "BAD_FRAME",
            "REQUEST",
            ext=extensions([(9, bytes(4094))]),
        ),
        bad(
            "ext_65535",
            "The largest number of the field.",
            "BAD_FRAME",
            "RESPONSE",
            ext_length=65_535,
        ),
        bad(
            "json_over_body",
            "json_len is one over body_len.",
            "BAD_FRAME",
            "REQUEST",
            body=b"{}",
            json_length=3,
        ),
        bad(
            "json_without_body",
            "JSON, but no body.",
            "BAD_FRAME",
            "RESPONSE",
            json_length=1,
        ),
        bad(
            "json_largest",
            "json_len 2^32-1: as a negative int it would be below body_len.",
            "BAD_FRAME",
            "REQUEST",
            body=b"{}",
            json_length=MAX_U32,
        ),
    ]
    for kind in (
        "HELLO",
        "CHALLENGE",
        "AUTH",
        "READY",
        "RESPONSE",
        "PART",
        "CANCEL",
        "PING",
        "PONG",
        "GOAWAY",
        "ERROR",
    ):
        found.append(
            bad(
                f"target_in_{kind.lower()}",
                f"{kind} has no target.",
                "BAD_FRAME",
                kind,
                target=b"x",
            )
        )
    without_extensions = (
        "HELLO",
        "CHALLENGE",
        "AUTH",
        "READY",
        "PART",
        "CANCEL",
        "PING",
        "PONG",
    )
    for kind in without_extensions:
        text = f"{kind} has no extensions."
        found.append(
            bad(
                f"ext_in_{kind.lower()}",
                text,
                "BAD_FRAME",
                kind,
                ext=extensions([(9, b"")]),
            )
        )
    for kind in ("CANCEL", "PING", "PONG"):
        found.append(
            bad(
                f"body_in_{kind.lower()}",
                f"{kind} has no body.",
                "BAD_FRAME",
                kind,
                body=b"{}",
            )
        )
    for kind in ONLY_JSON:
        text = f"The whole body of {kind} is JSON, so json_len must equal body_len."
        found.append(
            bad(
                f"json_short_in_{kind.lower()}",
                text,
                "BAD_FRAME",
                kind,
                json_length=len(BODY) - 1,
            )
        )
    skipped = {
        "target": raw_frame(0x80, target=b"x"),
        "ext_4097": raw_frame(0x80, ext=bytes(4097)),
        "json_over_body": raw_frame(0x80, body=b"{}", json_length=3),
    }
    for name, data in skipped.items():
        text = "Frames that are skipped keep the rules of lengths, too."
        found.append(
            fault_vector(
                f"skipped_{name}", text, "skipping", "client", "BAD_FRAME", data
            )
        )
    for receiver in ("server", "client"):
        awaits = "AUTH" if receiver == "server" else "READY"
        data = frame("ERROR", ext=extensions([(9, b"")]))
        text = "Before READY an ERROR has no extensions either."
        found.append(
            fault_vector(
                f"ext_in_error_before_ready_{receiver}",
                text,
                "handshake",
                receiver,
                "BAD_FRAME",
                data,
                awaits=awaits,
            )
        )
    return found


def ids() -> list[Vector]:
    """request_id where it must be, must not be, or must increase."""
    found = []
    for kind in ("REQUEST", "RESPONSE", "PART", "CANCEL"):
        text = f"{kind} belongs to a request."
        found.append(
            bad(
                f"id_0_in_{kind.lower()}",
                text,
                "BAD_REQUEST_ID",
                kind,
                "request",
                request_id=0,
            )
        )
    for kind in ("HELLO", "CHALLENGE", "AUTH", "READY", "PING", "PONG", "ERROR"):
        text = f"{kind} belongs to the connection."
        found.append(
            bad(f"id_in_{kind.lower()}", text, "BAD_REQUEST_ID", kind, request_id=1)
        )

    def rows(name: str, description: str, *numbers: int) -> Vector:
        data = b"".join(get(number).wire() for number in numbers)
        good = len(numbers) - 1
        return fault_vector(
            f"id_{name}",
            description,
            "request",
            "server",
            "BAD_REQUEST_ID",
            data,
            good=good,
        )

    long = Piece("REQUEST", 4, 0, LIVE, body=bytes(4097), json_length=0).wire()
    return [
        *found,
        rows("repeated", "The same id again.", 1, 1),
        rows("decreasing", "5, then 4.", 5, 4),
        rows(
            "after_largest",
            "2^32-1 is the last one: a new connection is needed.",
            MAX_U32,
            1,
        ),
        rows("largest_repeated", "As signed numbers, -1 again.", MAX_U32, MAX_U32),
        rows(
            "decreasing_across_sign",
            "2^31, then 2^31-1: signed numbers would increase.",
            2**31,
            2**31 - 1,
        ),
        rows("gap_then_back", "Gaps may not be filled later.", 1, 3, 2),
        fault_vector(
            "id_of_discarded_repeated",
            "A request that was thrown away has used its id.",
            "request",
            "server",
            "BAD_REQUEST_ID",
            long + get(4).wire(),
            good=1,
            max_body=4096,
        ),
    ]


def states() -> list[Vector]:
    """Return valid frames at the wrong time or from the wrong side."""
    found = []

    def wrong(receiver: str, awaits: str | None, *kinds: str) -> None:
        for kind in kinds:
            when = f"while {awaits} is awaited" if awaits else "after READY"
            name = f"unexpected_{kind.lower()}_{'awaiting_' + awaits.lower() if awaits else 'to_' + receiver}"
            text = f"{kind} may not come to a {receiver} {when}."
            found.append(
                fault_vector(
                    name,
                    text,
                    "life",
                    receiver,
                    "UNEXPECTED_FRAME",
                    frame(kind),
                    awaits=awaits,
                )
            )

    wrong(
        "server",
        "HELLO",
        "CHALLENGE",
        "AUTH",
        "REQUEST",
        "CANCEL",
        "PING",
        "PONG",
        "GOAWAY",
    )
    wrong("server", "AUTH", "HELLO", "READY", "REQUEST", "RESPONSE", "PING")
    wrong("client", "CHALLENGE", "HELLO", "READY", "RESPONSE", "PING", "GOAWAY")
    wrong("client", "READY", "CHALLENGE", "AUTH", "RESPONSE", "PART", "PONG", "GOAWAY")
    wrong("server", None, "HELLO", "CHALLENGE", "AUTH", "READY", "RESPONSE", "GOAWAY")
    wrong("server", None, "PART")
    wrong("client", None, "HELLO", "CHALLENGE", "AUTH", "READY", "REQUEST", "CANCEL")
    for receiver, awaits in (("server", "HELLO"), ("client", "READY")):
        text = "Before READY nothing is skipped."
        found.append(
            fault_vector(
                f"skipped_awaiting_{awaits.lower()}",
                text,
                "skipping",
                receiver,
                "UNEXPECTED_FRAME",
                raw_frame(0x80),
                awaits=awaits,
            )
        )
    data = get(1).wire() + ok(1).wire()
    return [
        *found,
        fault_vector(
            "unexpected_response_after_request",
            "An echo: the client's own request, then an answer.",
            "life",
            "server",
            "UNEXPECTED_FRAME",
            data,
            good=1,
        ),
    ]


def sizes() -> list[Vector]:
    """Return bodies over a limit, which the header already shows."""

    def large(
        name: str, description: str, receiver: str, data: bytes, **more: Any
    ) -> Vector:
        return fault_vector(
            f"too_large_{name}",
            description,
            "limits",
            receiver,
            "FRAME_TOO_LARGE",
            data,
            **more,
        )

    over = {"json_length": 0}
    hello = frame("HELLO", body=BODY + b" " * (4073 - len(BODY)))
    return [
        large(
            "request",
            "One byte more than 1 MiB over max_frame: it is rejected unread.",
            "server",
            frame("REQUEST", body_length=4096 + MIB + 1, **over),
            max_body=4096,
        ),
        large(
            "request_largest",
            "2^32-1 bytes: a negative int in Java.",
            "server",
            frame("REQUEST", body_length=MAX_U32, **over),
        ),
        large(
            "request_default",
            "The same at the default limit of 64 MiB.",
            "server",
            frame("REQUEST", body_length=65 * MIB + 1, **over),
        ),
        large(
            "response",
            "One byte over the limit that the client sent: the server is broken.",
            "client",
            frame("RESPONSE", body_length=4097, **over),
            max_body=4096,
        ),
        large(
            "response_sign_bit",
            "2^31 bytes.",
            "client",
            frame("RESPONSE", body_length=2**31, json_length=2**31),
        ),
        large(
            "part",
            "A part keeps the client's limit, too.",
            "client",
            frame("PART", body_length=4097, **over),
            max_body=4096,
        ),
        large("hello", "4,097 bytes with the header.", "server", hello, awaits="HELLO"),
        large(
            "auth_announced",
            "An unauthenticated client announces 64 MiB; no memory is reserved.",
            "server",
            frame("AUTH", body=b"", body_length=64 * MIB, json_length=64 * MIB),
            awaits="AUTH",
        ),
        large(
            "ready",
            "The same towards the client.",
            "client",
            frame("READY", body=b"", body_length=4073, json_length=4073),
            awaits="READY",
        ),
        large(
            "error_before_ready_to_server",
            "Before READY an ERROR is a frame of the handshake.",
            "server",
            frame("ERROR", body=b" " * 4073),
            awaits="HELLO",
        ),
        large(
            "error_before_ready_to_client",
            "The same towards the client.",
            "client",
            frame("ERROR", body=b" " * 4073),
            awaits="CHALLENGE",
        ),
        large(
            "goaway",
            "65,537 bytes.",
            "client",
            frame("GOAWAY", body=b"", body_length=65_537, json_length=65_537),
        ),
        large(
            "error",
            "65,537 bytes.",
            "client",
            frame("ERROR", body=b"", body_length=65_537, json_length=65_537),
        ),
        large(
            "skipped",
            "65,537 bytes of an unknown type.",
            "server",
            raw_frame(0x80, body_length=65_537, json_length=0),
        ),
    ]


def tlvs() -> list[Vector]:
    """Return broken extensions: they are read once the frame is complete."""
    cases = {
        "one_byte": ("A tag without a length.", b"\x09"),
        "two_bytes": ("Half a length.", b"\x09\x00"),
        "second_cut": (
            "A good one, then half of another.",
            extensions([(9, b"x")]) + b"\x0a\x01",
        ),
        "value_overruns": ("The value is one byte short.", b"\x09\x02\x00x"),
        "value_largest": (
            "A value of 65,535 bytes that is not there.",
            b"\x09\xff\xff",
        ),
        "value_reaches_into_body": (
            "The value would end in the body.",
            b"\x09\x04\x00x",
        ),
        "tag_twice": (
            "A known tag twice, with the same value.",
            extensions([(2, b"a/b"), (2, b"a/b")]),
        ),
        "unknown_tag_twice": (
            "An unknown tag twice.",
            extensions([(9, b""), (8, b""), (9, b"x")]),
        ),
        "critical_tag_twice": (
            "An unknown critical tag twice: broken comes before unknown.",
            extensions([(0x89, b""), (0x89, b"")]),
        ),
        "retry_after_3_bytes": (
            "A number of three bytes.",
            extensions([(1, bytes(3))]),
        ),
        "retry_after_5_bytes": ("A number of five bytes.", extensions([(1, bytes(5))])),
        "retry_after_empty": ("No number.", extensions([(1, b"")])),
        "content_type_empty": ("No media type.", extensions([(2, b"")])),
        "content_type_129": ("One byte too long.", extensions([(2, b"a" * 129)])),
        "content_type_not_ascii": (
            "A byte beyond ASCII.",
            extensions([(2, b"text/\xe9")]),
        ),
        "content_type_line_break": (
            "A line break, which would split a header of HTTP.",
            extensions([(2, b"a/b\r\nX: y")]),
        ),
        "content_type_delete": (
            "The character 7f does not print.",
            extensions([(2, b"a\x7f")]),
        ),
    }
    found = []
    for name, (text, ext) in cases.items():
        data = frame("REQUEST", ext=ext, body=b"{}")
        found.append(
            fault_vector(
                f"tlv_{name}",
                text,
                "extensions",
                "server",
                "BAD_FRAME",
                data,
                needs_all=True,
            )
        )
    for kind in ("RESPONSE", "GOAWAY", "ERROR"):
        data = frame(kind, ext=b"\x09\x05\x00abc")
        text = f"Broken extensions in {kind}."
        found.append(
            fault_vector(
                f"tlv_in_{kind.lower()}",
                text,
                "extensions",
                "client",
                "BAD_FRAME",
                data,
                needs_all=True,
            )
        )
    return found


def order() -> list[Vector]:
    """Return frames with two faults: the first check gives the code."""

    def first(
        name: str, description: str, code: str, receiver: str, data: bytes, **more: Any
    ) -> Vector:
        return fault_vector(
            f"order_{name}",
            description,
            "order-of-checks",
            receiver,
            code,
            data,
            **more,
        )

    return [
        first(
            "mark_type",
            "Mark before type.",
            "BAD_MARK",
            "server",
            raw_frame(0x7F, mark=b"OJ"),
        ),
        first(
            "type_flags",
            "Type before flags.",
            "UNKNOWN_FRAME",
            "server",
            raw_frame(0x7F, flags=1),
        ),
        first(
            "flags_id",
            "Flags before request_id.",
            "BAD_FRAME",
            "server",
            frame("REQUEST", flags=1, request_id=0),
        ),
        first(
            "id_arg",
            "request_id before arg.",
            "BAD_REQUEST_ID",
            "server",
            frame("CANCEL", request_id=0, arg=1),
        ),
        first(
            "id_target",
            "request_id before target_len.",
            "BAD_REQUEST_ID",
            "server",
            frame("PING", request_id=1, target=b"x"),
        ),
        first(
            "target_size",
            "target_len before the size.",
            "BAD_FRAME",
            "server",
            frame(
                "REQUEST",
                target_length=0,
                target=b"",
                body_length=MAX_U32,
                json_length=0,
            ),
        ),
        first(
            "json_size",
            "json_len before the size.",
            "BAD_FRAME",
            "client",
            frame("GOAWAY", body=b"", json_length=0, body_length=65_537),
        ),
        first(
            "lengths_state",
            "Lengths before the state.",
            "BAD_FRAME",
            "server",
            frame("RESPONSE", target=b"x"),
        ),
        first(
            "size_state",
            "The size of a notice before the state.",
            "FRAME_TOO_LARGE",
            "server",
            frame("GOAWAY", body=b"", json_length=65_537, body_length=65_537),
        ),
        first(
            "id_state",
            "request_id before the state.",
            "BAD_REQUEST_ID",
            "client",
            frame("REQUEST", request_id=0),
        ),
        first(
            "state_size",
            "The state before the size of the body.",
            "UNEXPECTED_FRAME",
            "server",
            frame("REQUEST", body_length=MAX_U32, json_length=0),
            awaits="HELLO",
        ),
        first(
            "increasing_size",
            "Increasing ids before the size of the body.",
            "BAD_REQUEST_ID",
            "server",
            get(2).wire() + frame("REQUEST", body_length=MAX_U32, json_length=0),
            good=1,
        ),
        first(
            "size_extensions",
            "The size before the extensions.",
            "FRAME_TOO_LARGE",
            "server",
            frame("REQUEST", ext=b"\x01", body_length=MAX_U32, json_length=0),
        ),
        first(
            "skipped_size_state",
            "Also for skipped types: the size before the state.",
            "FRAME_TOO_LARGE",
            "server",
            raw_frame(0x80, body_length=65_537, json_length=0),
            awaits="HELLO",
        ),
        first(
            "handshake_ext_size",
            "In the handshake: extensions before the size.",
            "BAD_FRAME",
            "server",
            frame("ERROR", ext=b"\x01", body=b" " * 4073),
            awaits="AUTH",
        ),
    ]
