"""Give the token to an app that knows a code, for two minutes.

Pairing is closed until the token's owner opens it. The cryptography is in
:mod:`pocketserve_wire.pairing`, the reasons in ``docs/adr/0009-pairing.md``.
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
"""Of 10**10 codes: 3 in a million. Checking as many keeps one core busy until it
closes."""
MAX_EXCHANGES: Final = 1024
"""Concurrent exchanges, of which the oldest is evicted: another app cannot begin as
many before the owner's app finishes."""


class PairingState(NamedTuple):
    """The state of pairing.

    It is ``closed``, ``open``, or the result: ``paired``, ``refused`` (too many tries)
    or ``expired``. While it is open, also the seconds until it closes, and the number
    of wrong codes that are still allowed.
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
    """Manages one code and its exchanges.

    Args:
        token: the token to give; None if the server has none.
        tries: number of wrong proofs that close pairing.
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
        # One proof at a time, so that guesses use one core and each counts as a try.
        self._checking = threading.Lock()
        self._changed = threading.Condition()
        self._opening: _Opening | None = None
        self._ended = "closed"

    def open(self) -> str:
        """Open pairing with a new code; return the code."""
        if self._token is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "this server requires no token, so there is nothing to pair",
            )
        import secrets  # late, like the next import, because most servers never pair

        from pocketserve_wire.pairing import SALT_BYTES, ServerSecret, new_code

        code, salt = new_code(), secrets.token_bytes(SALT_BYTES)
        secret = ServerSecret(code, salt)
        with self._changed:
            self._opening = _Opening(secret, self._clock() + OPEN_S, self._tries)
            self._changed.notify_all()
            return code

    def close(self) -> None:
        """Close pairing, and wake all waiting threads."""
        with self._changed:
            if self._opening is not None:
                self._end("closed")

    def state(self) -> PairingState:
        """Return the current state."""
        with self._changed:
            return self._state()

    def wait(self, timeout: float) -> PairingState:
        """Wait until pairing is closed, or until the timeout."""
        with self._changed:
            deadline = self._clock() + timeout
            while True:
                state = self._state()
                left = deadline - self._clock()
                if state.state != "open" or left <= 0:
                    return state
                self._changed.wait(min(left, state.remaining_s))

    def begin(self, client_public: bytes) -> tuple[bytes, bytes, bytes]:
        """Begin an exchange; evict the oldest of too many.

        Returns:
            Its identifier, the salt and the server's public number.

        Raises:
            ApiError: PAIRING_CLOSED or INVALID_REQUEST.
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
        """Return the server's proof and the encrypted token.

        Raises:
            ApiError: PAIRING_CLOSED, or PAIRING_REFUSED for a wrong code.
        """
        token = self._token or ""  # without a token pairing is never open
        with self._checking:
            with self._changed:
                opening = self._require_open()
                # Each exchange allows one proof.
                exchange = opening.exchanges.pop(identifier, None)
            if exchange is None:
                text = "another app interfered: it also began pairing; try again"
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
