"""The launcher of a process on the phone.

Run as a file by a bare interpreter (``python -I -S launch.py SPECIFICATION COMMAND…``),
so it imports nothing of ours. The command replaces the process and keeps its id.
Without a command it only prints the paths that can be hidden.
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
    """Prepare this process and execute the command."""
    specification = json.loads(sys.argv[1])
    # A stopped process is woken by nothing else when the simulation ends.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The simulation may have been killed before that.
    if os.getppid() != specification["parent"]:
        os._exit(1)
    # From here on this process may be stopped.
    if specification["ready"] is not None:
        os.write(specification["ready"], b"1")
        os.close(specification["ready"])
    masked = _hide(specification["hide"])
    if len(sys.argv) == 2:
        print(json.dumps(masked))
        return
    os.sched_setaffinity(0, specification["cores"])
    os.execv(sys.argv[2], sys.argv[2:])


def _hide(covers: dict[str, str]) -> list[str]:
    """Mount covers over paths; return the paths that are hidden now."""
    if not covers or not _unshare_mounts():
        return []
    return [path for path in covers if _mount(covers[path], path, MS_BIND)]


def _unshare_mounts() -> bool:
    """Enter a new mount name space.

    This takes privileges or a user name space, and many sandboxes allow neither.
    """
    user = os.geteuid()
    group = os.getegid()
    if libc.unshare(CLONE_NEWNS) != 0:
        if libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
            return False
        _write("setgroups", "deny")
        _write("uid_map", f"{user} {user} 1")
        _write("gid_map", f"{group} {group} 1")
    return _mount("none", "/", MS_REC | MS_PRIVATE)


def _write(name: str, line: str) -> None:
    with open(f"/proc/self/{name}", "w") as file:
        file.write(line)


def _mount(source: str, target: str, flags: int) -> bool:
    code = libc.mount(
        source.encode(), target.encode(), None, ctypes.c_ulong(flags), None
    )
    return bool(code == 0)


if __name__ == "__main__":
    main()
