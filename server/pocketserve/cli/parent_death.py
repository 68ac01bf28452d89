"""Runs a command that ends with the process that started it, however that ends: ``python -m … PARENT COMMAND…``.

Nobody else would end a server that was started for one command, once that command was ended by signal 9.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from pocketserve.cli import EXIT_FAILED, main

PR_SET_PDEATHSIG = 1


def bind_to(parent: int) -> bool:
    """End this process when the thread that started it ends; False if it has ended already.

    Where the system knows no such thing (it is Linux's, and so Android's), nothing happens.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform in ("linux", "android") else None
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]) if bind_to(int(sys.argv[1])) else EXIT_FAILED)
