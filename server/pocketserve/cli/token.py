"""``pocketserve token``: show the token that clients need."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pocketserve.cli import CommandError
from pocketserve.config import Config, load_config
from pocketserve.security import ensure_token


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's options."""
    parser: argparse.ArgumentParser = commands.add_parser("token", help="print the access token")
    parser.add_argument("--token-file", metavar="PATH", help="the token file, if it is not the usual one")
    parser.add_argument("--http-port", metavar="PORT", help="the server's port, for --qr and --uri")
    parser.add_argument("--socket-port", metavar="PORT", help="the same for the socket")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--path", action="store_true", help="print where the token is kept instead")
    how.add_argument("--qr", action="store_true", help="print a QR code that holds the token and the ports")
    how.add_argument("--uri", action="store_true", help="print the text of that QR code")
    how.add_argument("--json", action="store_true", help="print token and file as JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the token, making one if there is none yet."""
    config = load_config(
        {"token_file": options.token_file, "http_port": options.http_port, "socket_port": options.socket_port}
    )
    path: Path = config.token_file
    token = ensure_token(path)
    if options.json:
        print(json.dumps({"token": token, "token_file": str(path)}))
    elif options.qr:
        print(qr_code(pairing_uri(config, token)), end="")
    elif options.uri:
        print(pairing_uri(config, token))
    else:
        print(path if options.path else token)
    return 0


def pairing_uri(config: Config, token: str) -> str:
    """What an app needs to reach this server, as ``docs/pairing.md`` describes it.

    Raises:
        CommandError: the port is only known once the server runs.
    """
    ports = {"http": config.http_port, "socket": config.socket_port if config.socket else None}
    for name, port in ports.items():
        if port == 0:
            raise CommandError(f"port 0 is any free one; name the one that the server has: --{name}-port PORT")
    parts = [f"{name}={port}" for name, port in ports.items() if port is not None]
    return f"pocketserve://pair?{'&'.join(parts)}&token={token}"  # a token's letters need no encoding


def qr_code(text: str) -> str:
    """A QR code for a terminal: two rows of modules in each line, dark ones as spaces.

    Terminals are mostly light on dark, so that the code is the right way round there; readers take both.

    Raises:
        CommandError: the package for it is missing.
    """
    try:
        import segno
    except ImportError:
        raise CommandError("QR codes need a small package: pip install 'pocketserve[qr]'") from None
    rows = [list(row) for row in segno.make(text, error="m", micro=False).matrix_iter(border=4)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    halves = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}  # 0 is light
    lines = ("".join(halves[pair] for pair in zip(*rows[at : at + 2], strict=True)) for at in range(0, len(rows), 2))
    return "\n".join(lines) + "\n"
