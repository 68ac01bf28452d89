"""A server where clients of this user look for one."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.settings import Settings
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK, SOCKET_PORT, Address

SUBJECT = "server"
VARIABLE = "POCKETSERVE_URL"
DEFAULT_PORTS = {"http": HTTP_PORT, "socket": SOCKET_PORT}
TIMEOUT_S = 3.0
MAX_ANSWER = 4096


def check_server(device: Device, settings: Settings) -> Iterator[Finding]:
    """Ask at the address in the options or the environment, else at that of these settings. No token is sent."""
    config = settings.config
    url = settings.url or device.environ.get(VARIABLE)
    if url:
        source = "--url" if settings.url else VARIABLE
        fault = _ask(url)
        if fault is None:
            yield ok(SUBJECT, f"a server answers at {url} ({source})")
        else:
            fix = (
                f"pocketserve serve, or unset {VARIABLE}"
                if source == VARIABLE
                else "pocketserve serve"
            )
            yield warning(
                SUBJECT, f"no server runs at {url}, where {source} says: {fault}", fix
            )
    elif config is not None and config.http_port:
        url = f"http://{Address(config.host, config.http_port).on_this_device()}"
        fault = _ask(url)
        if fault is not None:
            yield ok(SUBJECT, f"no server runs at {url} ({fault})", "pocketserve serve")
        elif config.http_port == HTTP_PORT:
            yield ok(SUBJECT, f"a server answers at {url}")
        else:
            sentence = f"a server answers at {url}; clients look elsewhere by default"
            yield ok(SUBJECT, sentence, f"export {VARIABLE}={url}")


def _ask(url: str) -> str | None:
    """Return why no server of ours can be said to be there; None if one is."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host or scheme not in DEFAULT_PORTS:
        return f"an address looks like http://{LOOPBACK}:{HTTP_PORT} or socket://{LOOPBACK}:{SOCKET_PORT}"
    port = port or DEFAULT_PORTS[scheme]
    try:
        if scheme == "http":
            return _ask_http(host, port)
        with socket.create_connection((host, port), TIMEOUT_S):
            return None  # somebody listens; who it is shows in the handshake, which takes the token
    except TimeoutError:
        return f"nothing answers within {TIMEOUT_S:g} s"
    except UnicodeError:  # a part of the name is empty or longer than names can be
        return f"no host can be called {host:.80}"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "strerror", None) or type(error).__name__).lower()


def _ask_http(host: str, port: int) -> str | None:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/live")
        live = connection.getresponse()
        page = live.read(MAX_ANSWER)
        if live.status != 200:
            return f"something else answers there, with status {live.status}"
        return (
            None
            if page[:1] == b"{"
            else "something else answers there, with a page of its own"
        )
