"""Imported by each Python that a test starts with this folder on its path: see ``waiting_labels.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from pocketserve.state import plain_files
from waiting_labels import read

plain_files.read_plain = read
