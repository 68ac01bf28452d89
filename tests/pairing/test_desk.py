"""The desk: one code, two minutes, three wrong tries, and nothing at all while it is closed."""

from __future__ import annotations

import threading

import pytest

from pocketserve.pairing import MAX_STARTS, MAX_TRIES, OPEN_S, PairingDesk
from pocketserve_wire import ApiError
from pocketserve_wire.pairing import ClientExchange

TOKEN = "a-token-of-the-proper-length-and-alphabet_0"


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(clock: Clock) -> PairingDesk:
    return PairingDesk(TOKEN, clock)


def attempt(desk: PairingDesk, code: str) -> str:
    """One whole exchange."""
    client = ClientExchange(code)
    identifier, salt, public = desk.begin(client.begin())
    return client.open(*desk.finish(identifier, client.prove(salt, public)))


def refused(desk: PairingDesk, code: str) -> str:
    with pytest.raises(ApiError) as caught:
        attempt(desk, code)
    return caught.value.code.name


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 10**6:06d}"


def test_the_right_code_gets_the_token_once(desk: PairingDesk) -> None:
    code = desk.open()
    assert desk.state().state == "open" and desk.state().tries == MAX_TRIES
    assert attempt(desk, code) == TOKEN
    assert desk.state().state == "paired"
    assert refused(desk, code) == "PAIRING_CLOSED"


def test_it_is_closed_until_it_is_opened(desk: PairingDesk) -> None:
    assert desk.state().state == "closed"
    assert refused(desk, "123456") == "PAIRING_CLOSED"
    with pytest.raises(ApiError) as caught:
        desk.finish(b"x" * 16, b"y" * 32)
    assert caught.value.code.name == "PAIRING_CLOSED"


def test_three_wrong_codes_close_it(desk: PairingDesk) -> None:
    code = desk.open()
    for left in range(MAX_TRIES - 1, -1, -1):
        assert refused(desk, wrong(code)) == "PAIRING_REFUSED"
        assert desk.state().tries == left
    assert desk.state().state == "refused"
    assert refused(desk, code) == "PAIRING_CLOSED"


def test_two_wrong_codes_do_not(desk: PairingDesk) -> None:
    code = desk.open()
    for _ in range(MAX_TRIES - 1):
        refused(desk, wrong(code))
    assert attempt(desk, code) == TOKEN


def test_two_minutes_close_it(desk: PairingDesk, clock: Clock) -> None:
    code = desk.open()
    client = ClientExchange(code)
    identifier, salt, public = desk.begin(client.begin())
    proof = client.prove(salt, public)
    clock.now += OPEN_S
    with pytest.raises(ApiError) as caught:  # even an exchange that began in time
        desk.finish(identifier, proof)
    assert caught.value.code.name == "PAIRING_CLOSED"
    assert desk.state().state == "expired"


def test_opening_again_replaces_the_code(desk: PairingDesk) -> None:
    first, second = desk.open(), desk.open()
    if first != second:
        assert refused(desk, first) == "PAIRING_REFUSED"
    assert attempt(desk, second) == TOKEN


def test_an_exchange_proves_once(desk: PairingDesk) -> None:
    code = desk.open()
    client = ClientExchange(code)
    identifier, salt, public = desk.begin(client.begin())
    proof = client.prove(salt, public)
    for sent in (b"\0" * 32, proof):
        with pytest.raises(ApiError) as caught:
            desk.finish(identifier, sent)
        assert caught.value.code.name == "PAIRING_REFUSED"
    assert desk.state().tries == MAX_TRIES - 1  # the second one was no guess: there was no exchange any more


def test_another_app_in_between_costs_no_try(desk: PairingDesk) -> None:
    code = desk.open()
    ours = ClientExchange(code)
    identifier, salt, public = desk.begin(ours.begin())
    desk.begin(ClientExchange("000000").begin())
    with pytest.raises(ApiError, match="another app"):
        desk.finish(identifier, ours.prove(salt, public))
    assert desk.state().tries == MAX_TRIES
    assert attempt(desk, code) == TOKEN


def test_beginnings_are_counted(desk: PairingDesk) -> None:
    desk.open()
    for _ in range(MAX_STARTS):
        desk.begin(ClientExchange("000000").begin())
    with pytest.raises(ApiError):
        desk.begin(ClientExchange("000000").begin())
    assert desk.state().state == "refused"


def test_without_a_token_there_is_nothing_to_pair() -> None:
    with pytest.raises(ApiError, match="nothing to pair"):
        PairingDesk(None).open()


def test_who_waits_is_told_at_once() -> None:
    desk = PairingDesk(TOKEN)
    code = desk.open()
    found: list[str] = []
    waiter = threading.Thread(target=lambda: found.append(desk.wait(60).state))
    waiter.start()
    assert attempt(desk, code) == TOKEN
    waiter.join(30)
    assert found == ["paired"]


def test_waiting_ends_with_its_own_limit(desk: PairingDesk) -> None:
    desk.open()
    assert desk.wait(0).state == "open"
    desk.close()
    assert desk.wait(60).state == "closed"
