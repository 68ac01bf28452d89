"""Getting the token with a code of ten digits, for a program that cannot read the token file."""

from __future__ import annotations

import os
import re
from typing import Any

from pocketserve_client.errors import PocketserveError, ServerError
from pocketserve_client.http import DEFAULT_URL, HttpTransport
from pocketserve_client.transport import Request
from pocketserve_wire import ApiError, pairing, strict_json


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
    variable = os.environ.get("POCKETSERVE_URL", "")
    transport = HttpTransport(
        url or (variable if variable.startswith("http") else DEFAULT_URL), None, timeout
    )
    try:
        exchange = pairing.ClientExchange(code)
        begin = _post(transport, "begin", {"public": exchange.begin()})
        salt, public = (
            _bytes(begin, "salt", pairing.SALT_BYTES),
            _bytes(begin, "public", pairing.PUBLIC_BYTES),
        )
        proof = exchange.prove(salt, public)
        identifier = _bytes(begin, "exchange", pairing.EXCHANGE_BYTES)
        finish = _post(transport, "finish", {"exchange": identifier, "proof": proof})
        token = _bytes(finish, "token", 1, pairing.MAX_TOKEN_BYTES)
        return exchange.open(_bytes(finish, "proof", pairing.PROOF_BYTES), token)
    except pairing.PairingError as error:
        raise PairingFailedError(str(error)) from None
    finally:
        transport.close()


def _post(
    transport: HttpTransport, step: str, values: dict[str, bytes]
) -> dict[str, Any]:
    body = strict_json.dumps({name: value.hex() for name, value in values.items()})
    answer = transport.send(
        Request("POST", f"/pairing/{step}", [body], len(body), idempotent=False)
    )
    try:
        document = strict_json.loads_object(answer.body)
    except ApiError:
        raise PairingFailedError(
            "what answers at this address is not our server; look at the port"
        ) from None
    if answer.status != 200:
        raise ServerError(
            answer.status, str(document.get("code", "")), str(document.get("error", ""))
        )
    return document


def _bytes(document: dict[str, Any], name: str, *lengths: int) -> bytes:
    """Return bytes of a length, or between two."""
    text = document.get(name)
    if isinstance(text, str) and re.fullmatch(
        rf"(?:[0-9a-fA-F]{{2}}){{{','.join(map(str, lengths))}}}", text
    ):
        return bytes.fromhex(text)
    raise PairingFailedError(
        f"the answer has no proper {name!r}, so this is not our server; look at the port"
    )
