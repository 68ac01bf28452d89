"""Hand the token to an app that knows the code: for two minutes, and for more wrong tries than fit into them.

Nothing is possible until the token's owner opens the desk. The cryptography is in :mod:`pocketserve_wire.pairing`, the
reasons in ``docs/adr/0009-pairing.md``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve_wire.pairing import ServerExchange, ServerSecret

OPEN_S: Final = 120.0
MAX_TRIES: Final = 30_000
"""Of 10**10 codes: 3 in a million. Checking as many keeps a core busy for as long as an opening lasts."""
MAX_EXCHANGES: Final = 1024
"""Exchanges at a time, of which the oldest gives way: no other app can begin as many before ours is finished."""


class PairingState(NamedTuple):
    """State of pairing: ``closed``, ``open``, or how it ended: ``paired``, ``refused`` (too many tries) or ``expired``.

    While it is open, also the seconds until it closes by itself, and how many wrong codes are still allowed.
    """

    state: str
    remaining_s: float = 0.0
    tries: int = 0


@dataclass(slots=True, eq=False, repr=False)
class _Opening:
    secret: ServerSecret
    deadline: float
    tries: int
    exchanges: dict[bytes, ServerExchange] = field(default_factory=dict)


class PairingDesk:
    """Holds one code and its exchanges. The arithmetic is done outside the lock.

    Args:
        token: what is handed over; None when the server asks for no token.
        tries: wrong proofs that end an opening.
    """

    def __init__(
        self,
        token: str | None,
        clock: Callable[[], float] = time.monotonic,
        tries: int = MAX_TRIES,
    ) -> None:
        self._token = token
        self._clock = clock
        self._tries = tries
        self._checking = (
            threading.Lock()
        )  # one proof at a time: guesses of others take one core and share no try
        self._changed = threading.Condition()
        self._opening: _Opening | None = None
        self._ended = "closed"

    def open(self) -> str:
        """Open the desk, or open it anew with another code; return the code."""
        if self._token is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "this server asks for no token, so there is nothing to pair",
            )
        import secrets  # late, as what follows: most servers never pair

        from pocketserve_wire.pairing import SALT_BYTES, ServerSecret, new_code

        code, salt = new_code(), secrets.token_bytes(SALT_BYTES)
        secret = ServerSecret(code, salt)
        with self._changed:
            self._opening = _Opening(secret, self._clock() + OPEN_S, self._tries)
            self._changed.notify_all()
            return code

    def close(self) -> None:
        """Close the desk, and end all waiting."""
        with self._changed:
            if self._opening is not None:
                self._end("closed")

    def state(self) -> PairingState:
        """Return where pairing stands now."""
        with self._changed:
            return self._state()

    def wait(self, timeout: float) -> PairingState:
        """Wait until the desk is closed, at most so many seconds, and return its state."""
        with self._changed:
            deadline = self._clock() + timeout
            while (state := self._state()).state == "open" and self._clock() < deadline:
                self._changed.wait(min(deadline - self._clock(), state.remaining_s))
            return state

    def begin(self, client_public: bytes) -> tuple[bytes, bytes, bytes]:
        """Begin an exchange, which costs no try; of too many unfinished ones the oldest is dropped.

        Return its identifier, the salt and the server's public number, or raise PAIRING_CLOSED or INVALID_REQUEST.
        """
        with self._changed:
            opening = self._require_open()
        from pocketserve_wire.pairing import PairingError, ServerExchange

        exchange = ServerExchange(opening.secret)
        try:
            public = exchange.begin(client_public)
        except PairingError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
        with self._changed:
            self._require_open(opening)
            opening.exchanges[exchange.identifier] = exchange
            if len(opening.exchanges) > MAX_EXCHANGES:
                del opening.exchanges[next(iter(opening.exchanges))]
        return exchange.identifier, opening.secret.salt, public

    def finish(self, identifier: bytes, proof: bytes) -> tuple[bytes, bytes]:
        """Return the server's proof and the sealed token; raise PAIRING_CLOSED, or PAIRING_REFUSED for a wrong code."""
        token = self._token or ""  # without one nothing is ever open
        with self._checking:
            with self._changed:
                opening = self._require_open()
                exchange = opening.exchanges.pop(
                    identifier, None
                )  # one proof per exchange
            if exchange is None:
                text = (
                    "another app has interfered: it began pairing in between; try again"
                )
                raise ApiError(ErrorCode.PAIRING_REFUSED, text)
            answer = exchange.finish(proof, token)
            with self._changed:
                self._require_open(opening)
                if answer is not None:
                    self._end("paired")
                    return answer
                opening.tries -= 1
                if not opening.tries:
                    self._end("refused")
                text = "the code is wrong; type the one that `pocketserve pair` shows"
                raise ApiError(ErrorCode.PAIRING_REFUSED, text)

    def _require_open(self, opening: _Opening | None = None) -> _Opening:
        if self._state().state != "open" or (
            opening is not None and opening is not self._opening
        ):
            text = (
                "pairing is closed; run `pocketserve pair` and type the code it shows"
            )
            raise ApiError(ErrorCode.PAIRING_CLOSED, text)
        assert self._opening is not None
        return self._opening

    def _state(self) -> PairingState:
        if self._opening is None:
            return PairingState(self._ended)
        remaining = self._opening.deadline - self._clock()
        if remaining <= 0:
            self._end("expired")
            return PairingState(self._ended)
        return PairingState("open", remaining, self._opening.tries)

    def _end(self, state: str) -> None:
        self._opening = None
        self._ended = state
        self._changed.notify_all()
