"""Hands the token to an app that shows the right six-digit code: open for two minutes and three wrong tries.

Nothing here runs, listens or is remembered until the token's owner opens the desk, and everything is forgotten when it
closes. The cryptography is in :mod:`pocketserve_wire.pairing`, the reasons in ``docs/adr/0009-pairing.md``.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.pairing import SALT_BYTES, PairingError, ServerExchange, new_code

OPEN_S: Final = 120.0
MAX_TRIES: Final = 3
MAX_STARTS: Final = 12
"""Exchanges that may be begun per opening: a person needs three; each one costs us some milliseconds."""


@dataclass(frozen=True, slots=True)
class PairingState:
    """Where pairing stands.

    Attributes:
        state: ``closed``, ``open``, or how it ended: ``paired``, ``refused`` (too many tries) or ``expired``.
        remaining_s: seconds until it closes by itself.
        tries: wrong codes that are still allowed.
    """

    state: str
    remaining_s: float = 0.0
    tries: int = 0


@dataclass(slots=True)
class _Opening:
    code: str
    salt: bytes
    ends: float
    tries: int = MAX_TRIES
    starts: int = MAX_STARTS
    exchange: ServerExchange | None = None


class PairingDesk:
    """One code at a time, one exchange at a time.

    Args:
        token: what is handed over; None when the server asks for no token.
        clock: seconds that only go forward.
    """

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._clock = clock
        self._changed = threading.Condition()
        self._opening: _Opening | None = None
        self._ended = "closed"

    def open(self) -> str:
        """Open the desk, or open it anew with another code; returns the code.

        Raises:
            ApiError: INVALID_REQUEST when there is no token to hand over.
        """
        if self._token is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "this server asks for no token, so there is nothing to pair")
        with self._changed:
            self._opening = _Opening(new_code(), secrets.token_bytes(SALT_BYTES), self._clock() + OPEN_S)
            self._changed.notify_all()
            return self._opening.code

    def close(self) -> None:
        """Close the desk; who waits is told."""
        with self._changed:
            if self._opening is not None:
                self._end("closed")

    def state(self) -> PairingState:
        """Where pairing stands now."""
        with self._changed:
            return self._state()

    def wait(self, timeout: float) -> PairingState:
        """Wait until the desk is closed by whatever cause, at most so many seconds."""
        with self._changed:
            ends = self._clock() + timeout
            while (now := self._state()).state == "open" and self._clock() < ends:
                self._changed.wait(min(ends - self._clock(), now.remaining_s))
            return now

    def begin(self, client_public: bytes) -> tuple[bytes, bytes, bytes]:
        """Begin an exchange, which replaces one that was not finished.

        Returns:
            The exchange's identifier, the salt and our public number.

        Raises:
            ApiError: PAIRING_CLOSED or INVALID_REQUEST.
        """
        with self._changed:
            opening = self._require_open()
            if opening.starts == 0:
                self._end("refused")
                raise _closed()
            opening.starts -= 1
            exchange = ServerExchange(opening.code, opening.salt)
            try:
                public = exchange.begin(client_public)
            except PairingError as error:
                raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
            opening.exchange = exchange
            return exchange.identifier, opening.salt, public

    def finish(self, identifier: bytes, proof: bytes) -> tuple[bytes, bytes]:
        """Hand the token over, sealed, to whoever knows the code.

        Returns:
            Our proof and the sealed token.

        Raises:
            ApiError: PAIRING_CLOSED, or PAIRING_REFUSED for a wrong code.
        """
        with self._changed:
            opening = self._require_open()
            exchange, opening.exchange = opening.exchange, None  # one proof per exchange
            if exchange is None or not hmac.compare_digest(exchange.identifier, identifier):
                opening.exchange = exchange
                raise ApiError(ErrorCode.PAIRING_REFUSED, "another app has begun pairing in between; try again")
            assert self._token is not None  # open() saw to it
            answer = exchange.finish(proof, self._token)
            if answer is not None:
                self._end("paired")
                return answer
            opening.tries -= 1
            if opening.tries == 0:
                self._end("refused")
            left = f"{opening.tries} tries left" if opening.tries else "run `pocketserve pair` for a new one"
            raise ApiError(ErrorCode.PAIRING_REFUSED, f"the code is wrong; {left}")

    def _require_open(self) -> _Opening:
        if self._state().state != "open":
            raise _closed()
        assert self._opening is not None
        return self._opening

    def _state(self) -> PairingState:
        if self._opening is None:
            return PairingState(self._ended)
        remaining = self._opening.ends - self._clock()
        if remaining <= 0:
            self._end("expired")
            return PairingState(self._ended)
        return PairingState("open", remaining, self._opening.tries)

    def _end(self, how: str) -> None:
        self._opening = None
        self._ended = how
        self._changed.notify_all()


def _closed() -> ApiError:
    return ApiError(ErrorCode.PAIRING_CLOSED, "pairing is closed; run `pocketserve pair` and type the code it shows")
