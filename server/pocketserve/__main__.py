"""``python -m pocketserve``."""

import sys

from pocketserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
