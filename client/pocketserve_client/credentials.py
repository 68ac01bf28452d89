"""The token, where the caller does not give one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import platformdirs

from pocketserve_wire.files.plain_file import open_plain

APP_NAME = "pocketserve"
MAX_TOKEN_FILE = 1024  # bytes that are looked at; the server's own reading stops there


class Credentials(NamedTuple):
    """A token, or None; and in words where it comes from, or where it was looked for."""

    token: str | None
    source: str

    @property
    def advice(self) -> str:
        """Return what helps where the server does not accept it."""
        return (
            f"{self.source}. Client(token=…), Client(token_file=…), POCKETSERVE_TOKEN or POCKETSERVE_TOKEN_FILE give "
            "the right one; a program that cannot read the server's file gets it with pocketserve_client.pair() and "
            "the code that `pocketserve pair` shows"
        )


def find_credentials(
    token: str | None = None,
    token_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Credentials:
    """Return the token: the caller's own, else from the caller's file, else ``POCKETSERVE_TOKEN``, else from the file
    that ``POCKETSERVE_TOKEN_FILE`` names, else from where a server of the same user keeps it.

    A file that was named is the only one that is read: no other server's token takes the place of one that is missing.
    """
    if token:
        return Credentials(token, "the token is the one that this client was given")
    if token_file is not None:
        return _read_token(token_file, "token_file")
    if environ.get("POCKETSERVE_TOKEN"):
        return Credentials(
            environ["POCKETSERVE_TOKEN"],
            "the token comes from the variable POCKETSERVE_TOKEN",
        )
    if environ.get("POCKETSERVE_TOKEN_FILE"):
        return _read_token(
            Path(environ["POCKETSERVE_TOKEN_FILE"]), "POCKETSERVE_TOKEN_FILE"
        )
    return _read_token(
        platformdirs.user_state_path(APP_NAME) / "token", "the usual place"
    )


def find_token(
    token_file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return the token as :func:`find_credentials` finds it, for clients of others; None if there is none."""
    return find_credentials(None, token_file, environ).token


def find_state_dir() -> Path:
    """Return the folder in which a server of this user says that it runs: ``POCKETSERVE_STATE_DIR``, else the usual."""
    folder = os.environ.get("POCKETSERVE_STATE_DIR")
    return (
        Path(folder).expanduser() if folder else platformdirs.user_state_path(APP_NAME)
    )


def _read_token(path: Path, origin: str) -> Credentials:
    try:
        with open_plain(path) as file:
            text = file.read(MAX_TOKEN_FILE).decode("ascii").strip()
    except OSError as error:
        return Credentials(
            None,
            f"there is no token: {path} ({origin}) cannot be read ({error.strerror})",
        )
    except UnicodeDecodeError:
        text = ""
    if not text:
        return Credentials(None, f"there is no token: {path} ({origin}) holds none")
    return Credentials(text, f"the token comes from {path} ({origin})")
