"""Test the key exchange with RFC 5054, another implementation and shared vectors."""

from __future__ import annotations

import hashlib
import json

import pytest
import srptools
from hypothesis import given, settings
from hypothesis import strategies as st
from srptools import constants

from conftest import ROOT
from pocketserve_wire.pairing import (
    ClientExchange,
    PairingError,
    ServerExchange,
    ServerSecret,
    clean_code,
    new_code,
)
from pocketserve_wire.srp import MODULUS_2048, Srp, SrpError

VECTORS = ROOT / "android_bridge" / "vectors" / "pairing" / "exchanges.json"
EXPONENTS = st.integers(2**255, 2**256 - 1)
CODES = st.from_regex(r"[0-9]{10}|[0-9]{6}", fullmatch=True)


def sha1(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()


def number(text: str) -> int:
    return int(text.replace(" ", ""), 16)


def test_the_example_of_rfc_5054() -> None:
    srp = Srp(int(constants.PRIME_1024, 16), 2, sha1)
    a = number(
        "60975527 035CF2AD 1989806F 0407210B C81EDC04 E2762A56 AFD529DD DA2D4393"
    )
    b = number(
        "E487CB59 D31AC550 471E81F0 0F6928E0 1DDA08E9 74A004F4 9E61F5D1 05284D20"
    )
    x = srp.password_key(
        bytes.fromhex("BEB25379D1A8581EB5A727673A2441EE"), b"alice", b"password123"
    )
    assert x == number("94B7555A ABE9127C C58CCF49 93DB6CF8 4D16C124")
    assert srp.multiplier() == number("7556AA04 5AEF2CDD 07ABAF0F 665C3E81 8913186F")
    v = srp.verifier(x)
    client_public = srp.client_public(a)
    server_public = srp.server_public(b, v)
    assert srp.scrambler(client_public, server_public) == number(
        "CE38B959 3487DA98 554ED47D 70A7AE5F 462EF019"
    )
    shared = number(
        "B0DC82BA BCF30674 AE450C02 87745E79 90A3381F 63B387AA F271A10D 233861E3 59B48220 F7C4693C 9AE12B0A 6F67809F"
        "0876E2D0 13800D6C 41BB59B6 D5979B5C 00A172B4 A2A5903A 0BDCAF8A 709585EB 2AFAFA8F 3499B200 210DCC1F 10EB3394"
        "3CD67FC8 8A2F39A4 BE5BEC4E C0A3212D C346D7E4 74B29EDE 8A469FFE CA686E5A"
    )
    assert (
        srp.client_secret(a, x, server_public)
        == srp.server_secret(b, v, client_public, server_public)
        == shared
    )


@settings(max_examples=15, deadline=None)
@given(
    a=EXPONENTS,
    b=EXPONENTS,
    code=CODES,
    salt=st.binary(min_size=16, max_size=16),
)
def test_another_implementation_computes_the_same(
    a: int, b: int, code: str, salt: bytes
) -> None:
    other = srptools.SRPContext(
        "pocketserve",
        code,
        prime=constants.PRIME_2048,
        generator=constants.PRIME_2048_GEN,
        hash_func=constants.HASH_SHA_256,
    )
    srp = Srp()
    assert int(constants.PRIME_2048, 16) == MODULUS_2048
    x = srp.password_key(salt, b"pocketserve", code.encode())
    inner = hashlib.sha256(b"pocketserve:" + code.encode()).digest()
    assert x == int.from_bytes(hashlib.sha256(salt + inner).digest())
    v = other.get_common_password_verifier(x)
    assert srp.verifier(x) == v
    client_public = other.get_client_public(client_private=a)
    server_public = other.get_server_public(password_verifier=v, server_private=b)
    assert srp.client_public(a) == client_public
    assert srp.server_public(b, v) == server_public
    u = other.get_common_secret(server_public, client_public)
    theirs = other.get_server_premaster_secret(
        password_verifier=v,
        server_private=b,
        client_public=client_public,
        common_secret=u,
    )
    assert (
        srp.client_secret(a, x, server_public)
        == srp.server_secret(b, v, client_public, server_public)
        == theirs
    )


@pytest.mark.parametrize(
    "bad",
    [
        0,
        MODULUS_2048,
        MODULUS_2048 + 1,
        2**2048 - 1,
    ],
)
def test_numbers_that_would_reveal_the_secret_are_refused(bad: int) -> None:
    srp = Srp()
    with pytest.raises(SrpError):
        srp.client_secret(2**255, 5, bad)
    with pytest.raises(SrpError):
        srp.server_secret(2**255, srp.verifier(5), bad, 2)
    data = bad.to_bytes(256, "big")
    with pytest.raises(PairingError):
        ServerExchange(ServerSecret("123456", b"s" * 16)).begin(data)
    with pytest.raises(PairingError, match="not our server"):
        ClientExchange("123456").prove(b"s" * 16, data)


def exchange(code: str, salt: str, a: int, b: int, token: str) -> dict[str, str]:
    """Return every number of one exchange, as in a vector."""
    client = ClientExchange(code, a)
    server = ServerExchange(ServerSecret(code, bytes.fromhex(salt), b))
    public = client.begin()
    ours = server.begin(public)
    proof = client.prove(bytes.fromhex(salt), ours)
    done = server.finish(proof, token)
    assert done is not None
    assert client.open(*done) == token
    values = {
        "client_public": public,
        "server_public": ours,
        "client_proof": proof,
    }
    values |= {"server_proof": done[0], "sealed": done[1]}
    given = {
        "code": code,
        "salt": salt,
        "a": f"{a:x}",
        "b": f"{b:x}",
        "token": token,
    }
    return given | {name: value.hex() for name, value in values.items()}


def test_the_vectors_shared_with_java() -> None:
    vectors = json.loads(VECTORS.read_text())
    assert len(vectors) >= 3
    for vector in vectors:
        a = int(vector["a"], 16)
        b = int(vector["b"], 16)
        assert exchange(vector["code"], vector["salt"], a, b, vector["token"]) == vector


@settings(max_examples=15, deadline=None)
@given(
    code=CODES,
    token=st.text("ABCXYZabcxyz0189_-", min_size=32, max_size=256),
    salt=st.binary(min_size=16, max_size=16),
)
def test_the_token_is_received_and_never_sent_in_clear(
    code: str, token: str, salt: bytes
) -> None:
    vector = exchange(code, salt.hex(), 2**255 + 7, 2**255 + 11, token)
    assert len(vector["sealed"]) == 2 * len(token)
    assert bytes.fromhex(vector["sealed"]) != token.encode()


def test_another_code_proves_nothing_to_either_side() -> None:
    client = ClientExchange("123456")
    server = ServerExchange(ServerSecret("123457", b"s" * 16))
    proof = client.prove(b"s" * 16, server.begin(client.begin()))
    assert server.finish(proof, "t" * 43) is None
    # A server that answers a wrong proof as if it were right is detected, too.
    right = ServerExchange(ServerSecret("123457", b"s" * 16))
    other = ClientExchange("123457")
    done = right.finish(other.prove(b"s" * 16, right.begin(other.begin())), "t" * 43)
    assert done is not None
    with pytest.raises(PairingError, match="not our server"):
        client.open(*done)


@pytest.mark.parametrize("index", [0, 1])
def test_modified_messages_are_refused(index: int) -> None:
    client = ClientExchange("123456")
    server = ServerExchange(ServerSecret("123456", b"s" * 16))
    done = server.finish(
        client.prove(b"s" * 16, server.begin(client.begin())), "t" * 43
    )
    assert done is not None
    changed = [bytearray(part) for part in done]
    changed[index][-1] ^= 1
    with pytest.raises(PairingError, match="not our server"):
        client.open(bytes(changed[0]), bytes(changed[1]))


def test_invalid_tokens_are_refused() -> None:
    client = ClientExchange("123456")
    server = ServerExchange(ServerSecret("123456", b"s" * 16))
    done = server.finish(
        client.prove(b"s" * 16, server.begin(client.begin())), "not a token"
    )
    assert done is not None
    with pytest.raises(PairingError, match="not a token"):
        client.open(*done)


def test_codes_are_normalised() -> None:
    codes = {new_code() for _ in range(200)}
    assert len(codes) > 100
    assert all(clean_code(code) == code for code in codes)
    assert clean_code(" 012 - 345\n") == "012345"
    assert clean_code("012 345-6789") == "0123456789"
    for wrong in (
        "",
        "12345",
        "1234567",
        "123456789",
        "12345678901",
        "12345a",
        "٠١٢٣٤٥",
        "1.2345",
    ):
        with pytest.raises(PairingError, match="6 digits"):
            clean_code(wrong)
