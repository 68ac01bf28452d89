"""Confine this process, and replace it by a program that reads an untrusted file.

Started by :mod:`pocketserve.tasks.audio.ffmpeg` with JSON on the command line. The file
is the standard input; the program can open others only to run at all.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Sequence

from pocketserve.quarantine.sandbox import (
    confine_calls,
    confine_files,
    limit_resources,
)

MAX_LOG_BYTES = 64 * 1024
MAX_OPEN_FILES = 64
LOWEST_PRIORITY = 19


def main(arguments: Sequence[str]) -> int:
    """Set the limits and become the program."""
    request = json.loads(arguments[0])
    command = request["command"]
    _limit(request["data_limit"], request["cpu_seconds"])
    # The alarm survives exec: the program ends even if the server was killed.
    signal.alarm(request["seconds"])
    os.nice(LOWEST_PRIORITY)
    confine_files(request["rules"])
    confine_calls(may_start_processes=True)
    os.execve(command[0], command, {})


def _limit(data_bytes: int, cpu_seconds: int) -> None:
    """Bound memory, time, the log and open files, and forbid core files.

    Address space has no limit: Android reserves gigabytes of it for each process.
    """
    limit_resources(
        {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: cpu_seconds,
            resource.RLIMIT_DATA: data_bytes,
            resource.RLIMIT_FSIZE: MAX_LOG_BYTES,
            resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
