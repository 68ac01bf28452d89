"""Valid frames, at each limit and in each form.

A long file, because it is a table: one entry for each vector.
"""

from __future__ import annotations

import struct

from .wire import (
    MAX_U32,
    Piece,
    Vector,
    compact,
    error_body,
    extensions,
    frames_vector,
    raw_frame,
)

LIVE = "GET /v2/health/live"
GOLDEN_TARGET = "POST /v2/models/m/infer"
GOLDEN_JSON = (
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],'
    b'"parameters":{"binary_data_output":true}}'
)
GOLDEN_ANSWER = (
    b'{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],'
    b'"parameters":{"binary_data_size":8}}]}'
)
TWO_FLOATS = struct.pack("<2f", 1.0, 2.0)
GOLDEN_REQUEST = Piece(
    "REQUEST",
    1,
    5000,
    GOLDEN_TARGET,
    body=GOLDEN_JSON + TWO_FLOATS,
    json_length=len(GOLDEN_JSON),
)
GOLDEN_RESPONSE = Piece(
    "RESPONSE", 1, 200, body=GOLDEN_ANSWER + TWO_FLOATS, json_length=len(GOLDEN_ANSWER)
)
CONTENT_TYPE, RETRY_AFTER = 2, 1


def u32(number: int) -> bytes:
    """Return four bytes, little-endian."""
    return struct.pack("<I", number)


def get(request_id: int, target: str = LIVE, arg: int = 0) -> Piece:
    """Return a REQUEST without a body."""
    return Piece("REQUEST", request_id, arg, target)


def ok(request_id: int, body: bytes = b'{"live":true}') -> Piece:
    """Return a RESPONSE with a JSON body."""
    return Piece("RESPONSE", request_id, 200, body=body)


def failed(
    request_id: int,
    status: int,
    code: str,
    text: str,
    ext: list[tuple[int, bytes]] | None = None,
) -> Piece:
    """Return a RESPONSE with an error."""
    return Piece(
        "RESPONSE", request_id, status, ext=ext or [], body=error_body(text, code)
    )


def vectors() -> list[Vector]:
    """Return all vectors of this file."""
    return [
        *requests(),
        *bodies(),
        *request_extensions(),
        *responses(),
        *parts(),
        *control(),
        *streams(),
        *skipped(),
    ]


def requests() -> list[Vector]:
    """Return REQUESTs whose fields are at their limits."""

    def server(name: str, description: str, *parts: Piece) -> Vector:
        return frames_vector(name, description, "request", "server", list(parts))

    long_target = "GET /" + "a" * (1024 - 5)
    return [
        server(
            "request_infer",
            "An inference request: 134 bytes of JSON, 8 of raw tensor, 5 s left.",
            GOLDEN_REQUEST,
        ),
        server(
            "request_without_body", "A GET: no body, json_len 0, no deadline.", get(1)
        ),
        server(
            "request_id_largest",
            "request_id 2^32-1 is an id like any other: a negative int in Java.",
            get(MAX_U32),
        ),
        server(
            "request_id_sign_bit",
            "request_id 2^31: the first one that Java's int calls negative.",
            get(2**31),
        ),
        server(
            "request_ids_with_gaps",
            "Ids only have to increase, as unsigned numbers, across the sign bit too.",
            *[get(number) for number in (1, 5, 2**31 - 1, 2**31, MAX_U32)],
        ),
        server(
            "request_deadline_largest",
            "2^32-1 ms are left: a negative int in Java.",
            get(1, arg=MAX_U32),
        ),
        server("request_deadline_1", "1 ms is left.", get(1, arg=1)),
        server(
            "request_target_1_byte",
            "The shortest target; that it is no good one is answered with 400.",
            get(1, "G"),
        ),
        server(
            "request_target_1023_bytes",
            "One byte less than the longest target.",
            get(1, long_target[:-1]),
        ),
        server("request_target_1024_bytes", "The longest target.", get(1, long_target)),
        server(
            "request_target_percent_encoded",
            "The target is passed on as it came: decoding is the dispatcher's, so %2F is not a slash of the path.",
            get(1, "GET /v2/models/gr%C3%B6%C3%9Fe%2Fx%20y/versions/1.0"),
        ),
        server(
            "request_target_query",
            "A query string, as in HTTP.",
            Piece(
                "REQUEST",
                1,
                0,
                "POST /predictions/digits?top_k=3&threshold=0.5",
                body=b"\x89PNG\r\n\x1a\n",
                json_length=0,
            ),
        ),
    ]


