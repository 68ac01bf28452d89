"""Loopback addresses of a fleet: 127.1.BLOCK.1 and on, in a block that no other fleet of this desktop has."""

from __future__ import annotations

import errno
import socket
from typing import Final

from pocketserve_simulate.phone.processes import PhoneError

MAX_PHONES: Final = 250
BLOCKS: Final = 255


class AddressBlock:
    """A block of addresses, kept from other fleets until it is closed or this process ends.

    The system gives an abstract name to one process only, and leaves no file behind.
    """

    def __init__(self) -> None:
        for block in range(BLOCKS):
            self._name = socket.socket(socket.AF_UNIX)
            try:
                self._name.bind(f"\0pocketserve-fleet-127.1.{block}")
            except OSError as error:
                self._name.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._block = block
                return
        raise PhoneError(f"{BLOCKS} fleets run on this desktop already; end one of them")

    def host(self, number: int) -> str:
        """Return the address of a phone; the first one has number 1."""
        return f"127.1.{self._block}.{number}"

    def close(self) -> None:
        """Leave the block to the next fleet."""
        self._name.close()
