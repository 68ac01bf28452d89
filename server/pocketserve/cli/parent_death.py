"""Run a command that ends with its parent process.

A server that was started for one command must not survive the SIGKILL of that command.
"""

from __future__ import annotations

import sys

from pocketserve.cli import main
from pocketserve.engine.device.processes import bind_to
from pocketserve.terminal.errors import EXIT_FAILED

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]) if bind_to(int(sys.argv[1])) else EXIT_FAILED)