def bodies() -> list[Vector]:
    """Return REQUESTs with bodies of various lengths."""
    limit = 4096

    def sized(request_id: int, size: int, *, discarded: bool = False) -> Piece:
        target = "POST /predictions/digits"
        return Piece(
            "REQUEST",
            request_id,
            0,
            target,
            body=bytes(size),
            json_length=0,
            discarded=discarded,
        )

    def server(name: str, description: str, *parts: Piece) -> Vector:
        return frames_vector(
            name, description, "bodies", "server", list(parts), max_body=limit
        )

    odd_ext = Piece(
        "REQUEST",
        1,
        0,
        LIVE,
        ext=[(RETRY_AFTER, b"\0")],
        body=bytes(limit + 1),
        discarded=True,
    )
    return [
        server(
            "body_1_below_limit", "One byte less than max_frame.", sized(1, limit - 1)
        ),
        server("body_at_limit", "As long as max_frame.", sized(1, limit)),
        server(
            "body_1_above_limit",
            "Over max_frame by less than 1 MiB: thrown away and answered with 413; the next frame is read as usual.",
            sized(1, limit + 1, discarded=True),
            get(2),
        ),
        server(
            "body_64_kib_above_limit",
            "A body that fills every buffer on the way and is thrown away; a good one follows.",
            sized(1, limit + 65_536, discarded=True),
            sized(2, 16),
        ),
        server(
            "body_discarded_unchecked",
            "A discarded body is not parsed: its extensions are broken.",
            odd_ext,
        ),
        frames_vector(
            "body_json_with_spaces",
            "Spaces behind the JSON count for json_len: they move raw bytes to a multiple of 8.",
            "bodies",
            "server",
            [
                Piece(
                    "REQUEST",
                    1,
                    0,
                    GOLDEN_TARGET,
                    body=GOLDEN_JSON + b"  " + TWO_FLOATS,
                    json_length=len(GOLDEN_JSON) + 2,
                )
            ],
        ),
        frames_vector(
            "body_raw_utf8",
            "A body of raw UTF-8: lengths count bytes, not characters.",
            "bodies",
            "server",
            [
                Piece(
                    "REQUEST",
                    1,
                    0,
                    "POST /predictions/words",
                    body="grüß dich 😀".encode(),
                    json_length=0,
                )
            ],
        ),
        frames_vector(
            "body_looks_like_a_frame",
            "A body of frame marks and headers is a body: nothing is searched for within it.",
            "bodies",
            "server",
            [
                Piece(
                    "REQUEST",
                    1,
                    0,
                    "POST /predictions/words",
                    body=b"OI" * 8 + get(7).wire(),
                    json_length=0,
                ),
                get(2),
            ],
        ),
    ]


def request_extensions() -> list[Vector]:
    """Return REQUESTs with extensions."""

    def server(name: str, description: str, *ext: tuple[int, bytes]) -> Vector:
        piece = Piece(
            "REQUEST",
            1,
            0,
            "POST /predictions/digits",
            ext=list(ext),
            body=b"\xff\xd8\xff",
            json_length=0,
        )
        return frames_vector(name, description, "extensions", "server", [piece])

    return [
        server(
            "ext_content_type", "The body's media type.", (CONTENT_TYPE, b"image/jpeg")
        ),
        server(
            "ext_content_type_1_byte",
            "The shortest content_type.",
            (CONTENT_TYPE, b"x"),
        ),
        server(
            "ext_content_type_128_bytes",
            "The longest content_type.",
            (CONTENT_TYPE, b"a/" + b"b" * 126),
        ),
        server(
            "ext_content_type_spaces",
            "Every printable character may come.",
            (CONTENT_TYPE, b'text/plain; charset="utf-8" ~'),
        ),
        server(
            "ext_unknown",
            "An unknown tag without bit 7 is ignored.",
            (0x7F, b"whatever"),
        ),
        server(
            "ext_unknown_empty",
            "A value may be empty; tag 0 is an unknown one.",
            (0, b""),
        ),
        server(
            "ext_unknown_critical",
            "Bit 7: must be understood. The frame is good, the answer is 501.",
            (0x83, b"x"),
        ),
        server(
            "ext_tag_is_the_whole_byte",
            "0x82 is not tag 2 and not its repetition, but an unknown critical tag.",
            (CONTENT_TYPE, b"image/png"),
            (0x82, b"\0"),
        ),
        server(
            "ext_without_meaning_here",
            "A known tag in a frame where it says nothing is ignored; the order is free.",
            (CONTENT_TYPE, b"image/png"),
            (RETRY_AFTER, u32(5)),
        ),
        server(
            "ext_4095_bytes",
            "One byte less than the longest extensions.",
            (9, bytes(4092)),
        ),
        server("ext_4096_bytes", "The longest extensions.", (9, bytes(4093))),
        server(
            "ext_many",
            "254 unknown extensions of different tags.",
            *[(tag, b"") for tag in range(256) if tag not in (1, 2)],
        ),
    ]


