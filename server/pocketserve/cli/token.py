"""``pocketserve token``: show the token that clients need."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pocketserve.config import load_config
from pocketserve.security import ensure_token


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's options."""
    parser: argparse.ArgumentParser = commands.add_parser("token", help="print the access token")
    parser.add_argument("--token-file", metavar="PATH", help="the token file, if it is not the usual one")
    parser.add_argument("--path", action="store_true", help="print where the token is kept instead")
    parser.add_argument("--json", action="store_true", help="print both as JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the token, making one if there is none yet."""
    path: Path = load_config({"token_file": options.token_file}).token_file
    token = ensure_token(path)
    if options.json:
        print(json.dumps({"token": token, "token_file": str(path)}))
    else:
        print(path if options.path else token)
    return 0
