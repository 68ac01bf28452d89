"""Where the token comes from when the caller does not give one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

APP_NAME = "pocketserve"


def find_token(token_file: Path | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The token from ``POCKETSERVE_TOKEN``, else from a file; None where there is none.

    Args:
        token_file: the file; by default ``POCKETSERVE_TOKEN_FILE``, else where a server of the same user keeps it.
    """
    if environ.get("POCKETSERVE_TOKEN"):
        return environ["POCKETSERVE_TOKEN"]
    named = environ.get("POCKETSERVE_TOKEN_FILE")
    path = token_file or (Path(named) if named else platformdirs.user_state_path(APP_NAME) / "token")
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