def part(request_id: int, body: bytes) -> Piece:
    """Return a PART with some bytes of an answer."""
    return Piece("PART", request_id, body=body, json_length=0)


def parts() -> list[Vector]:
    """PART frames."""
    limit = 4096
    hello = b'data: {"choices":[{"delta":{"content":"Hello"}}]}\n\n'
    end = Piece(
        "RESPONSE",
        1,
        200,
        ext=[(CONTENT_TYPE, b"text/event-stream")],
        body=b"data: [DONE]\n\n",
        json_length=0,
    )

    def client(
        name: str, description: str, *pieces: Piece, most: int | None = None
    ) -> Vector:
        more = {"max_body": most} if most else {}
        return frames_vector(name, description, "part", "client", list(pieces), **more)

    return [
        client("part", "Some bytes of an answer.", part(1, hello)),
        client("part_empty", "A part may be empty.", part(1, b"")),
        client("part_id_largest", "A part of request 2^32-1.", part(MAX_U32, hello)),
        client(
            "part_at_limit",
            "As long as the client's max_frame.",
            part(1, bytes(limit)),
            most=limit,
        ),
        client(
            "parts_and_response",
            "The answer's body is that of both parts and of the RESPONSE.",
            part(1, hello[:20]),
            part(1, hello[20:]),
            end,
        ),
        client(
            "parts_and_error",
            "The status is not 200, so the answer is incomplete.",
            part(1, hello),
            failed(1, 499, "CANCELLED", "the client cancelled the request"),
        ),
        client(
            "parts_of_two_requests",
            "Parts and responses of other requests may come between parts.",
            part(1, hello),
            part(2, hello),
            ok(3),
            part(1, hello),
            end,
        ),
    ]


def responses() -> list[Vector]:
    """RESPONSE frames."""
    limit = 4096

    def client(
        name: str,
        description: str,
        *parts: Piece,
        rule: str = "response",
        most: int | None = None,
    ) -> Vector:
        return frames_vector(
            name,
            description,
            rule,
            "client",
            list(parts),
            **({"max_body": most} if most else {}),
        )

    def answer(size: int) -> Piece:
        return Piece("RESPONSE", 1, 200, body=bytes(size), json_length=0)

    text = b"# TYPE pocketserve_requests counter\n"
    return [
        client("response_infer", "The answer to request_infer.", GOLDEN_RESPONSE),
        client(
            "response_404",
            "An error is JSON with error and code.",
            failed(1, 404, "MODEL_NOT_FOUND", "unknown model: 'm'"),
        ),
        client(
            "response_429",
            "Full: try again in 250 ms.",
            failed(
                1,
                429,
                "QUEUE_FULL",
                "too many requests under way",
                [(RETRY_AFTER, u32(250))],
            ),
        ),
        client(
            "response_413",
            "Too long a body.",
            failed(1, 413, "BODY_TOO_LARGE", "the body exceeds 67108864 bytes"),
        ),
        client(
            "response_499",
            "What a CANCEL may lead to.",
            failed(1, 499, "CANCELLED", "the caller gave the request up"),
        ),
        client(
            "response_501",
            "An unknown critical extension.",
            failed(1, 501, "NOT_IMPLEMENTED", "unknown extension 0x83"),
        ),
        client(
            "response_504",
            "The deadline passed.",
            failed(1, 504, "DEADLINE_EXCEEDED", "the turn did not come in time"),
        ),
        client("response_status_lowest", "200 is the lowest status.", ok(1)),
        client(
            "response_status_highest",
            "599 is the highest; clients treat an unknown one by its class.",
            Piece("RESPONSE", 1, 599),
        ),
        client("response_without_body", "An empty body.", Piece("RESPONSE", 1, 200)),
        client("response_id_largest", "The answer to request 2^32-1.", ok(MAX_U32)),
        client(
            "response_text",
            "A body that is no JSON says what it is.",
            Piece(
                "RESPONSE",
                1,
                200,
                ext=[(CONTENT_TYPE, b"text/plain; version=0.0.4")],
                body=text,
                json_length=0,
            ),
            rule="extensions",
        ),
        client(
            "response_retry_after_largest",
            "2^32-1 ms: a negative int in Java.",
            failed(
                1,
                503,
                "MODEL_NOT_READY",
                "the model is being loaded",
                [(RETRY_AFTER, u32(MAX_U32))],
            ),
            rule="extensions",
        ),
        client(
            "response_two_extensions",
            "Both known extensions, and an unknown one between them.",
            failed(
                1,
                503,
                "SHUTTING_DOWN",
                "going",
                [
                    (CONTENT_TYPE, b"application/json"),
                    (40, b"?"),
                    (RETRY_AFTER, u32(0)),
                ],
            ),
            rule="extensions",
        ),
        client(
            "response_unknown_critical",
            "A client cannot use this answer and fails this one request; the connection lives.",
            Piece("RESPONSE", 1, 200, ext=[(0x90, b"")], body=b"{}"),
            ok(2),
            rule="extensions",
        ),
        client(
            "responses_out_of_order",
            "Answers come as they are done.",
            ok(3),
            ok(1),
            failed(2, 500, "INTERNAL", "no"),
        ),
        client(
            "response_at_limit",
            "As long as the client's max_frame.",
            answer(limit),
            rule="bodies",
            most=limit,
        ),
        client(
            "response_1_below_limit",
            "One byte less.",
            answer(limit - 1),
            rule="bodies",
            most=limit,
        ),
        client(
            "response_128_kib",
            "Longer than a receive buffer of 64 KiB, nearly 128 KiB in all.",
            Piece("RESPONSE", 1, 200, body=bytes(range(256)) * 500, json_length=0),
            ok(2),
            rule="bodies",
        ),
    ]


