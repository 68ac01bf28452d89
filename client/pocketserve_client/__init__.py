"""Python client of a Pocketserve server."""

from typing import TYPE_CHECKING, Any

from pocketserve_client.calls import Call, FallbackServer, ModelSequence
from pocketserve_client.client import Client
from pocketserve_client.errors import (
    AddressError,
    ConnectionLostError,
    NotOurServerError,
    PocketserveError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.pairing import PairingFailedError, pair
from pocketserve_client.transport import LabelledAnswer, Outputs, Picture
from pocketserve_wire.version import __version__

if TYPE_CHECKING:
    from pocketserve_client.aio.async_client import AsyncClient

__all__ = [
    "AddressError",
    "AsyncClient",
    "Call",
    "Client",
    "ConnectionLostError",
    "FallbackServer",
    "LabelledAnswer",
    "ModelSequence",
    "NotOurServerError",
    "Outputs",
    "PairingFailedError",
    "Picture",
    "PocketserveError",
    "ServerError",
    "ServerUnreachableError",
    "__version__",
    "pair",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":
        # Imported late, because it needs asyncio, which most programs don't.
        from pocketserve_client.aio.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
