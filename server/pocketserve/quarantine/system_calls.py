"""Build the seccomp filter of a trial's system calls.

It lists the forbidden calls, not the allowed ones, because each version of a framework
uses others. The numbers are those of the kernel's tables (``arch/*/syscalls``,
``asm-generic/unistd.h``).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple


class Architecture(NamedTuple):
    """A kind of machine.

    Attributes:
        audit: its number in ``linux/audit.h``.
        column: its column in the tables of this module.
        seccomp: its number of the system call ``seccomp``.
    """

    audit: int
    column: int
    seccomp: int


_X86_64 = Architecture(0xC000003E, 0, 317)
_AARCH64 = Architecture(0xC00000B7, 1, 277)
_ARM = Architecture(0x40000028, 2, 383)

_REFUSED: Final[dict[str, tuple[int, int, int]]] = {
    # name: x86_64, aarch64, 32-bit arm; 0 if there is none
    # No network, and no daemons on this device; socketpair is allowed.
    "socket": (41, 198, 281),
    "ptrace": (101, 117, 26),
    "process_vm_readv": (310, 270, 376),
    "process_vm_writev": (311, 271, 377),
    "kcmp": (312, 272, 378),
    "tkill": (200, 130, 238),
    "mount": (165, 40, 21),
    "umount2": (166, 39, 52),
    "pivot_root": (155, 41, 218),
    "chroot": (161, 51, 61),
    "unshare": (272, 97, 337),
    "setns": (308, 268, 375),
    "keyctl": (250, 219, 311),
    "add_key": (248, 217, 309),
    "request_key": (249, 218, 310),
    "bpf": (321, 280, 386),
    "perf_event_open": (298, 241, 364),
    "userfaultfd": (323, 282, 388),
    "init_module": (175, 105, 128),
    "finit_module": (313, 273, 379),
    "delete_module": (176, 106, 129),
    "kexec_load": (246, 104, 347),
    "kexec_file_load": (320, 294, 401),
    "reboot": (169, 142, 88),
    "swapon": (167, 224, 87),
    "swapoff": (168, 225, 115),
    "acct": (163, 89, 51),
    "quotactl": (179, 60, 131),
    "syslog": (103, 116, 103),
    "settimeofday": (164, 170, 79),
    "clock_settime": (227, 112, 262),
    "clock_adjtime": (305, 266, 372),
    "adjtimex": (159, 171, 124),
    "sethostname": (170, 161, 74),
    "setdomainname": (171, 162, 121),
    "open_by_handle_at": (304, 265, 371),
    "ioperm": (173, 0, 0),
    "iopl": (172, 0, 0),
    "modify_ldt": (154, 0, 0),
    # Landlock does not cover modes, owners, times and extended attributes.
    "chmod": (90, 0, 15),
    "fchmod": (91, 52, 94),
    "fchmodat": (268, 53, 333),
    "chown": (92, 0, 182),
    "fchown": (93, 55, 95),
    "lchown": (94, 0, 16),
    "fchownat": (260, 54, 325),
    "chown32": (0, 0, 212),
    "fchown32": (0, 0, 207),
    "lchown32": (0, 0, 198),
    "utime": (132, 0, 30),
    "utimes": (235, 0, 269),
    "futimesat": (261, 0, 326),
    "utimensat": (280, 88, 348),
    "utimensat_time64": (0, 0, 412),
    "setxattr": (188, 5, 226),
    "lsetxattr": (189, 6, 227),
    "fsetxattr": (190, 7, 228),
    "removexattr": (197, 14, 235),
    "lremovexattr": (198, 15, 236),
    "fremovexattr": (199, 16, 237),
    # Priorities of other processes.
    "setpriority": (141, 140, 97),
    "ioprio_set": (251, 30, 314),
    "migrate_pages": (256, 238, 400),
    # Memory, semaphores and queues that any process of the user can open by name.
    "shmget": (29, 194, 307),
    "shmat": (30, 196, 305),
    "shmctl": (31, 195, 308),
    "semget": (64, 190, 299),
    "semop": (65, 193, 298),
    "semctl": (66, 191, 300),
    "semtimedop": (220, 192, 312),
    "semtimedop_time64": (0, 0, 420),
    "msgget": (68, 186, 303),
    "msgsnd": (69, 189, 301),
    "msgrcv": (70, 188, 302),
    "msgctl": (71, 187, 304),
    "mq_open": (240, 180, 274),
    "mq_unlink": (241, 181, 275),
}
_REFUSED_EVERYWHERE: Final = (*range(424, 435), 438, 440, 442, 452, 463, 466, 469)
"""Calls since 2019, which have one number on all machines: pidfd_send_signal,
io_uring_setup, _enter and _register, open_tree, move_mount, fsopen, fsconfig, fsmount,
fspick, pidfd_open; pidfd_getfd, process_madvise, mount_setattr, fchmodat2, setxattrat,
removexattrat and file_setattr."""

_PROCESSES: Final[dict[str, tuple[int, int, int]]] = {
    "fork": (57, 0, 2),
    "vfork": (58, 0, 190),
    "execve": (59, 221, 11),
    "execveat": (322, 281, 387),
}
_CLONE: Final = (56, 220, 120)
_CLONE3: Final = 435
_CLONE_THREAD: Final = 0x10000

_OF_ITSELF: Final[dict[str, tuple[int, int, int]]] = {
    "kill": (62, 129, 37),
    "tgkill": (234, 131, 268),
    "rt_sigqueueinfo": (129, 138, 178),
    "rt_tgsigqueueinfo": (297, 240, 363),
    "prlimit64": (302, 261, 369),
}
"""Calls whose first argument is a process, which must be this one or 0."""

_SCHEDULING_OF_ITSELF: Final[dict[str, tuple[int, int, int]]] = {
    "sched_setaffinity": (203, 122, 241),
    "sched_setscheduler": (144, 119, 156),
    "sched_setparam": (142, 118, 154),
    "sched_setattr": (314, 274, 380),
    "move_pages": (279, 239, 344),
}
"""As above, also for a process that may start others. Frameworks pass 0."""

_SOCKET: Final = "socket"
_CONNECT: Final = (42, 203, 283)
_UNIX, _STREAM, _TYPE_MASK = 1, 1, 0xF

_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AND: Final = 0x54
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in the kernel's ``seccomp_data``; all three machines are little-endian."""

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
_ERROR: Final = 0x00050000
REFUSE: Final = _ERROR | errno.EPERM
# ENOSYS: the C library then uses an older call, whose flags the filter can read.
_UNKNOWN: Final = _ERROR | 38

