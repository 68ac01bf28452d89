"""Finds the Ray cluster that ``--address`` means, and checks that something answers there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pocketserve.terminal.errors import CommandError
from pocketserve_wire.files.plain_file import read_plain

AUTO = "auto"
CONNECT_S = 1.0  # for each address
_OWN_FILE = (
    "ray-address"  # in the state folder, as long as `scale` runs a Ray of its own
)
_RAY_FILE = "ray_current_cluster"  # written by `ray start --head`
_MAX_BYTES = 256  # of an address in a file


def own_file(state_dir: Path) -> Path:
    """Return the file with the address of the Ray that ``scale`` itself runs."""
    return state_dir / _OWN_FILE


def find_address(address: str, state_dir: Path) -> str:
    """Return the address of a cluster that accepts connections.

    Args:
        address: ``HOST:PORT``, or ``auto`` for the one of this machine.

    Raises:
        CommandError: there is none.
    """
    if address != AUTO:
        if not _answers(address):
            raise CommandError(
                f"no Ray answers at {address}; check the address, and that `ray start --head` runs there"
            )
        return address
    candidates = list(dict.fromkeys(_addresses_here(state_dir)))
    for candidate in candidates:
        if _answers(candidate):
            return candidate
    remark = f" ({', '.join(candidates)} does not answer)" if candidates else ""
    raise CommandError(
        f"no Ray runs on this machine{remark}; start one with `ray start --head`, or name one: --address HOST:PORT"
    )


def _addresses_here(state_dir: Path) -> Iterator[str]:
    """Yield addresses that a cluster of this machine may have: ours first, then in Ray's own order."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    files = (own_file(state_dir), folder / "ray" / _RAY_FILE, folder / _RAY_FILE)
    texts = [
        _read(files[0]),
        os.environ.get("RAY_ADDRESS", ""),
        _read(files[1]),
        _read(files[2]),
    ]
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
