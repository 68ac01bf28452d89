"""The server's own web page and its files, for HTTP only.

Request paths are looked up in a table and never become file paths. The files need no
token: they contain no secrets.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pocketserve.api.messages import ApiResponse, Route, error_response
from pocketserve.auth.guard import Guard
from pocketserve.service import Service
from pocketserve.transports.http.wsgi import (
    Environ,
    StartResponse,
    WsgiApp,
    log_answer,
    status_line,
)
from pocketserve_wire import ApiError, ErrorCode

FOLDER: Final = Path(__file__).resolve().parents[2] / "web"
INDEX: Final = "/web/index.html"
ACCESS: Final = "/web/access.json"
HTML: Final = "text/html"

# Not those of the module mimetypes: it reads the system's files, and a wrong type for .js stops every module.
CONTENT_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
"""Types of the files that are served, by suffix; all others, such as licences, are not."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
"""Sent with each file."""

DOCUMENT_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",  # finer performance.now()
    "Permissions-Policy": "camera=(self), microphone=(self), geolocation=(), usb=()",
}
"""Sent with what a browser can show by itself; scripts and styles need none of them."""

DOCUMENT_SUFFIXES: Final = (".html", ".svg")
ASK_ALWAYS: Final = "no-cache"
"""The browser asks each time, and gets 304 if it has the file."""

KEEP: Final = "private, max-age=31536000, immutable"
PINNED: Final = re.compile(r"/web/([0-9a-f]{16})/(.+)")
"""Addresses with this process's random key, as the document names them.

Browsers keep these files without asking again. Another app that has the port later, or had it
before, can't prepare files under addresses it doesn't know.
"""

_ROUTE: Final = Route("GET", "/web/{file}", "", "web", "page", open=True)
"""For counters alone: the table of routes, which the socket shares, has no page."""


class PageFile(NamedTuple):
    """A file of the page, ready to be sent."""

    content: bytes
    packed: bytes
    """The content, compressed by gzip."""

    content_type: str
    etag: str
    headers: Mapping[str, str]


def read_page(folder: Path = FOLDER, key: str = "") -> dict[str, PageFile]:
    """Return the page's files by request path.

    Args:
        key: part of the addresses in the document, and of the ETags.
    """
    files: dict[str, PageFile] = {}
    for path in sorted(folder.rglob("*")):
        content_type = CONTENT_TYPES.get(path.suffix)
        if content_type is None or not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        content = path.read_bytes()
        if key and path.suffix == ".html":
            content = content.replace(b'"/web/', f'"/web/{key}/'.encode())
        files[f"/web/{name}"] = _page_file(content, content_type, key, path.suffix)
    return files


def _access_file(guard: Guard, key: str) -> PageFile:
    """Return the file that tells the page whether a token is required."""
    content = json.dumps({"token": not guard.is_open}).encode()
    return _page_file(content, "application/json", key, ".json")


def _page_file(content: bytes, content_type: str, key: str, suffix: str) -> PageFile:
    import gzip  # late: few servers are opened in a browser

    packed = gzip.compress(content, mtime=0)
    digest = hashlib.sha256(key.encode() + content).hexdigest()[:32]
    headers = dict(HEADERS)
    if suffix in DOCUMENT_SUFFIXES:
        headers.update(DOCUMENT_HEADERS)
    return PageFile(content, packed, content_type, f'"{digest}"', headers)


