"""Whether a server runs where clients of this user look for one."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.settings import Settings

SUBJECT = "server"
VARIABLE = "POCKETSERVE_URL"
USUAL_PORTS = {"http": 8470, "socket": 8471}
"""Where clients look that are told nothing else."""

PATIENCE_S = 3.0
MAX_ANSWER = 4096


def check_server(device: Device, settings: Settings) -> Iterator[Finding]:
    """Ask at the address that was named, else at the one that a server with these settings has. No token is sent."""
    config = settings.config
    named = settings.url or device.environ.get(VARIABLE)
    if named:
        yield _named(named, "--url" if settings.url else VARIABLE)
    elif config is not None and config.http_port:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)
        url = f"http://{f'[{host}]' if ':' in host and host[0] != '[' else host}:{config.http_port}"
        yield _own(url, usual=config.http_port == USUAL_PORTS["http"])


def _own(url: str, *, usual: bool) -> Finding:
    found = _ask(url)
    if found is not None:
        return ok(SUBJECT, f"no server runs at {url} ({found})", "pocketserve serve")
    if not usual:
        return ok(SUBJECT, f"a server answers at {url}; clients look elsewhere by default", f"export {VARIABLE}={url}")
    return ok(SUBJECT, f"a server answers at {url}")


def _named(url: str, source: str) -> Finding:
    found = _ask(url)
    if found is None:
        return ok(SUBJECT, f"a server answers at {url} ({source})")
    fix = f"pocketserve serve, or unset {VARIABLE}" if source == VARIABLE else "pocketserve serve"
    return warning(SUBJECT, f"no server runs at {url}, where {source} says: {found}", fix)


def _ask(url: str) -> str | None:
    """Return why no server of ours can be said to be there; None if one is."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host or scheme not in USUAL_PORTS:
        return "an address looks like http://127.0.0.1:8470 or socket://127.0.0.1:8471"
    ask = _ask_http if scheme == "http" else _ask_socket
    try:
        return ask(host, port or USUAL_PORTS[scheme])
    except TimeoutError:
        return f"nothing answers within {PATIENCE_S:g} s"
    except UnicodeError:  # a part of the name is empty or longer than names can be
        return f"no host can be called {host:.80}"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "strerror", None) or type(error).__name__).lower()


def _ask_http(host: str, port: int) -> str | None:
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/live")
        live = connection.getresponse()
        page = live.read(MAX_ANSWER)
        if live.status != 200:
            return f"something else answers there, with status {live.status}"
        return None if page[:1] == b"{" else "something else answers there, with a page of its own"


def _ask_socket(host: str, port: int) -> str | None:
    """Only that somebody listens: who it is shows in the handshake, which takes the token."""
    with socket.create_connection((host, port), PATIENCE_S):
        return None
