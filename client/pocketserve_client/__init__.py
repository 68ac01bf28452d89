"""Python client of a Pocketserve server."""

from pocketserve_client.calls import Call, FallbackServer, ModelSequence
from pocketserve_client.client import Client
from pocketserve_client.errors import (
    AddressError,
    ConnectionLostError,
    NotOurServerError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.pairing import PairingFailedError, pair
from pocketserve_wire.version import __version__

__all__ = [
    "AddressError",
    "Call",
    "Client",
    "ConnectionLostError",
    "FallbackServer",
    "ModelSequence",
    "NotOurServerError",
    "PairingFailedError",
    "ServerError",
    "ServerUnreachableError",
    "__version__",
    "pair",
]
