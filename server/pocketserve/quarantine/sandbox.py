"""Confine a trial's process with Landlock and seccomp.

Files come first, while there is one thread: Landlock applies to the calling thread and
those that it starts. System calls follow after the framework's import, for all threads
at once, because imports start programs. A kernel may lack either; the trial then runs
without it. The calls and structures are those of the kernel's
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
_REMOVE = 16 | 32
_MAKE_CHAR = 64
_MAKE_BLOCK = 2048
_MAKE_OTHERS = 128 | 256 | 512 | 1024 | 4096
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that apply to files, not only to folders."""

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
"""The rights below a path, by the name of its list of rules."""

_SET_NO_NEW_PRIVS, _ALL_THREADS = 38, 1

PROBE: Final = "--probe"
_NO_LINUX: Final = "it is a part of Linux"
_FORBIDDEN: Final = "the system does not allow apps to use it"


class Confinement(NamedTuple):
    """The confinement of a process.

    Attributes:
        landlock: the kernel's Landlock version.
        landlock_fault, seccomp_fault: why a layer is missing, or "".
    """

    landlock: int
    landlock_fault: str
    seccomp_fault: str

    @property
    def confined(self) -> bool:
        """Return whether at least one layer is active."""
        return not (self.landlock_fault and self.seccomp_fault)

    def describe(self) -> str:
        """Describe the confinement for the doctor."""
        calls = "seccomp yes"
        if self.seccomp_fault:
            calls = f"seccomp no ({self.seccomp_fault})"
        files = f"Landlock ABI {self.landlock}"
        if self.landlock_fault:
            files = f"Landlock no ({self.landlock_fault})"
        return f"{calls}, {files}"


def limit_resources(limits: Mapping[int, int]) -> None:
    """Set hard limits of this process, by kind; one that can't be set is left out."""
    import resource  # late: only a confined process needs it

    for kind, value in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))


def confine_files(rules: Mapping[str, Sequence[str]]) -> tuple[int, str]:
    """Restrict this thread to some files, and forbid TCP.

    Paths that do not exist are ignored. Older kernels cannot forbid TCP.

    Returns:
        The kernel's version of Landlock and "", or 0 and why it is not active.
    """
    if sys.platform not in ("linux", "android"):
        return 0, _NO_LINUX
    with _trapped() as trapped:
        version = _system_call(_CREATE_RULESET, None, 0, 1)
        if trapped():
            return 0, _FORBIDDEN
    if version < 1:
        if ctypes.get_errno() == errno.ENOSYS:
            return 0, "the kernel has none (it came with Linux 5.13)"
        return 0, _reason()
    handled = _handled_rights(version)
    attributes = _ruleset_attributes(version, handled)
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


def _handled_rights(version: int) -> int:
    """Return the rights that this version of Landlock controls."""
    handled = _EXECUTE | _WRITE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version < since:
            handled &= ~right
    return handled


def _ruleset_attributes(version: int, handled: int) -> bytes:
    """Encode the controlled rights: files, TCP, scopes.

    Scopes are signals to other processes and their abstract sockets.
    """
    attributes = struct.pack("<QQQ", handled, 3, 3)
    if version >= 6:
        return attributes
    return attributes[:16] if version >= 4 else attributes[:8]


def confine_calls(
    *, may_start_processes: bool = False, may_listen: bool = False
) -> str:
    """Forbid system calls that no model needs; return the error or "".

    Args:
        may_listen: see :func:`~pocketserve.quarantine.system_calls.build_filter`.
    """
    if sys.platform not in ("linux", "android"):
        return _NO_LINUX
    bits = 8 * ctypes.sizeof(ctypes.c_void_p)
    machine = architecture(os.uname().machine, bits)
    if machine is None:
        name = os.uname().machine
        return f"the system calls of {name} with {bits} bits are not known"
    program = build_filter(
        machine,
        os.getpid(),
        may_start_processes=may_start_processes,
        may_listen=may_listen,
    )
    code = ctypes.create_string_buffer(program, len(program))
    layout = "HxxxxxxP" if bits == 64 else "HxxP"
    header = struct.pack(layout, len(program) // 8, ctypes.addressof(code))
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
    """Detect system calls that raise SIGSYS, as on Android."""
    signals: list[int] = []
    handler = signal.signal(signal.SIGSYS, lambda number, frame: signals.append(number))
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGSYS, handler)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it does not exist
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
    # ctypes passes a bare int as 32 bits, but the kernel reads the whole register.
    values = []
    for value in (number, *arguments):
        values.append(ctypes.c_long(value) if isinstance(value, int) else value)
    return int(function(*values))


def _reason() -> str:
    return os.strerror(ctypes.get_errno())


def probe_confinement() -> Confinement:
    """Confine this process permanently, and check that it is effective."""
    version, files = confine_files({"read": [sys.prefix, sys.base_prefix]})
    calls = confine_calls()
    import socket  # late, because a trial doesn't need it

    with suppress(OSError):
        socket.socket().close()
        calls = calls or "the kernel took the filter, and lets sockets through"
    return Confinement(version, files, calls)


def main(arguments: Sequence[str]) -> int:
    """Confine this process and run a trial, or print its confinement."""
    if arguments[0] == PROBE:
        confinement = probe_confinement()
        document = {
            "confined": confinement.confined,
            "sentence": confinement.describe(),
        }
        print(json.dumps(document))
        return 0
    rules = json.loads(arguments[0])
    may_start_processes = rules.pop("processes")
    confines_itself = rules.pop("confines_itself", False)
    version, fault = confine_files(rules)
    # Imported late, so that it happens inside the confinement.
    from pocketserve.quarantine import trial

    def confine() -> Confinement:
        if confines_itself:  # with its own filter, which this one would not strengthen
            return Confinement(version, fault, "its own process has one")
        calls = confine_calls(may_start_processes=may_start_processes)
        return Confinement(version, fault, calls)

    return trial.main(confine)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
