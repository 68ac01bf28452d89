"""Python client of a Pocketserve server."""

from pocketserve_client.client import Client
from pocketserve_client.errors import ServerError, ServerUnreachableError
from pocketserve_wire.version import __version__

__all__ = ["Client", "ServerError", "ServerUnreachableError", "__version__"]
