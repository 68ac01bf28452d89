"""Get the token by a code, for programs that cannot read its file."""

from __future__ import annotations

import os
import re
from typing import Any

from pocketserve_client.errors import PocketserveError, ServerError
from pocketserve_client.http import DEFAULT_URL, HttpTransport
from pocketserve_client.transport import Request
from pocketserve_wire import ApiError, pairing, strict_json


class PairingFailedError(PocketserveError):
    """The code is malformed, or the other side is not our server."""


def pair(code: str, url: str | None = None, *, timeout: float = 30.0) -> str:
    """Exchange the code that ``pocketserve pair`` shows for the access token.

    Args:
        code: ten digits; spaces and hyphens are ignored.
        url: the server's HTTP address; by default ``POCKETSERVE_URL`` if that is an
            HTTP address, else ``http://127.0.0.1:8470``.
        timeout: seconds for connecting, and for each wait for bytes.

    Raises:
        PairingFailedError: the code is malformed, or this is not our server.
        ServerError: PAIRING_REFUSED for a wrong code, PAIRING_CLOSED without pairing.
        ServerUnreachableError: no server answered.
    """
    variable = os.environ.get("POCKETSERVE_URL", "")
    default = variable if variable.startswith("http") else DEFAULT_URL
    transport = HttpTransport(url or default, None, timeout)
    try:
        exchange = pairing.ClientExchange(code)
        begin = _post(transport, "begin", {"public": exchange.begin()})
        salt = _bytes(begin, "salt", pairing.SALT_BYTES)
        public = _bytes(begin, "public", pairing.PUBLIC_BYTES)
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
    path = f"/pairing/{step}"
    request = Request("POST", path, [body], len(body), idempotent=False)
    answer = transport.send(request)
    try:
        document = strict_json.loads_object(answer.body)
    except ApiError:
        raise PairingFailedError(
            "this address is not our server; check the port"
        ) from None
    if answer.status != 200:
        code = str(document.get("code", ""))
        raise ServerError(answer.status, code, str(document.get("error", "")))
    return document


def _bytes(document: dict[str, Any], name: str, *lengths: int) -> bytes:
    """Decode hexadecimal bytes of a fixed length, or of one between two lengths."""
    text = document.get(name)
    repeats = ",".join(map(str, lengths))
    pattern = rf"(?:[0-9a-fA-F]{{2}}){{{repeats}}}"
    if isinstance(text, str) and re.fullmatch(pattern, text):
        return bytes.fromhex(text)
    raise PairingFailedError(
        f"the answer has no valid {name!r}, so this is not our server; check the port"
    )
