"""Find the Ray cluster of ``--address``, and check that it accepts connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pocketserve.terminal.errors import CommandError
from pocketserve_wire.files.plain_file import read_plain

AUTO = "auto"
CONNECT_S = 1.0
"""Timeout for each address."""

_OWN_FILE = "ray-address"
"""In the state folder, while `scale` runs its own Ray."""

_RAY_FILE = "ray_current_cluster"
"""Written by `ray start --head`."""

_MAX_BYTES = 256
"""Bytes of an address in a file."""


def own_file(state_dir: Path) -> Path:
    """Return the file with the address of the Ray that ``scale`` runs itself."""
    return state_dir / _OWN_FILE


def find_address(address: str, state_dir: Path) -> str:
    """Return the address of a cluster that accepts connections.

    Args:
        address: ``HOST:PORT``, or ``auto`` for the cluster on this machine.

    Raises:
        CommandError: there is none.
    """
    if address != AUTO:
        if not _answers(address):
            raise CommandError(
                f"no Ray answers at {address}; check the address, and that "
                "`ray start --head` runs there"
            )
        return address
    candidates = list(dict.fromkeys(_addresses_here(state_dir)))
    for candidate in candidates:
        if _answers(candidate):
            return candidate
    remark = f" ({', '.join(candidates)} does not answer)" if candidates else ""
    raise CommandError(
        f"no Ray runs on this machine{remark}; start one with `ray start --head`, or "
        "name one: --address HOST:PORT"
    )


def _addresses_here(state_dir: Path) -> Iterator[str]:
    """Yield possible addresses on this machine: ours, then in Ray's own order."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    texts = (
        _read(own_file(state_dir)),
        os.environ.get("RAY_ADDRESS", ""),
        _read(folder / "ray" / _RAY_FILE),
        _read(folder / _RAY_FILE),
    )
    for text in texts:
        if text not in ("", AUTO):
            yield text


def _read(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return read_plain(file, _MAX_BYTES).decode("ascii").strip()
    return ""


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return False
    with (
        suppress(OSError, OverflowError),
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S),
    ):
        return True
    return False
