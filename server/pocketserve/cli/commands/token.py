"""``pocketserve token``: shows and manages tokens."""

from __future__ import annotations

import argparse
import io
import json
import re
import time
from collections.abc import Sequence
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
        "--path", action="store_true", help="print the path of the token file instead"
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
        help="create an expiring token for one app, and print it once",
    )
    action.add_argument(
        "--list",
        action="store_true",
        help="list the names of apps' tokens",
    )
    action.add_argument("--revoke", metavar="NAME", help="revoke an app's token")
    parser.add_argument(
        "--expires",
        metavar="TIME",
        type=_seconds,
        help="how long the new token is valid: 45m, 12h, 30d [30d]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _seconds(text: str) -> float:
    """Parse a duration such as ``30d`` to seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    seconds = 0
    if match:
        seconds = int(match[1]) * UNITS[match[2]]
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"must be a time up to a year, such as 45m, 12h or 30d, not {text!r}"
        )
    return seconds


def run(options: argparse.Namespace) -> int:
    """Print the token, creating one if there is none yet."""
    names = ("token_file", "http_port", "socket_port")
    config = load_config({name: getattr(options, name) for name in names})
    if options.json and (options.path or options.qr or options.uri):
        options.parser.error(
            "--json prints token and file; --path, --qr and --uri print something else"
        )
    if options.expires is not None and options.new is None:
        raise CommandError("--expires belongs to --new NAME")
    if options.new is not None or options.list or options.revoke is not None:
        return _manage_app_tokens(options, path_of(config.token_file))
    _print_token(options, config)
    return 0


def _print_token(options: argparse.Namespace, config: Config) -> None:
    path: Path = config.token_file
    token = ensure_token(path)
    if options.json:
        print(json.dumps({"token": token, "token_file": str(path)}))
    elif options.qr:
        print(qr_code(pairing_uri(config, token)), end="")
    elif options.uri:
        print(pairing_uri(config, token))
    elif options.path:
        print(path)
    else:
        print(token)


def _manage_app_tokens(options: argparse.Namespace, path: Path) -> int:
    """Create, list or revoke tokens of apps."""
    if options.new is not None:
        token = add_token(path, options.new, options.expires or DEFAULT_SECONDS)
        if options.json:
            print(json.dumps({"name": options.new, "token": token}))
        else:
            print(token)
        return 0
    if options.revoke is not None:
        revoke_token(path, options.revoke)
    tokens = read_tokens(path)
    if options.json:
        print_json([_token_document(token) for token in tokens])
    elif options.revoke is not None:
        print(
            f"{options.revoke} is revoked: "
            "requests with it are rejected within a second."
        )
    else:
        _print_app_tokens(tokens)
    return 0


def _print_app_tokens(tokens: Sequence[AppToken]) -> None:
    if not tokens:
        print_text(
            "There are no tokens of apps. "
            "Make one: pocketserve token --new NAME --expires 30d"
        )
        return
    now = time.time()
    rows = [_token_row(token, now) for token in tokens]
    print_table(["NAME", "MADE", "EXPIRES", "STATE"], rows)


def _token_document(token: AppToken) -> dict[str, Any]:
    return {"name": token.name, "created": token.created, "expires": token.expires}


def _token_row(token: AppToken, now: float) -> list[str]:
    created = _time(token.created)
    expires = _time(token.expires)
    return [token.name, created, expires, _state(token, now)]


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _state(token: AppToken, now: float) -> str:
    if token.is_good(now):
        return "good"
    if now >= token.expires:
        return "expired"
    return "not yet: the clock is behind"


def pairing_uri(config: Config, token: str) -> str:
    """Return the pairing URI; see ``docs/pairing.md``."""
    ports = {"http": config.http_port}
    if config.socket:
        ports["socket"] = config.socket_port
    parts = []
    for name, port in ports.items():
        if port == 0:
            raise CommandError(
                "port 0 means any free port; name the server's port: "
                f"--{name}-port PORT"
            )
        parts.append(f"{name}={port}")
    parts.append(f"token={token}")  # its characters need no encoding
    return f"pocketserve://pair?{'&'.join(parts)}"


def qr_code(text: str) -> str:
    """Return a QR code for dark terminals."""
    try:
        import segno
    except ImportError:
        raise CommandError(
            "QR codes need a small package: python -m pip install segno"
        ) from None
    for error in ("m", "l"):  # the second corrects fewer errors, and is smaller
        code = io.StringIO()
        symbol = segno.make(text, error=error, micro=False)
        symbol.terminal(code, border=4, compact=True)
        printed = code.getvalue()
        width = printed.index("\n")
        columns = terminal_columns()
        if width <= columns:
            return printed
    raise CommandError(
        f"the QR code is {width} columns wide and the terminal {columns}: "
        "make its letters smaller or turn the device; "
        "or `pocketserve pair` shows a code of ten digits instead"
    )
