"""Check for a server at the clients' default address."""

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
    """Connect to the configured address; the token is not sent."""
    config = settings.config
    url = settings.url or device.environ.get(VARIABLE)
    if url:
        yield _check_named(url, "--url" if settings.url else VARIABLE)
    elif config is not None and config.http_port:
        yield _check_default(config.host, config.http_port)


def _check_named(url: str, source: str) -> Finding:
    fault = _ask(url)
    if fault is None:
        return ok(SUBJECT, f"a server answers at {url} ({source})")
    fix = "pocketserve serve"
    if source == VARIABLE:
        fix += f", or unset {VARIABLE}"
    sentence = f"no server runs at {url}, where {source} says: {fault}"
    return warning(SUBJECT, sentence, fix)


def _check_default(host: str, port: int) -> Finding:
    address = Address(host, port).on_this_device()
    url = f"http://{address}"
    fault = _ask(url)
    if fault is not None:
        return ok(SUBJECT, f"no server runs at {url} ({fault})", "pocketserve serve")
    if port == HTTP_PORT:
        return ok(SUBJECT, f"a server answers at {url}")
    sentence = f"a server answers at {url}; clients look elsewhere by default"
    return ok(SUBJECT, sentence, f"export {VARIABLE}={url}")


def _ask(url: str) -> str | None:
    """Return why no server of ours answers, or None."""
    try:
        parts = urlsplit(url)
        scheme = parts.scheme
        port = parts.port
        host = parts.hostname
    except ValueError:
        host = None
    if not host or scheme not in DEFAULT_PORTS:
        return (
            f"an address looks like http://{LOOPBACK}:{HTTP_PORT} or "
            f"socket://{LOOPBACK}:{SOCKET_PORT}"
        )
    try:
        return _connect(scheme, host, port or DEFAULT_PORTS[scheme])
    except TimeoutError:
        return f"nothing answers within {TIMEOUT_S:g} s"
    except UnicodeError:  # an empty or too long label
        return f"no host can be called {host:.80}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        return str(reason).lower()


def _connect(scheme: str, host: str, port: int) -> str | None:
    """Connect to a server; return a fault of its answer, or None."""
    if scheme == "http":
        return _ask_http(host, port)
    with socket.create_connection((host, port), TIMEOUT_S):
        return None  # only a handshake, which needs the token, could verify it


def _ask_http(host: str, port: int) -> str | None:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/live")
        live = connection.getresponse()
        page = live.read(MAX_ANSWER)
        if live.status != 200:
            return f"something else answers there, with status {live.status}"
        if page[:1] != b"{":
            return "something else answers there, with a page of its own"
        return None
