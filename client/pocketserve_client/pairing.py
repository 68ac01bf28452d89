"""Getting the token with a code of ten digits, for a program that cannot read the token file."""

from __future__ import annotations

import os
import re
from typing import Any

from pocketserve_client.errors import PocketserveError, ServerError
from pocketserve_client.http import DEFAULT_URL, HttpTransport
from pocketserve_client.transport import Request
from pocketserve_wire import ApiError, strict_json
from pocketserve_wire.pairing import (
    EXCHANGE_BYTES,
    MAX_TOKEN_BYTES,
    PROOF_BYTES,
    PUBLIC_BYTES,
    SALT_BYTES,
    ClientExchange,
    PairingError,
)


class PairingFailedError(PocketserveError):
    """The other side does not know the code, so it is not our server; or the code is no code."""


def pair(code: str, url: str | None = None, *, timeout: float = 30.0) -> str:
    """Exchange the code that ``pocketserve pair`` shows for the access token.

    Args:
        code: ten digits; spaces and hyphens do not matter.
        url: the server's HTTP address; by default ``POCKETSERVE_URL`` if that is one, else ``http://127.0.0.1:8470``.
        timeout: seconds for connecting, and for each wait for bytes.

    Raises:
        PairingFailedError: that is no code, or what answers is not our server.
        ServerError: PAIRING_REFUSED for a wrong code, PAIRING_CLOSED when none is open.
        ServerUnreachableError: nobody answered.
    """
    named = os.environ.get("POCKETSERVE_URL", "")
    transport = HttpTransport(url or (named if named.startswith("http") else DEFAULT_URL), None, timeout)
    try:
        exchange = ClientExchange(code)
        begun = _post(transport, "begin", {"public": exchange.begin()})
        proof = exchange.prove(
            _bytes(begun, "salt", SALT_BYTES, SALT_BYTES), _bytes(begun, "public", PUBLIC_BYTES, PUBLIC_BYTES)
        )
        identifier = _bytes(begun, "exchange", EXCHANGE_BYTES, EXCHANGE_BYTES)
        done = _post(transport, "finish", {"exchange": identifier, "proof": proof})
        server_proof = _bytes(done, "proof", PROOF_BYTES, PROOF_BYTES)
        return exchange.open(server_proof, _bytes(done, "token", 1, MAX_TOKEN_BYTES))
    except PairingError as error:
        raise PairingFailedError(str(error)) from None
    finally:
        transport.close()


def _post(transport: HttpTransport, step: str, values: dict[str, bytes]) -> dict[str, Any]:
    body = strict_json.dumps({name: value.hex() for name, value in values.items()})
    answer = transport.send(Request("POST", f"/pairing/{step}", [body], len(body), idempotent=False))
    try:
        document = strict_json.loads_object(answer.body)
    except ApiError:
        raise PairingFailedError("what answers at this address is not our server; look at the port") from None
    if answer.status != 200:
        raise ServerError(answer.status, str(document.get("code", "")), str(document.get("error", "")))
    return document


def _bytes(document: dict[str, Any], name: str, least: int, maximum: int) -> bytes:
    text = document.get(name)
    if isinstance(text, str) and re.fullmatch(rf"(?:[0-9a-fA-F]{{2}}){{{least},{maximum}}}", text):
        return bytes.fromhex(text)
    raise PairingFailedError(f"the answer has no proper {name!r}, so this is not our server; look at the port")
