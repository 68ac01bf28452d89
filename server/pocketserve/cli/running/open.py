"""``pocketserve open``: opens the server's page."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pocketserve.cli.running.browser import open_browser
from pocketserve.cli.running.stop import find_server
from pocketserve.system import LOOPBACK_HOSTS
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import print_text
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK, Address

if TYPE_CHECKING:
    from pocketserve.config import Config
    from pocketserve.server import Endpoints

FRESH_BYTES: Final = 16  # of a random host name
_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{32,256}")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "open",
        help="show the server's page in the browser",
        description="Opens the page of the running server in this device's browser. "
        "Its address has a ticket, valid once and for a minute, never the token.",
    )
    add_connection_options(parser)
    parser.add_argument(
        "--print",
        action="store_true",
        dest="print_address",
        help="print the address instead",
    )
    parser.add_argument(
        "--fresh-origin",
        action="store_true",
        help="open it under a new host name, for which no other app can have stored "
        "anything in the browser; the browser asks for the camera each time",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Get a ticket, and open the page with it."""
    options.url = options.url or os.environ.get("POCKETSERVE_URL") or _own_address()
    with open_client(options) as client, reading_answers():
        address = page_address(
            client.page_ticket(), options.url, fresh=options.fresh_origin
        )
    if options.print_address:
        print(address)
    elif open_browser(address):
        print_text("The page is open in your browser.")
    else:
        print_text(
            "No browser was found here. "
            "Open this address in one within a minute; it works once:"
        )
        print(address)  # not wrapped, so that it can be copied
    return 0


def page_address(
    answer: Mapping[str, Any], url: str | None, *, fresh: bool = False
) -> str:
    """Return the address of a page with its ticket.

    Args:
        answer: the server's, with ``ticket`` and ``url``.
        url: the server's address. The page has the same host; over HTTP also the same
            port, which may be forwarded; over the socket the port in the answer.
        fresh: whether to use a new host name.

    Raises:
        ValueError: the answer has no ticket, or names no page of this device.
        CommandError: a new host name needs a server on this device.
    """
    ticket = str(answer["ticket"])
    is_http = url is not None and urlsplit(url).scheme in ("http", "https")
    page = urlsplit(url if url and is_http else str(answer["url"]))
    host = (urlsplit(url).hostname if url else page.hostname) or ""
    is_local = host in LOOPBACK_HOSTS
    is_page = page.scheme in ("http", "https") and (is_local or url)
    if not is_page or not _TICKET.fullmatch(ticket):
        raise ValueError("no ticket, or no page of this device")
    if fresh:
        host = _fresh_host(is_local)
    if ":" in host:
        host = f"[{host}]"
    port = "" if page.port is None else f":{page.port}"
    return f"{page.scheme}://{host}{port}/#ticket={ticket}"


def _fresh_host(is_local: bool) -> str:
    import secrets

    if not is_local:
        raise CommandError(
            "--fresh-origin is for a server on this device; "
            "leave it out for one in the network"
        )
    return f"{secrets.token_hex(FRESH_BYTES)}.localhost"


def open_own_page(config: Config, endpoints: Endpoints) -> None:
    """Open this server's page by a child process."""
    scheme = "http"
    address = endpoints.http
    if endpoints.socket is not None:
        scheme = "socket"
        address = endpoints.socket
    url = f"{scheme}://{address.on_this_device()}"
    command = [sys.executable, "-m", "pocketserve", "open", "--url", url]
    if config.auth:
        command += ["--token-file", str(config.token_file)]
    threading.Thread(
        target=subprocess.run, args=(command,), name="pocketserve-open", daemon=True
    ).start()


def _own_address() -> str | None:
    """Return the address of this user's running server, preferring the socket.

    None leaves the address to the client.
    """
    server = find_server(None)
    if server is None or not server.http:
        return None
    http = urlsplit(f"//{server.http}")
    scheme = "http"
    port = http.port or HTTP_PORT
    if len(server.ports) > 1:
        scheme = "socket"
        port = server.ports[1]
    address = Address(http.hostname or LOOPBACK, port)
    return f"{scheme}://{address.on_this_device()}"
