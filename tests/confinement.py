"""Check from outside that a process is confined."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def check_confined(pid: int | None) -> None:
    """Check that a process can gain no rights, and that system calls are filtered."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    if sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64"):
        assert fields["Seccomp"] == "2"


def check_no_internet_socket(pid: int | None) -> None:
    """Check that a process has neither a TCP nor a UDP socket."""
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    links = [os.readlink(descriptor) for descriptor in descriptors]
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        assert sockets.isdisjoint(line.split()[9] for line in lines)
