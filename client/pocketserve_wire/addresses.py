"""Server addresses: the defaults and their textual form."""

from __future__ import annotations

from typing import Final, NamedTuple

LOOPBACK: Final = "127.0.0.1"
HTTP_PORT: Final = 8470
SOCKET_PORT: Final = 8471


class Address(NamedTuple):
    """The address of one transport."""

    host: str
    port: int

    def on_this_device(self) -> Address:
        """Return the address to connect to from this device.

        A wildcard address such as 0.0.0.0 becomes the loopback address.
        """
        return self._replace(
            host={"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
