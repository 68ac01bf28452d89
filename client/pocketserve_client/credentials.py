"""Find the access token if the program does not pass one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import platformdirs

from pocketserve_wire.files.plain_file import open_plain

APP_NAME = "pocketserve"
MAX_TOKEN_FILE = 1024  # bytes that are read; the server has the same limit


class Credentials(NamedTuple):
    """A token or None, and a description of its source."""

    token: str | None
    source: str

    @property
    def advice(self) -> str:
        """Return advice for a token that the server rejects."""
        return (
            f"{self.source}. Set the right one with Client(token=…), "
            "Client(token_file=…), POCKETSERVE_TOKEN or POCKETSERVE_TOKEN_FILE; a "
            "program that cannot read the server's file gets it with "
            "pocketserve_client.pair() and the code that `pocketserve pair` shows"
        )


def find_credentials(
    token: str | None = None,
    token_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Credentials:
    """Find the token.

    It is the first of: ``token``, the content of ``token_file``, ``POCKETSERVE_TOKEN``,
    the content of ``POCKETSERVE_TOKEN_FILE``, the token that a server of the same user
    has stored. If a file is named, no later source is used: a missing token is not
    replaced by that of another server.
    """
    if token:
        return Credentials(token, "the token is the one that was passed to this client")
    if token_file is not None:
        return _read_token(token_file, "token_file")
    variable = environ.get("POCKETSERVE_TOKEN")
    if variable:
        source = "the token comes from the variable POCKETSERVE_TOKEN"
        return Credentials(variable, source)
    named_file = environ.get("POCKETSERVE_TOKEN_FILE")
    if named_file:
        return _read_token(Path(named_file), "POCKETSERVE_TOKEN_FILE")
    default_file = platformdirs.user_state_path(APP_NAME) / "token"
    return _read_token(default_file, "the default file")


def find_token(
    token_file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return the token that :func:`find_credentials` finds, for other clients."""
    return find_credentials(None, token_file, environ).token


def find_state_dir() -> Path:
    """Return the state folder of this user's server, which has its run files."""
    folder = os.environ.get("POCKETSERVE_STATE_DIR")
    if folder:
        return Path(folder).expanduser()
    return platformdirs.user_state_path(APP_NAME)


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
        return Credentials(None, f"there is no token: {path} ({origin}) is empty")
    return Credentials(text, f"the token comes from {path} ({origin})")
