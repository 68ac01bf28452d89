"""Imported by each Python that a test starts with this folder on its path: see ``waiting_labels.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from pocketserve_wire.files import plain_file
from waiting_labels import read

plain_file.read_plain = read
