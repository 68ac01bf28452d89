"""What the process of a trial is confined to, as far as the kernel offers it: Landlock for files, seccomp for calls.

Run as ``python -m pocketserve.quarantine.sandbox RULES``, it is confined to its rules and then tries the model that
standard input describes. Files come first, while there is one thread: Landlock holds for the thread that asks and for
those that it starts. System calls follow once the framework is imported, for all threads at once: imports start
programs. Each of both may be missing; the trial goes on without.

The calls and structures are those of the kernel's ``Documentation/userspace-api/landlock.rst`` and ``seccomp(2)``.
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
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pocketserve.quarantine.system_calls import architecture, build_filter

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE, _MAKE_CHAR, _MAKE_BLOCK, _MAKE_OTHERS = 16 | 32, 64, 2048, 128 | 256 | 512 | 1024 | 4096
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule on a file, not on a folder, may name."""

_READ: Final = _READ_FILE | _READ_DIR
_WRITE: Final = _READ | _WRITE_FILE | _REMOVE | _MAKE_OTHERS | _REFER | _TRUNCATE
_DEVICE: Final = _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
RIGHTS: Final = {"list": _READ_DIR, "read": _READ, "execute": _READ | _EXECUTE, "write": _WRITE, "device": _DEVICE}
"""What a list of rules allows below its paths."""

_SET_NO_NEW_PRIVS, _ALL_THREADS = 38, 1

PROBE: Final = "--probe"
_SOON: Final = "the kernel has none (it came with Linux 5.13)"
_FORBIDDEN: Final = "the system forbids apps to ask for it"


@dataclass(frozen=True, slots=True)
class Confinement:
    """What holds in a process.

    Attributes:
        landlock: the kernel's version of it; 0 where it does not hold.
        landlock_fault, seccomp_fault: why each does not hold; empty where it does.
    """

    landlock: int
    landlock_fault: str
    seccomp_fault: str

    @property
    def confined(self) -> bool:
        """Return whether anything holds."""
        return not (self.landlock_fault and self.seccomp_fault)

    def describe(self) -> str:
        """Say it as the doctor does: ``seccomp yes, Landlock ABI 3``."""
        calls = f"seccomp no ({self.seccomp_fault})" if self.seccomp_fault else "seccomp yes"
        files = f"Landlock no ({self.landlock_fault})" if self.landlock_fault else f"Landlock ABI {self.landlock}"
        return f"{calls}, {files}"


def confine_files(rules: Mapping[str, Sequence[str]]) -> tuple[int, str]:
    """Let this thread, and those that it starts, use only some files; and no TCP, where the kernel can say that.

    Args:
        rules: paths by the names of :data:`RIGHTS`. Those that do not exist are left out.

    Returns:
        The kernel's version of Landlock and nothing; or 0 and why it does not hold.
    """
    if sys.platform not in ("linux", "android"):
        return 0, "it is a part of Linux"
    call = _system_call()
    with _traps() as trapped:
        version = call(_CREATE_RULESET, None, 0, 1)
        if trapped():
            return 0, _FORBIDDEN
    if version < 1:
        return 0, _SOON if ctypes.get_errno() == errno.ENOSYS else _reason()
    handled = _EXECUTE | _WRITE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version < since:
            handled &= ~right
    attributes = struct.pack("<QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = call(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return 0, _reason()
    try:
        for name, paths in rules.items():
            for path in paths:
                _allow(call, ruleset, path, RIGHTS[name] & handled)
        if _forbid_new_rights() or call(_RESTRICT_SELF, ruleset, 0) < 0:
            return 0, _reason()
    finally:
        os.close(ruleset)
    return version, ""


def confine_calls(*, may_start_processes: bool = False) -> str:
    """Refuse this process, in all of its threads, system calls that no model needs.

    Returns:
        Why it cannot be done; empty where it holds.
    """
    if sys.platform not in ("linux", "android"):
        return "it is a part of Linux"
    bits = 8 * ctypes.sizeof(ctypes.c_void_p)
    machine = architecture(os.uname().machine, bits)
    if machine is None:
        return f"the system calls of {os.uname().machine} with {bits} bits are not known"
    program = build_filter(machine, os.getpid(), may_start_processes=may_start_processes)
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP" if bits == 64 else "HxxP", len(program) // 8, ctypes.addressof(code))
    if _forbid_new_rights():
        return _reason()
    with _traps() as trapped:
        done = _system_call()(machine.seccomp, 1, _ALL_THREADS, described)
        if trapped():
            return _FORBIDDEN
    if done > 0:
        return "a thread has a filter of its own"
    return _reason() if done < 0 else ""


@contextmanager
def _traps() -> Iterator[Callable[[], bool]]:
    """Notice a system call for which this process is sent SIGSYS, as Android's own filter for apps does.

    Its answer means nothing then.
    """
    caught: list[int] = []
    before = signal.signal(signal.SIGSYS, lambda number, frame: caught.append(number))
    try:
        yield lambda: bool(caught)
    finally:
        signal.signal(signal.SIGSYS, before)


def _allow(call: Any, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # nothing there
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{place}"):
            rights &= _OF_FILES
        call(_ADD_RULE, ruleset, 1, struct.pack("<Qi", rights, place), 0)
    finally:
        os.close(place)


def _forbid_new_rights() -> int:
    return int(_library().prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _system_call() -> Any:
    function = _library().syscall
    function.restype = ctypes.c_long

    def call(number: int, *arguments: Any) -> int:
        # A bare int would go as 32 bits, and the kernel would read the rest of the register.
        given = (ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)
        return int(function(ctypes.c_long(number), *given))

    return call


def _reason() -> str:
    return os.strerror(ctypes.get_errno())


def probe() -> Confinement:
    """Confine this process for good, and look whether that holds."""
    version, files = confine_files({"read": [sys.prefix, sys.base_prefix]})
    calls = confine_calls()
    import socket  # here: a trial needs none

    try:
        socket.socket().close()
        calls = calls or "the kernel took the filter, and lets sockets through"
    except OSError:
        pass
    return Confinement(version, files, calls)


def main(arguments: Sequence[str]) -> int:
    """Confine this process, then try a model; or tell what confines a process on this device."""
    if arguments[0] == PROBE:
        found = probe()
        print(json.dumps({"confined": found.confined, "sentence": found.describe()}))
        return 0
    rules = json.loads(arguments[0])
    may_start_processes = rules.pop("processes")
    version, fault = confine_files(rules)
    from pocketserve.quarantine import trial  # from here on, nothing is imported unconfined

    return trial.main(lambda: Confinement(version, fault, confine_calls(may_start_processes=may_start_processes)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
