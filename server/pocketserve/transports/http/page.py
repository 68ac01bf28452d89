"""The server's own web page and its files, for HTTP only.

Request paths are looked up in a table and never become file paths. The files need no
token: they contain no secrets.
"""

from __future__ import annotations

import functools
import hashlib
import json
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
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",  # finer performance.now()
    "Permissions-Policy": "camera=(self), microphone=(self), geolocation=(), usb=()",
    "Cache-Control": "no-cache",  # a browser asks each time, and hears 304
}

_ROUTE: Final = Route("GET", "/web/{file}", "", "web", "page", open=True)
"""For counters alone: the table of routes, which the socket shares, has no page."""


class PageFile(NamedTuple):
    """A file of the page, ready to be sent."""

    content: bytes
    packed: bytes
    """The content, compressed by gzip."""

    content_type: str
    etag: str


def read_page(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the page's files by request path."""
    files: dict[str, PageFile] = {}
    for path in sorted(folder.rglob("*")):
        content_type = CONTENT_TYPES.get(path.suffix)
        if content_type is None or not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        files[f"/web/{name}"] = _page_file(path.read_bytes(), content_type)
    return files


def _access_file(guard: Guard) -> PageFile:
    """Return the file that tells the page whether a token is required."""
    return _page_file(
        json.dumps({"token": not guard.is_open}).encode(), "application/json"
    )


def _page_file(content: bytes, content_type: str) -> PageFile:
    import gzip  # late: few servers are opened in a browser

    packed = gzip.compress(content, mtime=0)
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return PageFile(content, packed, content_type, etag)


class _Page:
    """The WSGI callable for the page's files."""

    def __init__(self, service: Service, guard: Guard, fallback: WsgiApp) -> None:
        self._service = service
        self._guard = guard
        self._fallback = fallback
        self._files = functools.cache(self._read_files)

    def _read_files(self) -> dict[str, PageFile]:
        return {**read_page(), ACCESS: _access_file(self._guard)}

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
            return self._files().get(path)
        return None

    def _answer(self, file: PageFile | None, environ: Environ) -> ApiResponse:
        host, origin = environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN")
        try:
            self._guard.check_source(host, origin, own_page=True)
        except ApiError as error:
            return error_response(error)
        if file is None or "HTTP_SERVICE_WORKER" in environ:
            return _no_worker()
        return _file_answer(file, environ["PATH_INFO"], environ)


def create_page(service: Service, guard: Guard, fallback: WsgiApp) -> WsgiApp:
    """Return the callable for the page's files.

    ``fallback`` answers everything else.
    """
    return _Page(service, guard, fallback)


def _wants_html(environ: Environ) -> bool:
    """Return whether the client is a browser that shows the response."""
    return HTML in environ.get("HTTP_ACCEPT", "").lower()


def _file_answer(file: PageFile, path: str, environ: Environ) -> ApiResponse:
    """Return a file, or 304 if the browser has it."""
    headers = {**HEADERS, "ETag": f"W/{file.etag}", "Vary": "Accept-Encoding"}
    if path == "/":
        headers["Vary"] = "Accept, Accept-Encoding"
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
