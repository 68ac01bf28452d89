"""Addresses of a server: the usual ones, and how one is written."""

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
        """Return where programs of this device find it: what listens everywhere is found on loopback, too."""
        return self._replace(
            host={"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        )

    def __str__(self) -> str:
        return (
            f"[{self.host}]:{self.port}"
            if ":" in self.host
            else f"{self.host}:{self.port}"
        )
