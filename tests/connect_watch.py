"""Record the addresses to which a process and its children connect; Linux only.

The kernel asks this process before each ``connect`` and each ``sendto`` with an address
(seccomp's user notification; no privilege is needed). This process records the address
and lets the call continue. It doesn't see ``sendmsg`` on a socket without a
``connect``, which the resolvers of glibc, musl and curl don't use, nor requests of
other processes, such as a name service daemon.

This file is also the ``sitecustomize`` of the watched process: it sets the filter
before anything else runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import platform
import select
import socket
import struct
import threading
from pathlib import Path

SOCKET_VARIABLE = "CONNECT_WATCH_SOCKET"

_NUMBERS = {"x86_64": (42, 44, 317), "aarch64": (203, 206, 277)}
"""Numbers of the calls connect, sendto and seccomp. Source: the kernel's system call
tables.
"""

# sizes of struct seccomp_notif and seccomp_notif_resp
_NOTIFICATION = 80
_ANSWER = 24
# SECCOMP_IOCTL_NOTIF_RECV and _SEND
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_CONTINUE = 1
# of classic BPF: ld word, jeq, ret
_LOAD = 0x20
_EQUAL = 0x15
_RETURN = 0x06
_ASK = 0x7FC00000
_ALLOW = 0x7FFF0000


class ConnectWatch:
    """Collects the addresses to which a process connects.

    Args:
        folder: an empty folder, to put before all others in the process's ``PYTHONPATH``.

    Attributes:
        addresses: all of them so far, except those of local sockets.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(Path(__file__).read_text())
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "watch"))
        self._listener.listen(1)
        self._connect, self._sendto, _ = _NUMBERS[platform.machine()]
        self.addresses: list[str] = []
        self.environment = {SOCKET_VARIABLE: str(folder / "watch")}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def strangers(self) -> list[str]:
        """Return addresses of other machines, without the null address of getaddrinfo."""
        hosts = {}
        for address in self.addresses:
            hosts[address] = ipaddress.ip_address(address.rpartition(" ")[0])
        return [
            address
            for address, host in hosts.items()
            if not (host.is_loopback or host.is_unspecified)
        ]

    def join(self, timeout: float) -> None:
        """Wait until the process and all its children have ended."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "a child of the server lives on"

    def _run(self) -> None:
        with self._listener, self._listener.accept()[0] as connection:
            _, (notifier, *_), _, _ = socket.recv_fds(connection, 1, 1)
        try:
            poll = select.poll()
            poll.register(notifier, select.POLLIN)
            while poll.poll()[0][1] & select.POLLIN:
                with contextlib.suppress(OSError):  # the calling process has ended
                    self._answer(notifier)
        finally:
            os.close(notifier)

    def _answer(self, notifier: int) -> None:
        buffer = bytearray(_NOTIFICATION)
        fcntl.ioctl(notifier, _RECEIVE, buffer)
        mark, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", buffer)
        at, size = arguments[1:3] if number == self._connect else arguments[4:6]
        try:
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(at)
                self._note(memory.read(min(size, 128)))
        finally:
            fcntl.ioctl(
                notifier, _SEND, bytearray(struct.pack("=QqiI", mark, 0, 0, _CONTINUE))
            )

    def _note(self, address: bytes) -> None:
        family = int.from_bytes(address[:2], "little")
        port = int.from_bytes(address[2:4], "big")
        if family == socket.AF_INET:
            self.addresses.append(f"{ipaddress.ip_address(address[4:8])} {port}")
        elif family == socket.AF_INET6:
            self.addresses.append(f"{ipaddress.ip_address(address[8:24])} {port}")


def install(path: str) -> None:
    """Set the filter for this process and all its children."""
    connect, sendto, seccomp = _NUMBERS[platform.machine()]
    with socket.socket(socket.AF_UNIX) as event_loop:
        event_loop.connect(path)
        libc = ctypes.CDLL(None, use_errno=True)
        # PR_SET_NO_NEW_PRIVS, without which only root may.
        if libc.prctl(38, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        # A pointer is two words: sendto has no address if both are 0. Offsets of struct
        # seccomp_data.
        steps = [
            (_LOAD, 0, 0, 0),
            (_EQUAL, 6, 0, connect),
            (_EQUAL, 0, 4, sendto),
            (_LOAD, 0, 0, 16 + 8 * 4),
            (_EQUAL, 0, 3, 0),
            (_LOAD, 0, 0, 16 + 8 * 4 + 4),
            (_EQUAL, 0, 1, 0),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ASK),
        ]
        code = ctypes.create_string_buffer(
            b"".join(struct.pack("=HBBI", *step) for step in steps)
        )
        program = struct.pack("@HP", len(steps), ctypes.addressof(code))
        # SECCOMP_SET_MODE_FILTER, FILTER_FLAG_NEW_LISTENER.
        notifier = libc.syscall(seccomp, 1, 1 << 3, program)
        if notifier < 0:
            raise OSError(ctypes.get_errno(), "seccomp")
        socket.send_fds(event_loop, [b"."], [notifier])
        os.close(notifier)


if SOCKET_VARIABLE in os.environ:
    install(os.environ.pop(SOCKET_VARIABLE))
