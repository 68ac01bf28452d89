"""``pocketserve token``: shows the token that clients need, and makes and revokes those of single apps."""

from __future__ import annotations

import argparse
import io
import json
import re
import time
from pathlib import Path
from typing import Any, Final

from pocketserve.auth.app_tokens import (
    MAX_SECONDS,
    AppToken,
    add_token,
    path_of,
    read_tokens,
    revoke_token,
)
from pocketserve.auth.guard import ensure_token
from pocketserve.config import Config, load_config
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import (
    print_json,
    print_table,
    print_text,
    terminal_columns,
)

UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
DEFAULT_SECONDS: Final = 30 * 86_400


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "token", help="print the access token"
    )
    parser.add_argument(
        "--token-file",
        metavar="PATH",
        help="the token file, if it is not the usual one",
    )
    parser.add_argument(
        "--http-port", metavar="PORT", help="the server's port, for --qr and --uri"
    )
    parser.add_argument("--socket-port", metavar="PORT", help="the same for the socket")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--path", action="store_true", help="print where the token is kept instead"
    )
    action.add_argument(
        "--qr",
        action="store_true",
        help="print a QR code that holds the token and the ports",
    )
    action.add_argument(
        "--uri", action="store_true", help="print the text of that QR code"
    )
    action.add_argument(
        "--new",
        metavar="NAME",
        help="make a token for one app, which expires, and print it once",
    )
    action.add_argument(
        "--list",
        action="store_true",
        help="list the tokens of apps, without the tokens themselves",
    )
    action.add_argument("--revoke", metavar="NAME", help="take an app's token back")
    parser.add_argument(
        "--expires",
        metavar="TIME",
        type=_seconds,
        help="how long the new token is good for: 45m, 12h, 30d [30d]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _seconds(text: str) -> float:
    """Return the seconds of a time such as ``30d``."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"must be a time up to a year, such as 45m, 12h or 30d, not {text!r}"
        )
    return seconds


def run(options: argparse.Namespace) -> int:
    """Print the token, making one if there is none yet."""
    config = load_config(
        {
            name: getattr(options, name)
            for name in ("token_file", "http_port", "socket_port")
        }
    )
    path: Path = config.token_file
    if options.json and (options.path or options.qr or options.uri):
        options.parser.error(
            "--json prints token and file; --path, --qr and --uri print something else"
        )
    if options.expires is not None and options.new is None:
        raise CommandError("--expires belongs to --new NAME")
    if options.new is not None or options.list or options.revoke is not None:
        return _apps(options, path_of(path))
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


def _apps(options: argparse.Namespace, path: Path) -> int:
    """Make, list or revoke tokens of apps."""
    if options.new is not None:
        token = add_token(path, options.new, options.expires or DEFAULT_SECONDS)
        print(
            json.dumps({"name": options.new, "token": token}) if options.json else token
        )
        return 0
    if options.revoke is not None:
        revoke_token(path, options.revoke)
    tokens, now = read_tokens(path), time.time()
    if options.json:
        print_json(
            [
                {"name": token.name, "created": token.created, "expires": token.expires}
                for token in tokens
            ]
        )
    elif options.revoke is not None:
        print(
            f"{options.revoke} is taken back: requests with it are refused within a second."
        )
    elif tokens:
        rows = [
            [token.name, _time(token.created), _time(token.expires), _state(token, now)]
            for token in tokens
        ]
        print_table(["NAME", "MADE", "EXPIRES", "STATE"], rows)
    else:
        print_text(
            "There are no tokens of apps. Make one: pocketserve token --new NAME --expires 30d"
        )
    return 0


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _state(token: AppToken, now: float) -> str:
    return (
        "good"
        if token.is_good(now)
        else "expired"
        if now >= token.expires
        else "not yet: the clock is behind"
    )


def pairing_uri(config: Config, token: str) -> str:
    """Return what an app needs to reach this server, as ``docs/pairing.md`` describes it."""
    ports = {
        "http": config.http_port,
        "socket": config.socket_port if config.socket else None,
    }
    for name, port in ports.items():
        if port == 0:
            raise CommandError(
                f"port 0 is any free one; name the one that the server has: --{name}-port PORT"
            )
    parts = [f"{name}={port}" for name, port in ports.items() if port is not None]
    return f"pocketserve://pair?{'&'.join(parts)}&token={token}"  # a token's letters need no encoding


def qr_code(text: str) -> str:
    """Return a QR code for a terminal that is light on dark; readers take the inverse, too."""
    try:
        import segno
    except ImportError:
        raise CommandError(
            "QR codes need a small package: python -m pip install segno"
        ) from None
    for error in ("m", "l"):  # the second may be less dirty, and is smaller
        code = io.StringIO()
        segno.make(text, error=error, micro=False).terminal(
            code, border=4, compact=True
        )
        printed = code.getvalue()
        width, columns = printed.index("\n"), terminal_columns()
        if width <= columns:
            return printed
    raise CommandError(
        f"the QR code is {width} columns wide and the terminal {columns}: make its letters smaller or turn the device; "
        "or `pocketserve pair` shows a code of ten digits instead"
    )