def control() -> list[Vector]:
    """CANCEL, PING, PONG, GOAWAY, ERROR."""
    going = error_body("the server is shutting down", "SHUTTING_DOWN")
    found = [
        frames_vector(
            "cancel", "Give request 1 up.", "cancel", "server", [Piece("CANCEL", 1)]
        ),
        frames_vector(
            "cancel_unknown_id",
            "An id that was never used: ignored.",
            "cancel",
            "server",
            [Piece("CANCEL", MAX_U32)],
        ),
        frames_vector(
            "goaway_shutting_down",
            "Request 7 is the last one to be answered.",
            "goaway",
            "client",
            [Piece("GOAWAY", 7, 1, body=going)],
        ),
        frames_vector(
            "goaway_idle",
            "Nothing was asked for too long; no request will be answered.",
            "goaway",
            "client",
            [Piece("GOAWAY", 0, 2, body=error_body("no frame for 300 s", "IDLE"))],
        ),
        frames_vector(
            "goaway_empty",
            "The body may be empty: arg decides.",
            "goaway",
            "client",
            [Piece("GOAWAY", MAX_U32, 1)],
        ),
        frames_vector(
            "goaway_unknown_reason",
            "A reason of a later version.",
            "goaway",
            "client",
            [Piece("GOAWAY", 1, MAX_U32, body=b"{}")],
        ),
        frames_vector(
            "goaway_65536_bytes",
            "The longest body, also for a client whose max_frame is smaller.",
            "goaway",
            "client",
            [Piece("GOAWAY", 1, 1, body=b'{"error":"' + b"x" * (65_536 - 12) + b'"}')],
            max_body=4096,
        ),
        frames_vector(
            "goaway_extension",
            "Extensions are allowed; even a critical one is ignored.",
            "goaway",
            "client",
            [Piece("GOAWAY", 1, 1, ext=[(0x85, b"x")], body=going)],
        ),
        frames_vector(
            "goaway_then_responses",
            "Answers still come after GOAWAY.",
            "goaway",
            "client",
            [Piece("GOAWAY", 2, 1, body=going), ok(2), ok(1)],
        ),
        frames_vector(
            "error_from_client",
            "A client may say why it leaves.",
            "error",
            "server",
            [Piece("ERROR", 0, 13, body=error_body("a bug", "INTERNAL"))],
        ),
        frames_vector(
            "error_not_json",
            "A body that cannot be read is no further fault: arg decides.",
            "error",
            "client",
            [Piece("ERROR", 0, 2, body=b"\xff{")],
        ),
        frames_vector(
            "error_empty", "No body.", "error", "client", [Piece("ERROR", 0, 12)]
        ),
        frames_vector(
            "error_unknown_reason",
            "A reason of a later version is taken like INTERNAL.",
            "error",
            "client",
            [Piece("ERROR", 0, MAX_U32, body=error_body("?", "NEWER"))],
        ),
        frames_vector(
            "error_65536_bytes",
            "The longest body of an ERROR.",
            "error",
            "client",
            [Piece("ERROR", 0, 2, body=b" " * 65_534 + b"{}")],
            max_body=4096,
        ),
    ]
    for number, code in (
        (1, "BAD_MARK"),
        (2, "BAD_FRAME"),
        (5, "BAD_REQUEST_ID"),
        (8, "TIMEOUT"),
        (12, "SLOW_READER"),
    ):
        body = error_body("why the connection ends", code)
        found.append(
            frames_vector(
                f"error_{code.lower()}",
                f"The connection ends: {code}.",
                "error",
                "client",
                [Piece("ERROR", 0, number, body=body)],
            )
        )
    for receiver in ("server", "client"):
        pings = [Piece("PING", 0, 0xDEADBEEF), Piece("PING"), Piece("PING", 0, MAX_U32)]
        pongs = [Piece("PONG", 0, 0xDEADBEEF), Piece("PONG"), Piece("PONG", 0, MAX_U32)]
        found.append(
            frames_vector(
                f"ping_to_{receiver}",
                "Any number may be asked back; both sides may ask.",
                "ping",
                receiver,
                list(pings),
            )
        )
        found.append(
            frames_vector(
                f"pong_to_{receiver}",
                "The answer carries the same number; one that nobody waits for is ignored.",
                "ping",
                receiver,
                list(pongs),
            )
        )
    found.append(frames_vector("ping", "One PING.", "ping", "server", [pings[0]]))
    found.append(frames_vector("pong", "Its PONG.", "ping", "client", [pongs[0]]))
    return found


