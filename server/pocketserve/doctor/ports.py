"""Check whether the server's ports are free."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem
from pocketserve.state.run_lock import running_servers

if TYPE_CHECKING:
    from pocketserve.config import Config

LISTENING = "0A"


def check_ports(device: Device, config: Config) -> Iterator[Finding]:
    """Bind each port for a moment, as the server would."""
    own = _own_ports(config)
    ports = {"http": config.http_port}
    if config.socket:
        ports["socket"] = config.socket_port
    for name, port in ports.items():
        if port in own:
            sentence = (
                f"{name} port {port} is served by a running pocketserve "
                f"(process {own[port]})"
            )
            yield ok("ports", sentence)
            continue
        code = _bind_error(config.host, port)
        if code is None:
            yield ok("ports", f"{name} port {port} is free")
        else:
            yield _fault(device, config.host, name, port, code)


def _own_ports(config: Config) -> dict[int, int]:
    """Return the process ids of this user's servers by port."""
    own = {}
    for run in running_servers(config.state_dir):
        own.update(dict.fromkeys(run.ports, run.pid))
    return own


def _fault(device: Device, host: str, name: str, port: int, code: int) -> Finding:
    """Return the finding for a bind error."""
    other_port = 8571
    if port >= 1024:
        other_port = port + 100
    other = f"pocketserve serve --{name}-port {other_port}"
    if code in (errno.EACCES, errno.EPERM):
        return problem("ports", f"{name} port {port} may not be used", other)
    if code != errno.EADDRINUSE:
        return problem(
            "ports",
            f"{host} is not an address to listen on: {os.strerror(code)}",
            "pocketserve serve --host 127.0.0.1",
        )
    sentence = f"{name} port {port} is taken by"
    return _port_in_use(sentence, _holder(device, port), other)


class _PortHolder(NamedTuple):
    """A process that listens on a port."""

    pid: str
    program: str


def _port_in_use(sentence: str, holder: _PortHolder | None, other: str) -> Finding:
    if holder is None:
        return problem("ports", f"{sentence} another app", other)
    sentence += f" {holder.program} (process {holder.pid})"
    return problem("ports", sentence, f"kill {holder.pid}, or {other}")


def _bind_error(host: str, port: int) -> int | None:
    """Return the error number of binding a port, or None."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return None


def _holder(device: Device, port: int) -> _PortHolder | None:
    """Return the process that listens on a port, if visible."""
    sockets = set()
    for name, number in listeners(device.read).items():
        if number == port:
            sockets.add(name)
    if not sockets:
        return None
    for folder in sorted((device.root / "proc").glob("[0-9]*/fd")):
        if not _has_any(folder, sockets):
            continue
        pid = folder.parent.name
        program = device.read(f"proc/{pid}/comm").strip()
        return _PortHolder(pid, program or "a program")
    return None


def _has_any(folder: Path, sockets: Set[str]) -> bool:
    """Return whether a process's open files include one of the sockets."""
    try:
        for entry in folder.iterdir():
            if os.readlink(entry) in sockets:
                return True
    except OSError:  # a process that ended, or one of another user
        return False
    return False


def listeners(read: Callable[[str], str]) -> dict[str, int]:
    """Return the listening TCP ports by socket name.

    Args:
        read: reads a system file.
    """
    ports = {}
    for name in ("tcp", "tcp6"):
        table = read(f"proc/net/{name}")
        for line in table.splitlines()[1:]:
            row = line.split()
            if len(row) <= 9 or row[3] != LISTENING:
                continue
            _, _, port = row[1].rpartition(":")
            inode = row[9]
            ports[f"socket:[{inode}]"] = int(port, 16)
    return ports