class _Page:
    """The WSGI callable for the page's files."""

    def __init__(self, service: Service, guard: Guard, fallback: WsgiApp) -> None:
        self._service = service
        self._guard = guard
        self._fallback = fallback
        self._key = os.urandom(8).hex()
        self._files = functools.cache(self._read_files)

    def _read_files(self) -> dict[str, PageFile]:
        access = _access_file(self._guard, self._key)
        return {**read_page(FOLDER, self._key), ACCESS: access}

    def __call__(
        self, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        file = self._find(environ)
        if file is None and "HTTP_SERVICE_WORKER" not in environ:
            return self._fallback(environ, start_response)
        started = time.monotonic()
        answer = self._answer(file, environ)
        has_body = answer.status != 304
        body = b"".join(answer.chunks)
        sent = body if has_body and environ["REQUEST_METHOD"] != "HEAD" else b""
        route = _ROUTE if answer.status in (200, 304) else None
        self._service.traffic.count("http", route, answer.status)
        # A visit is one line of the log, not one for each file.
        if environ["PATH_INFO"] == "/" or answer.status >= 400:
            log_answer(self._service, environ, answer.status, started, len(sent))
        headers = [*answer.headers.items(), ("Content-Type", answer.content_type)]
        if has_body:
            headers.append(("Content-Length", str(len(body))))
        start_response(status_line(answer.status), headers)
        return [sent]

    def _find(self, environ: Environ) -> PageFile | None:
        """Return the requested file, if the path is one of the page's."""
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return None
        path = environ["PATH_INFO"]
        if path == "/" and _wants_html(environ):
            return self._files().get(INDEX)
        if path.startswith("/web/"):
            return self._files().get(self._plain_path(path))
        return None

    def _plain_path(self, path: str) -> str:
        """Return a file's path without a key, which may be that of another worker."""
        pinned = PINNED.fullmatch(path)
        return path if pinned is None else f"/web/{pinned[2]}"

    def _is_own(self, path: str) -> bool:
        pinned = PINNED.fullmatch(path)
        return pinned is not None and pinned[1] == self._key

    def _answer(self, file: PageFile | None, environ: Environ) -> ApiResponse:
        host, origin = environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN")
        try:
            self._guard.check_source(host, origin, own_page=True)
        except ApiError as error:
            return error_response(error)
        if file is None or "HTTP_SERVICE_WORKER" in environ:
            return _no_worker()
        answer = _file_answer(file, environ)
        path = environ["PATH_INFO"]
        if path == "/":
            answer.headers["Vary"] = "Accept, Accept-Encoding"
        answer.headers["Cache-Control"] = KEEP if self._is_own(path) else ASK_ALWAYS
        return answer


def create_page(service: Service, guard: Guard, fallback: WsgiApp) -> WsgiApp:
    """Return the callable for the page's files.

    ``fallback`` answers everything else.
    """
    return _Page(service, guard, fallback)


def _wants_html(environ: Environ) -> bool:
    """Return whether the client is a browser that shows the response."""
    return HTML in environ.get("HTTP_ACCEPT", "").lower()


def _file_answer(file: PageFile, environ: Environ) -> ApiResponse:
    """Return a file, or 304 if the browser has it."""
    headers = {**file.headers, "ETag": f"W/{file.etag}"}
    content = file.content
    if _takes_gzip(environ):
        headers["Content-Encoding"] = "gzip"
        content = file.packed
    status = 200
    for tag in environ.get("HTTP_IF_NONE_MATCH", "").split(","):
        if tag.strip().removeprefix("W/") in (file.etag, "*"):
            status = 304
    return ApiResponse(status, file.content_type, [content], headers=headers)


def _takes_gzip(environ: Environ) -> bool:
    """Return whether the client lists gzip without a weight, as browsers do."""
    codings = environ.get("HTTP_ACCEPT_ENCODING", "").split(",")
    return "gzip" in [coding.strip().lower() for coding in codings]


def _no_worker() -> ApiResponse:
    """Return a response that removes a stale service worker.

    Another app may have installed it when it used this port.

    A browser looks for a newer script of each worker; a 404 alone leaves the worker that it has.
    """
    answer = error_response(
        ApiError(
            ErrorCode.NOT_FOUND, "Not Found: this server's page has no service worker"
        )
    )
    answer.headers["Clear-Site-Data"] = '"storage"'
    return answer
