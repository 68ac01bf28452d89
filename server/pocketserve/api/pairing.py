"""Pairing: an app gets the token for a ten-digit code.

See ``android_bridge/PAIRING.md``.
"""

from __future__ import annotations

import re

from pocketserve.api.messages import (
    ApiRequest,
    ApiResponse,
    expect_nothing,
    json_response,
    query_number,
    refuse_unknown_query,
)
from pocketserve.auth.pairing import PairingState
from pocketserve.service import Service
from pocketserve_wire import ApiError, ErrorCode, strict_json
from pocketserve_wire.oip_fields import bad_request
from pocketserve_wire.pairing import EXCHANGE_BYTES, PROOF_BYTES, PUBLIC_BYTES

MAX_BODY_BYTES = 4096
MAX_WAIT_MS = (
    2_000  # short enough that callers who wait hold a thread for a moment only
)


def open_desk(service: Service, request: ApiRequest) -> ApiResponse:
    """Open pairing for two minutes; the answer has the code to show."""
    expect_nothing(request)
    code = service.pairing.open()
    return _answer(service.pairing.state(), code=code)


def close_desk(service: Service, request: ApiRequest) -> ApiResponse:
    """Close pairing."""
    expect_nothing(request)
    service.pairing.close()
    return _answer(service.pairing.state())


def state(service: Service, request: ApiRequest) -> ApiResponse:
    """Return where pairing stands; with ``wait_ms``, once it is not open any more or the time is over."""
    refuse_unknown_query(request, "wait_ms")
    wait_ms = query_number(request, "wait_ms", MAX_WAIT_MS)
    return _answer(service.pairing.wait(wait_ms / 1000))


def begin(service: Service, request: ApiRequest) -> ApiResponse:
    """An app begins the exchange with its public number."""
    public = _hexadecimal(request, public=PUBLIC_BYTES)["public"]
    identifier, salt, server_public = service.pairing.begin(public)
    return json_response(
        {
            "exchange": identifier.hex(),
            "salt": salt.hex(),
            "public": server_public.hex(),
        }
    )


def finish(service: Service, request: ApiRequest) -> ApiResponse:
    """An app proves that it knows the code and gets the token, sealed with the exchange's key."""
    values = _hexadecimal(request, exchange=EXCHANGE_BYTES, proof=PROOF_BYTES)
    proof, sealed = service.pairing.finish(values["exchange"], values["proof"])
    return json_response({"proof": proof.hex(), "token": sealed.hex()})


def _answer(now: PairingState, **more: str) -> ApiResponse:
    return json_response(
        {
            **more,
            "state": now.state,
            "remaining_s": round(now.remaining_s, 3),
            "tries": now.tries,
        }
    )


def _hexadecimal(request: ApiRequest, **lengths: int) -> dict[str, bytes]:
    """Return the body's hexadecimal fields as bytes."""
    refuse_unknown_query(request)
    if len(request.body) > MAX_BODY_BYTES:
        raise ApiError(
            ErrorCode.BODY_TOO_LARGE,
            f"a pairing message has at most {MAX_BODY_BYTES} bytes",
        )
    document = strict_json.loads(request.body)
    if not isinstance(document, dict) or document.keys() != lengths.keys():
        raise bad_request(f"the body must be a JSON object with {', '.join(lengths)}")
    for name, length in lengths.items():
        text = document[name]
        digits = 2 * length
        pattern = rf"[0-9a-fA-F]{{{digits}}}"
        if not isinstance(text, str) or not re.fullmatch(pattern, text):
            raise bad_request(
                f"{name} must be {length} bytes as {digits} hexadecimal digits"
            )
    return {name: bytes.fromhex(document[name]) for name in lengths}
