"""Limits of the frames between the server and a network's process."""

from __future__ import annotations

from typing import Final

MAX_HEADER: Final = 1 << 20
MAX_PAYLOAD: Final = 1 << 30
