"""Test the pairing desk: one code, two minutes, limited wrong tries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pocketserve.auth.pairing import MAX_EXCHANGES, MAX_TRIES, OPEN_S, PairingDesk
from pocketserve_wire import ApiError
from pocketserve_wire.pairing import (
    CODE_DIGITS,
    ClientExchange,
    ServerExchange,
    new_code,
)

TOKEN = "a-token-of-the-proper-length-and-alphabet_0"
TRIES = 3
"""Tries in these tests; a real desk has thousands."""


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(clock: Clock) -> PairingDesk:
    return PairingDesk(TOKEN, clock, TRIES)


def attempt(desk: PairingDesk, code: str) -> str:
    """Run one whole exchange."""
    client = ClientExchange(code)
    identifier, salt, public = desk.begin(client.begin())
    return client.open(*desk.finish(identifier, client.prove(salt, public)))


def refused(desk: PairingDesk, code: str) -> str:
    with pytest.raises(ApiError) as caught:
        attempt(desk, code)
    return caught.value.code.name


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 10**10:010d}"


def test_the_right_code_gets_the_token_once(desk: PairingDesk) -> None:
    code = desk.open()
    assert desk.state().state == "open"
    assert desk.state().tries == TRIES
    assert attempt(desk, code) == TOKEN
    assert desk.state().state == "paired"
    assert refused(desk, code) == "PAIRING_CLOSED"


def test_it_is_closed_until_it_is_opened(desk: PairingDesk) -> None:
    assert desk.state().state == "closed"
    assert refused(desk, "123456") == "PAIRING_CLOSED"
    with pytest.raises(ApiError) as caught:
        desk.finish(b"x" * 16, b"y" * 32)
    assert caught.value.code.name == "PAIRING_CLOSED"


def test_all_guesses_have_a_chance_of_three_in_a_million() -> None:
    assert len(new_code()) == CODE_DIGITS
    assert MAX_TRIES / 10**CODE_DIGITS <= 3e-6


def test_guesses_of_others_do_not_end_pairing() -> None:
    desk = PairingDesk(TOKEN)
    code = desk.open()
    ours = begun(desk, code)
    for _ in range(40):
        assert refused(desk, wrong(code)) == "PAIRING_REFUSED"
    assert desk.state().state == "open"
    assert desk.state().tries == MAX_TRIES - 40
    assert ours() == TOKEN


def test_three_wrong_codes_close_it(desk: PairingDesk) -> None:
    code = desk.open()
    for left in range(TRIES - 1, -1, -1):
        assert refused(desk, wrong(code)) == "PAIRING_REFUSED"
        assert desk.state().tries == left
    assert desk.state().state == "refused"
    assert refused(desk, code) == "PAIRING_CLOSED"


def test_two_wrong_codes_do_not(desk: PairingDesk) -> None:
    code = desk.open()
    for _ in range(TRIES - 1):
        refused(desk, wrong(code))
    assert attempt(desk, code) == TOKEN


def test_it_closes_after_two_minutes(desk: PairingDesk, clock: Clock) -> None:
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
    first = desk.open()
    second = desk.open()
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
    # The second one was not a guess: the exchange had ended.
    assert desk.state().tries == TRIES - 1


def begun(desk: PairingDesk, code: str) -> Callable[[], str]:
    """Run the first half of an exchange.

    Return the second half.
    """
    client = ClientExchange(code)
    identifier, salt, public = desk.begin(client.begin())
    return lambda: client.open(*desk.finish(identifier, client.prove(salt, public)))


def test_exchanges_of_other_apps_do_not_end_ours(desk: PairingDesk) -> None:
    code = desk.open()
    ours = begun(desk, code)
    for _ in range(3):
        begun(desk, "000000")
    assert ours() == TOKEN


def test_the_oldest_exchange_is_evicted_without_costing_a_try(
    desk: PairingDesk,
) -> None:
    code = desk.open()
    ours = begun(desk, code)
    public = ClientExchange("000000").begin()
    for _ in range(MAX_EXCHANGES):
        desk.begin(public)
    with pytest.raises(ApiError, match="another app interfered"):
        ours()
    assert desk.state().tries == TRIES
    assert attempt(desk, code) == TOKEN


def test_unfinished_exchanges_cost_no_try(desk: PairingDesk) -> None:
    code = desk.open()
    ours = begun(desk, code)
    public = ClientExchange("000000").begin()
    for _ in range(MAX_EXCHANGES - 1):
        desk.begin(public)
    assert desk.state().state == "open"
    assert desk.state().tries == TRIES
    assert ours() == TOKEN


def test_all_proofs_share_three_guesses(desk: PairingDesk) -> None:
    """The number and age of exchanges don't matter."""
    code = desk.open()
    guesses = [begun(desk, wrong(code)) for _ in range(20)]
    errors = []
    for guess in guesses:
        with pytest.raises(ApiError) as caught:
            guess()
        errors.append(caught.value.code.name)
    assert errors == ["PAIRING_REFUSED"] * TRIES + ["PAIRING_CLOSED"] * (20 - TRIES)


def test_concurrent_proofs_do_not_share_a_try(
    desk: PairingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proofs are checked one at a time, and no more than there are tries."""
    code = desk.open()
    check = ServerExchange.finish
    checked = []
    at_once = threading.Lock()

    def finish(
        exchange: ServerExchange, proof: bytes, token: str
    ) -> tuple[bytes, bytes] | None:
        assert at_once.acquire(blocking=False)
        checked.append(exchange)
        answer = check(exchange, proof, token)
        at_once.release()
        return answer

    monkeypatch.setattr(ServerExchange, "finish", finish)
    guesses = [begun(desk, wrong(code)) for _ in range(4 * TRIES)]
    together = threading.Barrier(4 * TRIES)
    with ThreadPoolExecutor(4 * TRIES) as pool:
        done = [
            pool.submit(lambda guess=guess: (together.wait(120), guess()))
            for guess in guesses
        ]
        names = sorted(each.exception(30).code.name for each in done)
    assert names == ["PAIRING_CLOSED"] * 3 * TRIES + ["PAIRING_REFUSED"] * TRIES
    assert len(checked) == TRIES
    assert desk.state().state == "refused"
    assert refused(desk, code) == "PAIRING_CLOSED"


def test_a_pairing_closed_during_a_proof_stays_closed(
    desk: PairingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = desk.open()
    ours = begun(desk, code)
    check = ServerExchange.finish

    def finish(
        exchange: ServerExchange, proof: bytes, token: str
    ) -> tuple[bytes, bytes] | None:
        desk.open()  # with another code
        return check(exchange, proof, token)

    monkeypatch.setattr(ServerExchange, "finish", finish)
    with pytest.raises(ApiError) as caught:
        ours()
    assert caught.value.code.name == "PAIRING_CLOSED"


def test_without_a_token_there_is_nothing_to_pair() -> None:
    with pytest.raises(ApiError, match="nothing to pair"):
        PairingDesk(None).open()


def test_waiting_clients_are_notified_at_once() -> None:
    desk = PairingDesk(TOKEN)
    code = desk.open()
    found: list[str] = []
    waiter = threading.Thread(target=lambda: found.append(desk.wait(60).state))
    waiter.start()
    assert attempt(desk, code) == TOKEN
    waiter.join(120)
    assert found == ["paired"]


def test_a_wait_ends_at_its_own_timeout(desk: PairingDesk) -> None:
    desk.open()
    assert desk.wait(0).state == "open"
    desk.close()
    assert desk.wait(60).state == "closed"