def streams() -> list[Vector]:
    """Return vectors of several frames in succession."""
    return [
        frames_vector(
            "stream_to_server",
            "Frames of every type that a client sends, without a gap.",
            "life",
            "server",
            [
                get(1),
                GOLDEN_REQUEST_2,
                Piece("CANCEL", 1),
                Piece("PING", 0, 9),
                Piece("PONG", 0, 8),
                get(3),
            ],
        ),
        frames_vector(
            "stream_to_client",
            "Frames of every type that a server sends, without a gap.",
            "life",
            "client",
            [
                ok(1),
                Piece("PONG", 0, 9),
                Piece("PING", 0, 1),
                GOLDEN_RESPONSE,
                Piece("GOAWAY", 3, 2),
                part(3, b"{"),
                ok(3),
                Piece("ERROR", 0, 13),
            ],
        ),
        frames_vector(
            "stream_of_small_frames",
            "One thousand PINGs: 24,000 bytes, no frame of which ends with a receive buffer of a power of two.",
            "ping",
            "server",
            [Piece("PING", 0, number) for number in range(1000)],
        ),
    ]


GOLDEN_REQUEST_2 = Piece(
    "REQUEST",
    2,
    5000,
    GOLDEN_TARGET,
    body=GOLDEN_JSON + TWO_FLOATS,
    json_length=len(GOLDEN_JSON),
)


def skipped() -> list[Vector]:
    """Return frames of unknown types that the receiver skips."""
    odd = raw_frame(
        0xFF,
        request_id=MAX_U32,
        arg=MAX_U32,
        ext=extensions([(0x81, b"")]),
        body=b"[1]xyz",
        json_length=3,
    )
    broken = raw_frame(0x90, ext=b"\1", body=compact({}))
    most = raw_frame(0x80, ext=bytes(4096), body=bytes(65_536), json_length=0)
    return [
        frames_vector(
            "skip_empty",
            "Type 0x80 without anything, between two good frames.",
            "skipping",
            "server",
            [get(1), raw_frame(0x80), get(2)],
        ),
        frames_vector(
            "skip_any_id_and_arg",
            "Type 0xff: request_id, arg and extensions of a skipped frame may be anything.",
            "skipping",
            "server",
            [odd, get(1)],
        ),
        frames_vector(
            "skip_unchecked_extensions",
            "The extensions of a skipped frame are not parsed.",
            "skipping",
            "client",
            [broken, ok(1)],
        ),
        frames_vector(
            "skip_largest",
            "65,536 bytes of body and 4,096 of extensions are passed over, whatever max_frame is.",
            "skipping",
            "client",
            [most, ok(1)],
            max_body=4096,
        ),
        frames_vector(
            "skip_only",
            "Nothing but skipped frames: no frame, no fault.",
            "skipping",
            "server",
            [raw_frame(0x80), odd],
        ),
    ]
