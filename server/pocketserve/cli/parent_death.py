"""Runs a command that ends with the process that started it, however that ends: ``python -m … PARENT COMMAND…``.

Nobody else would end a server that was started for one command, once that command was ended by signal 9.
"""

from __future__ import annotations

import sys

from pocketserve.cli import main
from pocketserve.engine.device.processes import bind_to
from pocketserve.terminal.errors import EXIT_FAILED

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]) if bind_to(int(sys.argv[1])) else EXIT_FAILED)
