"""The server's ports: free, or who has them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem
from pocketserve.state.run_lock import running_servers

if TYPE_CHECKING:
    from pocketserve.config import Config

LISTENING = "0A"


def check_ports(device: Device, config: Config) -> Iterator[Finding]:
    """Bind each for a moment, as the server would."""
    own = {
        port: run.pid for run in running_servers(config.state_dir) for port in run.ports
    }
    ports = {"http": config.http_port} | (
        {"socket": config.socket_port} if config.socket else {}
    )
    for name, port in ports.items():
        if port in own:
            yield ok(
                "ports",
                f"{name} port {port} is served by a running pocketserve (process {own[port]})",
            )
        elif (code := _bind_error(config.host, port)) is None:
            yield ok("ports", f"{name} port {port} is free")
        else:
            yield _fault(device, config.host, name, port, code)


def _fault(device: Device, host: str, name: str, port: int, code: int) -> Finding:
    """Return what a bind error means."""
    other = f"pocketserve serve --{name}-port {port + 100 if port >= 1024 else 8571}"
    if code in (errno.EACCES, errno.EPERM):
        return problem("ports", f"{name} port {port} may not be used", other)
    if code != errno.EADDRINUSE:
        sentence = f"{host} cannot be listened on: {os.strerror(code)}"
        return problem("ports", sentence, "pocketserve serve --host 127.0.0.1")
    holder = _holder(device, port)
    by = f" by {holder[1]} (process {holder[0]})" if holder else " by another app"
    return problem(
        "ports",
        f"{name} port {port} is taken{by}",
        f"kill {holder[0]}, or {other}" if holder else other,
    )


def _bind_error(host: str, port: int) -> int | None:
    """Return the number of the error that a server would meet; None if it would not."""
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


def _holder(device: Device, port: int) -> tuple[str, str] | None:
    """Return process and name of what listens on a port, if it is of the same user and the system tells."""
    sockets = {
        name for name, number in listeners(device.read).items() if number == port
    }
    for folder in sorted((device.root / "proc").glob("[0-9]*/fd")) if sockets else ():
        try:
            if any(os.readlink(entry) in sockets for entry in folder.iterdir()):
                pid = folder.parent.name
                return pid, device.read(f"proc/{pid}/comm").strip() or "a program"
        except OSError:
            continue
    return None


def listeners(read: Callable[[str], str]) -> dict[str, int]:
    """Return the TCP ports that are listened on, by the socket's name in ``/proc/PID/fd``; ``read`` reads a file."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in read(f"proc/net/{name}").splitlines()[1:]
    ]
    listening = [row for row in rows if len(row) > 9 and row[3] == LISTENING]
    return {
        f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in listening
    }
