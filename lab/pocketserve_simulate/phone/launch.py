"""The first thing that runs in a process on the phone: binds it, ties its life to the simulation's, and gives way.

Run as a file by a bare interpreter (``python -I -S launch.py SPECIFICATION COMMAND…``), so it imports nothing of ours.
The command takes over the process, with the same id. Without a command it only says which paths can be hidden.
"""

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Prepare this process and become the command."""
    specification = json.loads(sys.argv[1])
    libc.prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
    )  # nobody else would wake it when it is stopped
    if (
        os.getppid() != specification["parent"]
    ):  # the simulation was killed before this was asked for
        os._exit(1)
    if specification["ready"] is not None:
        os.write(specification["ready"], b"1")  # from here on it may be stopped
        os.close(specification["ready"])
    covers = specification["hide"]
    masked = (
        [path for path in covers if _mount(covers[path], path, MS_BIND)]
        if covers and _unshare_mounts()
        else []
    )
    if len(sys.argv) == 2:
        print(json.dumps(masked))
        return
    os.sched_setaffinity(0, specification["cores"])
    os.execv(sys.argv[2], sys.argv[2:])


def _unshare_mounts() -> bool:
    """Enter a new mount name space. That takes rights, or a user name space, and many sandboxes allow neither."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    return _mount("none", "/", MS_REC | MS_PRIVATE)


def _mount(source: str, target: str, flags: int) -> bool:
    return bool(
        libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None)
        == 0
    )


if __name__ == "__main__":
    main()
