"""The first thing that runs in a process on the phone: binds it, ties its life to the simulation's, and gives way.

Run as a file by a bare interpreter (``python -I -S launch.py SPECIFICATION COMMAND…``), so it imports nothing of ours.
The command takes over the process, with the same id.
"""

import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare this process and become the command."""
    specification = json.loads(sys.argv[1])
    _die_with(specification["parent"])
    os.sched_setaffinity(0, specification["cores"])
    os.execv(sys.argv[2], sys.argv[2:])


def _die_with(parent: int) -> None:
    """End when the simulation is killed: nobody else would wake a process that it has stopped."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was killed before this was asked for
        os._exit(1)


if __name__ == "__main__":
    main()
