"""Confines the process of a trial, as far as the kernel offers it: Landlock for files, seccomp for system calls.

Files come first, while there is one thread: Landlock holds for the thread that asks and for those that it starts.
System calls follow once the framework is imported, for all threads at once: imports start programs. Each of both may be
missing; the trial goes on without. The calls and structures are those of the kernel's
``Documentation/userspace-api/landlock.rst`` and ``seccomp(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from pocketserve.quarantine.system_calls import architecture, build_filter

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE, _MAKE_CHAR, _MAKE_BLOCK, _MAKE_OTHERS = (
    16 | 32,
    64,
    2048,
    128 | 256 | 512 | 1024 | 4096,
)
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule on a file, not on a folder, may name."""

_READ: Final = _READ_FILE | _READ_DIR
_WRITE: Final = _READ | _WRITE_FILE | _REMOVE | _MAKE_OTHERS | _REFER | _TRUNCATE
_DEVICE: Final = _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
RIGHTS: Final = {
    "list": _READ_DIR,
    "read": _READ,
    "execute": _READ | _EXECUTE,
    "write": _WRITE,
    "device": _DEVICE,
}
"""What a list of rules allows below its paths."""

_SET_NO_NEW_PRIVS, _ALL_THREADS = 38, 1

PROBE: Final = "--probe"
_NO_LINUX: Final = "it is a part of Linux"
_FORBIDDEN: Final = "the system forbids apps to ask for it"


class Confinement(NamedTuple):
    """The confinement of a process: the kernel's version of Landlock, and why each layer does not hold, or ""."""

    landlock: int
    landlock_fault: str
    seccomp_fault: str

    @property
    def confined(self) -> bool:
        """Return whether anything holds."""
        return not (self.landlock_fault and self.seccomp_fault)

    def describe(self) -> str:
        """Return a text for the doctor: ``seccomp yes, Landlock ABI 3``."""
        calls = (
            f"seccomp no ({self.seccomp_fault})"
            if self.seccomp_fault
            else "seccomp yes"
        )
        files = (
            f"Landlock no ({self.landlock_fault})"
            if self.landlock_fault
            else f"Landlock ABI {self.landlock}"
        )
        return f"{calls}, {files}"


def confine_files(rules: Mapping[str, Sequence[str]]) -> tuple[int, str]:
    """Restrict this thread, and those that it starts, to some files; and forbid TCP, where the kernel can do that.

    Return the kernel's version of Landlock and "", or 0 and why it does not hold. Paths that do not exist are left out.
    """
    if sys.platform not in ("linux", "android"):
        return 0, _NO_LINUX
    with _trapped() as trapped:
        version = _system_call(_CREATE_RULESET, None, 0, 1)
        if trapped():
            return 0, _FORBIDDEN
    if version < 1:
        missing = ctypes.get_errno() == errno.ENOSYS
        return (
            0,
            "the kernel has none (it came with Linux 5.13)" if missing else _reason(),
        )
    handled = _EXECUTE | _WRITE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version < since:
            handled &= ~right
    # Files; from version 4 on the network, and from 6 on signals and sockets of others.
    attributes = struct.pack("<QQQ", handled, 3, 3)[
        : 24 if version >= 6 else 16 if version >= 4 else 8
    ]
    ruleset = _system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return 0, _reason()
    try:
        for name, paths in rules.items():
            for path in paths:
                _allow(ruleset, path, RIGHTS[name] & handled)
        if _forbid_new_rights() or _system_call(_RESTRICT_SELF, ruleset, 0) < 0:
            return 0, _reason()
    finally:
        os.close(ruleset)
    return version, ""


def confine_calls(
    *, may_start_processes: bool = False, may_listen: bool = False
) -> str:
    """Refuse this process, in all of its threads, system calls that no model needs; return why that fails, or "".

    Args:
        may_listen: see :func:`~pocketserve.quarantine.system_calls.build_filter`.
    """
    if sys.platform not in ("linux", "android"):
        return _NO_LINUX
    bits = 8 * ctypes.sizeof(ctypes.c_void_p)
    machine = architecture(os.uname().machine, bits)
    if machine is None:
        return (
            f"the system calls of {os.uname().machine} with {bits} bits are not known"
        )
    program = build_filter(
        machine,
        os.getpid(),
        may_start_processes=may_start_processes,
        may_listen=may_listen,
    )
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack(
        "HxxxxxxP" if bits == 64 else "HxxP", len(program) // 8, ctypes.addressof(code)
    )
    if _forbid_new_rights():
        return _reason()
    with _trapped() as trapped:
        result = _system_call(machine.seccomp, 1, _ALL_THREADS, header)
        if trapped():
            return _FORBIDDEN
    if result > 0:
        return "a thread has a filter of its own"
    return _reason() if result < 0 else ""


@contextmanager
def _trapped() -> Iterator[Callable[[], bool]]:
    """Notice a system call for which this process is sent SIGSYS, as by Android's filter for apps."""
    signals: list[int] = []
    handler = signal.signal(signal.SIGSYS, lambda number, frame: signals.append(number))
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGSYS, handler)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # nothing there
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _OF_FILES
        _system_call(_ADD_RULE, ruleset, 1, struct.pack("<Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _forbid_new_rights() -> int:
    return int(ctypes.CDLL(None, use_errno=True).prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _system_call(number: int, *arguments: Any) -> int:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    # A bare int would go as 32 bits, and the kernel would read the rest of the register.
    values = (
        ctypes.c_long(value) if isinstance(value, int) else value
        for value in (number, *arguments)
    )
    return int(function(*values))


def _reason() -> str:
    return os.strerror(ctypes.get_errno())


def probe_confinement() -> Confinement:
    """Confine this process for good, and check that it holds."""
    version, files = confine_files({"read": [sys.prefix, sys.base_prefix]})
    calls = confine_calls()
    import socket  # late: a trial needs none

    with suppress(OSError):
        socket.socket().close()
        calls = calls or "the kernel took the filter, and lets sockets through"
    return Confinement(version, files, calls)


def main(arguments: Sequence[str]) -> int:
    """Confine this process, then try a model; or print what confines a process on this device."""
    if arguments[0] == PROBE:
        confinement = probe_confinement()
        print(
            json.dumps(
                {"confined": confinement.confined, "sentence": confinement.describe()}
            )
        )
        return 0
    rules = json.loads(arguments[0])
    may_start_processes = rules.pop("processes")
    confines_itself = rules.pop("confines_itself", False)
    version, fault = confine_files(rules)
    from pocketserve.quarantine import (
        trial,
    )  # from here on, nothing is imported unconfined

    def confine() -> Confinement:
        if confines_itself:  # by another filter, which would not be stronger with this
            return Confinement(version, fault, "its own process has one")
        calls = confine_calls(may_start_processes=may_start_processes)
        return Confinement(version, fault, calls)

    return trial.main(confine)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
