"""Handshakes with fixed keys and nonces: valid ones, and each fault.

A long file, because it is a table: one entry for each vector.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import Any

from .wire import (
    DEFAULT_MAX_BODY,
    MAX_U32,
    REASONS,
    Piece,
    Vector,
    compact,
    error_body,
    frames_vector,
)

KEY = bytes(range(32))
TOKEN = b"0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"
CLIENT_NONCE, SERVER_NONCE = "c0" * 16, "5e" * 16
LIMITS = {
    "max_frame": 67_108_864,
    "max_inflight": 32,
    "max_bytes_inflight": 134_217_728,
    "idle_ms": 300_000,
    "server": "pocketserve/0.1.0",
}
OFFER: dict[str, Any] = {
    "v": [1, 1],
    "nonce": CLIENT_NONCE,
    "max_frame": DEFAULT_MAX_BODY,
}
CHOICE: dict[str, Any] = {"v": 1, "nonce": SERVER_NONCE, "auth": "hmac-sha256"}
ORDER = ("HELLO", "CHALLENGE", "AUTH", "READY")


def prove(key: bytes, side: str, transcript: bytes) -> str:
    """Return the proof of ``client`` or ``server``."""
    return hmac.new(
        key, b"OI1 " + side.encode() + b"\0" + transcript, hashlib.sha256
    ).hexdigest()


@dataclass
class Talk:
    """The bodies of a handshake's frames; each that is not given follows from the others.

    Attributes:
        server_key, client_key: None where that side has none.
    """

    server_key: bytes | None = KEY
    client_key: bytes | None = KEY
    hello: bytes = compact(OFFER)
    challenge: bytes | None = None
    auth: bytes | None = None
    ready: bytes | None = None
    limits: dict[str, Any] = field(default_factory=lambda: dict(LIMITS))
    client_name: str = ""
    client_parts: bool = False
    client_max_frame: int = DEFAULT_MAX_BODY

    def bodies(self) -> dict[str, bytes]:
        """Return the four bodies."""
        choice = CHOICE if self.server_key is not None else CHOICE | {"auth": "none"}
        challenge = compact(choice) if self.challenge is None else self.challenge
        proof = {} if self.client_key is None else {"proof": self.proofs(challenge)[0]}
        answer = {} if self.server_key is None else {"proof": self.proofs(challenge)[1]}
        return {
            "HELLO": self.hello,
            "CHALLENGE": challenge,
            "AUTH": compact(proof) if self.auth is None else self.auth,
            "READY": compact(answer | self.limits)
            if self.ready is None
            else self.ready,
        }

    def transcript(self, challenge: bytes) -> bytes:
        """SHA-256 of the first two frames."""
        frames = (
            Piece("HELLO", body=self.hello).wire()
            + Piece("CHALLENGE", body=challenge).wire()
        )
        return hashlib.sha256(frames).digest()

    def proofs(self, challenge: bytes) -> tuple[str, str]:
        """Return the proofs of client and server, each with its own key."""
        hashed = self.transcript(challenge)
        return prove(self.client_key or b"", "client", hashed), prove(
            self.server_key or b"", "server", hashed
        )

    def document(
        self, description: str, rule: str, until: str = "READY"
    ) -> tuple[bytes, dict[str, Any]]:
        """Return the content of NAME.bin and NAME.json up to one of the frames."""
        bodies = self.bodies()
        frames = {
            name: Piece(name, body=bodies[name]).wire()
            for name in ORDER[: ORDER.index(until) + 1]
        }
        facts: dict[str, Any] = {
            "kind": "handshake",
            "description": description,
            "rule": rule,
            "server_key": None if self.server_key is None else self.server_key.hex(),
            "client_key": None if self.client_key is None else self.client_key.hex(),
            "client_nonce": CLIENT_NONCE,
            "server_nonce": SERVER_NONCE,
            "client_max_frame": self.client_max_frame,
            "client_name": self.client_name,
            "limits": self.limits,
        }
        if self.client_parts:
            facts["client_parts"] = True
        facts |= {name.lower(): data.hex() for name, data in frames.items()}
        if until != "HELLO":
            facts["transcript"] = self.transcript(bodies["CHALLENGE"]).hex()
            client, server = self.proofs(bodies["CHALLENGE"])
            facts |= {"client_proof": client} if self.client_key is not None else {}
            facts |= {"server_proof": server} if self.server_key is not None else {}
        return b"".join(frames.values()), facts


def good(
    name: str,
    description: str,
    talk: Talk,
    *,
    exact: bool = True,
    rule: str = "handshake",
) -> Vector:
    """Return a handshake that both sides accept."""
    data, facts = talk.document(description, rule)
    return Vector("valid", f"handshake_{name}", data, facts | {"byte_exact": exact})


def refused(
    name: str,
    description: str,
    talk: Talk,
    frame: str,
    code: str,
    *,
    rule: str = "handshake",
) -> Vector:
    """Return a handshake with one frame that is refused."""
    data, facts = talk.document(description, rule, frame)
    side = "server" if frame in ("HELLO", "AUTH") else "client"
    facts |= {
        "byte_exact": False,
        "refused_by": side,
        "refused_frame": frame,
        "code": code,
        "reason": REASONS[code],
    }
    return Vector("invalid", f"handshake_{frame.lower()}_{name}", data, facts)


def leniently(vector: Vector) -> Vector:
    """Mark what a client may also accept.

    Which of two members with one name counts depends on its JSON parser.
    """
    return replace(vector, document=vector.document | {"client_may_accept": True})


def vectors() -> list[Vector]:
    """Return all vectors of this file."""
    return [
        *accepted(),
        *single_frames(),
        *bad_hellos(),
        *bad_challenges(),
        *bad_auths(),
        *bad_readies(),
    ]


def accepted() -> list[Vector]:
    """Return handshakes that succeed."""
    open_talk = Talk(server_key=None, client_key=None)
    largest = {
        "max_frame": MAX_U32,
        "max_inflight": MAX_U32,
        "max_bytes_inflight": MAX_U32,
        "idle_ms": MAX_U32,
        "server": "s",
    }
    least = {
        "max_frame": 1,
        "max_inflight": 1,
        "max_bytes_inflight": 1,
        "idle_ms": 1,
        "server": "",
    }
    spelt = f'{{ "nonce" : "{CLIENT_NONCE}",\n\t"\\u0076":[1 , 1],"max_frame": 67108864 }}\r\n'.encode()
    stranger = Talk(
        hello=compact(
            OFFER | {"lang": {"deep": [1, None, True, "gr\u00fc\u00df"]}, "client": 7}
        )
    )
    deepest = compact(OFFER)[:-1] + b',"more":' + b"[" * 99 + b"]" * 99 + b"}"
    ranged = Talk(hello=compact(OFFER | {"v": [0, MAX_U32]}))
    with_more = Talk(challenge=compact(CHOICE | {"hint": "new"}))
    chatty = replace(
        with_more,
        ready=compact(
            {
                "proof": with_more.proofs(with_more.challenge or b"")[1],
                **LIMITS,
                "color": "red",
            }
        ),
    )
    return [
        good(
            "golden",
            "The worked example of the document: a key of the bytes 0 to 31.",
            Talk(),
        ),
        good(
            "token",
            "The key is the token's text in ASCII, not what its digits stand for.",
            Talk(TOKEN, TOKEN),
        ),
        good(
            "without_token",
            "A server with --no-auth and a client without a token: no proofs.",
            open_talk,
        ),
        good(
            "with_name",
            "The client says what it is.",
            Talk(
                hello=compact(OFFER | {"client": "camera/2.1"}),
                client_name="camera/2.1",
            ),
        ),
        good(
            "with_parts",
            "The client accepts PART frames.",
            Talk(hello=compact(OFFER | {"parts": True}), client_parts=True),
        ),
        good(
            "parts_other_values",
            "Only true offers PART frames; any other value is ignored.",
            Talk(hello=compact(OFFER | {"parts": 1})),
            exact=False,
        ),
        good(
            "largest_limits",
            "Limits of 2^32-1: in Java they do not fit an int.",
            Talk(limits=largest),
        ),
        good("least_limits", "Limits of 1.", Talk(limits=least)),
        good(
            "least_max_frame",
            "The smallest max_frame of a client.",
            Talk(hello=compact(OFFER | {"max_frame": 4096}), client_max_frame=4096),
        ),
        good(
            "largest_max_frame",
            "The largest.",
            Talk(
                hello=compact(OFFER | {"max_frame": MAX_U32}), client_max_frame=MAX_U32
            ),
        ),
        good(
            "spaces_and_order",
            "Spaces, another order, an escaped key: the proofs are over the bytes as sent.",
            Talk(hello=spelt),
            exact=False,
        ),
        good(
            "unknown_members",
            "Members that are not known are ignored, whatever they hold; client is only a hint.",
            stranger,
            exact=False,
        ),
        good(
            "deepest",
            "JSON may be 100 deep: the object, and 99 arrays in it.",
            Talk(hello=deepest),
            exact=False,
        ),
        good(
            "unknown_members_of_server",
            "The same in the server's frames.",
            chatty,
            exact=False,
        ),
        good(
            "range_of_versions",
            "Version 1 lies within what the client offers.",
            ranged,
            exact=False,
            rule="versions",
        ),
    ]


def single_frames() -> list[Vector]:
    """Return the frames of the handshake for the decoder alone."""
    talk = Talk()
    bodies = talk.bodies()
    most = compact(OFFER) + b" " * (4072 - len(compact(OFFER)))
    version = error_body(
        "this server speaks version 1 only, not 2 to 3", "UNSUPPORTED_VERSION", v=[1, 1]
    )
    receivers = {
        "HELLO": "server",
        "CHALLENGE": "client",
        "AUTH": "server",
        "READY": "client",
    }

    def one(
        name: str, description: str, awaits: str, piece: Piece, rule: str = "handshake"
    ) -> Vector:
        return frames_vector(
            name, description, rule, receivers[awaits], [piece], awaits=awaits
        )

    found = [
        one(
            name.lower(),
            f"{name} of the worked example.",
            name,
            Piece(name, body=bodies[name]),
        )
        for name in ORDER
    ]
    return [
        *found,
        one(
            "hello_4096_bytes",
            "The longest frame of a handshake: 4,096 bytes with its header.",
            "HELLO",
            Piece("HELLO", body=most),
        ),
        one(
            "challenge_4096_bytes",
            "The same towards the client.",
            "CHALLENGE",
            Piece("CHALLENGE", body=most),
        ),
        one(
            "hello_empty",
            "The frame is good; its empty body is refused when it is read.",
            "HELLO",
            Piece("HELLO"),
        ),
        one(
            "error_unsupported_version",
            "What the server speaks instead.",
            "CHALLENGE",
            Piece("ERROR", 0, 7, body=version),
            "versions",
        ),
        one(
            "error_unauthorized",
            "A wrong proof.",
            "READY",
            Piece("ERROR", 0, 6, body=error_body("wrong proof", "UNAUTHORIZED")),
        ),
        one(
            "error_too_many_connections",
            "Instead of CHALLENGE.",
            "CHALLENGE",
            Piece("ERROR", 0, 10, body=error_body("full", "TOO_MANY_CONNECTIONS")),
        ),
        one(
            "error_of_client_in_handshake",
            "A client that got a wrong CHALLENGE may say so.",
            "AUTH",
            Piece("ERROR", 0, 6, body=error_body("not my server", "UNAUTHORIZED")),
        ),
        one(
            "error_4096_bytes_in_handshake",
            "The longest ERROR before READY.",
            "READY",
            Piece("ERROR", 0, 6, body=b" " * 4070 + b"{}"),
        ),
    ]


def bad_hellos() -> list[Vector]:
    """Return handshakes whose first frame the server refuses."""

    def bad(
        name: str,
        description: str,
        body: bytes | dict[str, Any],
        code: str = "BAD_HANDSHAKE",
    ) -> Vector:
        content = body if isinstance(body, bytes) else compact(OFFER | body)
        rule = "versions" if code == "UNSUPPORTED_VERSION" else "handshake-json"
        return refused(name, description, Talk(hello=content), "HELLO", code, rule=rule)

    plain = compact(OFFER)

    def without(member: str) -> bytes:
        return compact({key: value for key, value in OFFER.items() if key != member})

    def also(text: str) -> bytes:
        return plain[:-1] + b"," + text.encode() + b"}"

    return [
        bad("empty", "No JSON at all.", b""),
        bad("not_json", "Text.", b"hello"),
        bad("array", "An array instead of an object.", b"[" + plain + b"]"),
        bad("bom", "A byte order mark.", b"\xef\xbb\xbf" + plain),
        bad(
            "not_utf8",
            "A byte that UTF-8 does not have.",
            plain.replace(b"}", b',"client":"\xff"}'),
        ),
        bad("utf16", "UTF-16.", plain.decode().encode("utf-16-le")),
        bad("cut", "The closing brace is missing.", plain[:-1]),
        bad("trailing_text", "Something behind the object.", plain + b"x"),
        bad("two_objects", "Two objects.", plain + plain),
        bad(
            "trailing_comma",
            "A comma before the closing brace, which some parsers let pass.",
            plain[:-1] + b",}",
        ),
        bad(
            "single_quotes",
            "Single quotes, which some parsers let pass.",
            plain.replace(b'"', b"'"),
        ),
        bad(
            "unquoted_key",
            "A key without quotes, which some parsers let pass.",
            plain.replace(b'"v"', b"v"),
        ),
        bad("comment", "A comment, which some parsers let pass.", b"/* hi */" + plain),
        bad(
            "control_character", "A raw line break in a text.", also('"client":"a\nb"')
        ),
        bad("duplicate_key", "A key twice, with the same value.", also('"v":[1,1]')),
        bad(
            "duplicate_key_escaped",
            "The same key twice, once in escapes.",
            also('"\\u0076":[1,1]'),
        ),
        bad(
            "duplicate_key_nested",
            "A key twice in an object that nobody reads.",
            also('"more":{"a":1,"a":2}'),
        ),
        bad(
            "too_deep",
            "Arrays within arrays, 101 deep with the object around them.",
            also('"more":' + "[" * 100 + "]" * 100),
        ),
        bad("v_missing", "No range of versions.", without("v")),
        bad("v_number", "A number instead of a range.", {"v": 1}),
        bad("v_one_number", "A range of one number.", {"v": [1]}),
        bad("v_three_numbers", "A range of three numbers.", {"v": [1, 1, 1]}),
        bad("v_reversed", "The higher one first.", {"v": [2, 1]}),
        bad("v_texts", "Texts.", {"v": ["1", "1"]}),
        bad("v_floats", "1.0 is no version.", {"v": [1.0, 1.0]}),
        bad("v_booleans", "true is no version.", {"v": [True, True]}),
        bad("v_negative", "Below 0.", {"v": [-1, 1]}),
        bad("v_too_large", "Above 2^32-1.", {"v": [1, 2**32]}),
        bad("v_null", "null.", {"v": None}),
        bad("v_newer", "Versions 2 to 3 only.", {"v": [2, 3]}, "UNSUPPORTED_VERSION"),
        bad("v_older", "Version 0 only.", {"v": [0, 0]}, "UNSUPPORTED_VERSION"),
        bad(
            "v_newer_otherwise_unreadable",
            "The version is judged first: a later one may have other members.",
            b'{"v":[2,2]}',
            "UNSUPPORTED_VERSION",
        ),
        bad("nonce_missing", "No nonce.", without("nonce")),
        bad("nonce_short", "31 digits.", {"nonce": "c" * 31}),
        bad("nonce_long", "33 digits.", {"nonce": "c" * 33}),
        bad("nonce_empty", "No digits.", {"nonce": ""}),
        bad("nonce_upper_case", "Capital letters.", {"nonce": "C0" * 16}),
        bad("nonce_not_hex", "A letter that is no digit.", {"nonce": "g0" * 16}),
        bad(
            "nonce_line_break",
            "A line break behind 32 digits, which a careless pattern lets pass.",
            {"nonce": CLIENT_NONCE + "\n"},
        ),
        bad(
            "nonce_other_digits", "Digits of another script.", {"nonce": "\u0660" * 32}
        ),
        bad("nonce_number", "A number.", {"nonce": 10**31}),
        bad("max_frame_missing", "No max_frame.", without("max_frame")),
        bad("max_frame_4095", "One below the least.", {"max_frame": 4095}),
        bad("max_frame_0", "0.", {"max_frame": 0}),
        bad(
            "max_frame_negative",
            "-1, which a careless reader takes for 2^32-1.",
            {"max_frame": -1},
        ),
        bad("max_frame_too_large", "2^32.", {"max_frame": 2**32}),
        bad("max_frame_float", "A number with a point.", {"max_frame": 67108864.0}),
        bad("max_frame_text", "A text.", {"max_frame": "67108864"}),
        bad("max_frame_true", "true.", {"max_frame": True}),
        bad(
            "max_frame_exponent",
            "1e6 is no whole number here.",
            plain.replace(b"67108864", b"1e6"),
        ),
        bad(
            "max_frame_leading_zero",
            "A leading zero is no JSON.",
            plain.replace(b"67108864", b"067108864"),
        ),
    ]


def bad_challenges() -> list[Vector]:
    """Return handshakes that the client refuses before it sends its proof."""

    def bad(
        name: str,
        description: str,
        change: bytes | dict[str, Any],
        code: str = "BAD_HANDSHAKE",
        **talk: Any,
    ) -> Vector:
        content = change if isinstance(change, bytes) else compact(CHOICE | change)
        rule = {"UNAUTHORIZED": "downgrade", "UNSUPPORTED_VERSION": "versions"}.get(
            code, "handshake-json"
        )
        return refused(
            name,
            description,
            Talk(challenge=content, **talk),
            "CHALLENGE",
            code,
            rule=rule,
        )

    def without(member: str) -> bytes:
        return compact({key: value for key, value in CHOICE.items() if key != member})

    downgrade = compact(CHOICE)[:-1] + b',"auth":"none"}'
    return [
        bad("empty", "No JSON.", b""),
        bad("array", "An array.", b"[]"),
        bad(
            "downgrade",
            "The server wants no token, but the client has one: another program has the port.",
            {"auth": "none"},
            "UNAUTHORIZED",
        ),
        leniently(
            bad("downgrade_duplicate", "Both kinds of auth under one key.", downgrade)
        ),
        bad(
            "token_needed",
            "A token is asked for that the client lacks.",
            {},
            "UNAUTHORIZED",
            client_key=None,
        ),
        bad("auth_missing", "No auth.", without("auth")),
        bad(
            "auth_unknown",
            "A kind of auth that was never agreed on.",
            {"auth": "hmac-md5"},
        ),
        bad("auth_upper_case", "Names are exact.", {"auth": "HMAC-SHA256"}),
        bad("auth_list", "A list.", {"auth": ["hmac-sha256"]}),
        bad(
            "v_newer",
            "A version that was not offered.",
            {"v": 2},
            "UNSUPPORTED_VERSION",
        ),
        bad("v_0", "Another one.", {"v": 0}, "UNSUPPORTED_VERSION"),
        bad("v_missing", "No version.", without("v")),
        bad("v_text", "A text.", {"v": "1"}),
        bad("v_range", "A range, as in HELLO.", {"v": [1, 1]}),
        bad("nonce_missing", "No nonce.", without("nonce")),
        bad("nonce_short", "30 digits.", {"nonce": "5e" * 15}),
        bad("nonce_upper_case", "Capital letters.", {"nonce": "5E" * 16}),
    ]


def bad_auths() -> list[Vector]:
    """Return client proofs that the server refuses."""
    hashed = Talk().transcript(compact(CHOICE))
    right = prove(KEY, "client", hashed)
    elsewhere = Talk().transcript(compact(CHOICE | {"nonce": "5f" * 16}))
    changed = Talk(hello=compact(OFFER | {"max_frame": 4096}))

    def bad(
        name: str,
        description: str,
        body: bytes | object,
        code: str = "UNAUTHORIZED",
        talk: Talk | None = None,
    ) -> Vector:
        content = body if isinstance(body, bytes) else compact({"proof": body})
        rule = "proofs" if code == "UNAUTHORIZED" else "handshake-json"
        return refused(
            name,
            description,
            replace(talk or Talk(), auth=content),
            "AUTH",
            code,
            rule=rule,
        )

    return [
        bad("proof_missing", "No proof.", b"{}"),
        bad(
            "proof_wrong",
            "One bit is wrong.",
            right[:-1] + format(int(right[-1], 16) ^ 1, "x"),
        ),
        bad(
            "proof_other_key",
            "The proof of another token.",
            prove(TOKEN, "client", hashed),
            talk=Talk(client_key=TOKEN),
        ),
        bad(
            "proof_key_decoded",
            "The token's digits read as bytes, instead of its text.",
            prove(bytes.fromhex(TOKEN.decode()), "client", hashed),
            talk=Talk(TOKEN, TOKEN),
        ),
        bad("proof_of_server", "The server's own proof.", prove(KEY, "server", hashed)),
        bad(
            "proof_replayed",
            "A good proof of another connection.",
            prove(KEY, "client", elsewhere),
        ),
        bad(
            "hello_was_changed",
            "Somebody in between lowered max_frame in HELLO.",
            right,
            talk=changed,
        ),
        bad("proof_upper_case", "Capital letters.", right.upper()),
        bad("proof_short", "62 digits.", right[:-2]),
        bad("proof_long", "A digit too many.", right + "0"),
        bad("proof_empty", "No digits.", ""),
        bad("proof_number", "A number.", 0),
        bad("proof_null", "null.", None),
        bad("proof_not_ascii", "A character beyond ASCII.", right[:-1] + "\u00e9"),
        bad("empty", "No JSON.", b"", "BAD_HANDSHAKE"),
        bad("not_json", "Not quite JSON.", b"{proof}", "BAD_HANDSHAKE"),
        bad(
            "duplicate_proof",
            "Two proofs, the right one among them.",
            f'{{"proof":"","proof":"{right}"}}'.encode(),
            "BAD_HANDSHAKE",
        ),
    ]


def bad_readies() -> list[Vector]:
    """Return handshakes whose last frame the client refuses."""
    hashed = Talk().transcript(compact(CHOICE))
    right = prove(KEY, "server", hashed)

    def bad(
        name: str,
        description: str,
        change: dict[str, Any] | bytes,
        code: str = "BAD_HANDSHAKE",
        talk: Talk | None = None,
    ) -> Vector:
        everything = {"proof": right, **LIMITS} | (
            change if isinstance(change, dict) else {}
        )
        content = (
            change
            if isinstance(change, bytes)
            else compact({k: v for k, v in everything.items() if v is not ...})
        )
        rule = "proofs" if code == "UNAUTHORIZED" else "handshake-json"
        return refused(
            name,
            description,
            replace(talk or Talk(), ready=content),
            "READY",
            code,
            rule=rule,
        )

    found = [
        bad("empty", "No JSON.", b""),
        leniently(
            bad(
                "duplicate_key",
                "A limit twice.",
                compact({"proof": right, **LIMITS})[:-1] + b',"idle_ms":1}',
            )
        ),
        bad(
            "proof_missing",
            "Another program has the port and accepts every client.",
            {"proof": ...},
            "UNAUTHORIZED",
        ),
        bad(
            "proof_wrong",
            "One bit is wrong.",
            {"proof": right[:-1] + format(int(right[-1], 16) ^ 1, "x")},
            "UNAUTHORIZED",
        ),
        bad(
            "proof_of_client",
            "The client's own proof, sent back.",
            {"proof": prove(KEY, "client", hashed)},
            "UNAUTHORIZED",
        ),
        bad(
            "proof_other_key",
            "The proof of another token.",
            {"proof": prove(TOKEN, "server", hashed)},
            "UNAUTHORIZED",
            Talk(server_key=TOKEN),
        ),
        bad(
            "proof_upper_case",
            "Capital letters.",
            {"proof": right.upper()},
            "UNAUTHORIZED",
        ),
        bad("proof_number", "A number.", {"proof": 0}, "UNAUTHORIZED"),
        bad(
            "proof_before_limits",
            "Both are wrong: the proof is judged first.",
            {"proof": "", "max_frame": 0},
            "UNAUTHORIZED",
        ),
    ]
    for member in ("max_frame", "max_inflight", "max_bytes_inflight", "idle_ms"):
        found.append(bad(f"{member}_missing", f"No {member}.", {member: ...}))
        found.append(bad(f"{member}_0", f"{member} below the least.", {member: 0}))
    return [
        *found,
        bad("max_inflight_text", "A text.", {"max_inflight": "32"}),
        bad("max_frame_too_large", "2^32.", {"max_frame": 2**32}),
        bad("idle_ms_float", "A number with a point.", {"idle_ms": 1.5}),
    ]