_X32: Final = 0x40000000


def architecture(machine: str, bits: int) -> Architecture | None:
    """Return a process's kind of machine, or None if unknown."""
    if bits == 64:
        return {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine)
    return _ARM if machine.startswith(("arm", "aarch64")) else None


def build_filter(
    machine: Architecture,
    process: int,
    *,
    may_start_processes: bool,
    may_listen: bool = False,
) -> bytes:
    """Build the filter of a process.

    Args:
        process: the only process to which it may send signals, unless it may start
            processes.
        may_listen: it may have UNIX stream sockets, but not connect them.
    """
    code = b""
    for step in _program(machine, process, may_start_processes, may_listen):
        code += struct.pack("<HBBI", *step)
    return code


def _program(
    machine: Architecture, process: int, may_start_processes: bool, may_listen: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions: code, jump if true, jump if false, operand."""
    yield _LOAD, 0, 0, _ARCH
    yield _EQUAL, 1, 0, machine.audit
    yield _RETURN, 0, 0, KILL
    yield _LOAD, 0, 0, _NUMBER
    if machine is _X86_64:
        yield _AT_LEAST, 0, 1, _X32
        yield _RETURN, 0, 0, _UNKNOWN
    table = dict(_REFUSED if may_start_processes else _REFUSED | _PROCESSES)
    if may_listen:
        yield from _allow_listening(table.pop(_SOCKET)[machine.column])
        table["connect"] = _CONNECT
    forbidden = [numbers[machine.column] for numbers in table.values()]
    for number in (*forbidden, *_REFUSED_EVERYWHERE):
        if number:
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, REFUSE
    for numbers in _SCHEDULING_OF_ITSELF.values():
        yield from _allow_for_itself(numbers[machine.column], process)
    if not may_start_processes:
        yield from _allow_threads_only(machine)
        for numbers in _OF_ITSELF.values():
            yield from _allow_for_itself(numbers[machine.column], process)
    yield _RETURN, 0, 0, ALLOW


def _allow_listening(number: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions that allow UNIX stream sockets, but no others."""
    yield _EQUAL, 0, 7, number
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _EQUAL, 0, 4, _UNIX
    yield _LOAD, 0, 0, _SECOND_ARGUMENT
    yield _AND, 0, 0, _TYPE_MASK
    yield _EQUAL, 0, 1, _STREAM
    yield _RETURN, 0, 0, ALLOW
    yield _RETURN, 0, 0, REFUSE


def _allow_threads_only(machine: Architecture) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions that reject new processes, but not new threads."""
    yield _EQUAL, 0, 1, _CLONE3
    yield _RETURN, 0, 0, _UNKNOWN
    yield _EQUAL, 0, 4, _CLONE[machine.column]
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _HAS_BITS, 0, 1, _CLONE_THREAD
    yield _RETURN, 0, 0, ALLOW
    yield _RETURN, 0, 0, REFUSE


def _allow_for_itself(number: int, process: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions that reject a call about another process."""
    yield _EQUAL, 0, 5, number
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _EQUAL, 1, 0, process
    yield _EQUAL, 0, 1, 0
    yield _RETURN, 0, 0, ALLOW
    yield _RETURN, 0, 0, REFUSE
