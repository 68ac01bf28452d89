"""The server's own web page and its files, for HTTP only.

A request's path is looked up in a table and never becomes a file's path. Whoever asks gets the files: they hold no
secret. Every other request goes on.
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
}
"""Types of the files that are served, by suffix; all others, such as licences, are not."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
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
    content_type: str
    etag: str


def read_page(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the page's files by request path."""
    return {
        f"/web/{path.relative_to(folder).as_posix()}": _page_file(
            path.read_bytes(), CONTENT_TYPES[path.suffix]
        )
        for path in sorted(folder.rglob("*"))
        if path.suffix in CONTENT_TYPES and path.is_file()
    }


def _access_file(guard: Guard) -> PageFile:
    """Return the file that tells the page whether a token is required."""
    return _page_file(
        json.dumps({"token": not guard.is_open}).encode(), "application/json"
    )


def _page_file(content: bytes, content_type: str) -> PageFile:
    return PageFile(
        content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    )


def create_page(service: Service, guard: Guard, fallback: WsgiApp) -> WsgiApp:
    """Return the callable for the page's files.

    ``fallback`` answers everything else.
    """
    files = functools.cache(lambda: {**read_page(), ACCESS: _access_file(guard)})

    def page(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        file = None
        if method in ("GET", "HEAD") and (
            path.startswith("/web/") or (path == "/" and _wants_html(environ))
        ):
            file = files().get(INDEX if path == "/" else path)
        is_worker = "HTTP_SERVICE_WORKER" in environ
        if file is None and not is_worker:
            return fallback(environ, start_response)
        started = time.monotonic()
        try:
            guard.check_source(
                environ.get("HTTP_HOST"), environ.get("HTTP_ORIGIN"), own_page=True
            )
            answer = (
                _no_worker()
                if is_worker or file is None
                else _file_answer(file, path, environ)
            )
        except ApiError as error:
            answer = error_response(error)
        body = b"".join(answer.chunks)
        sent = b"" if method == "HEAD" or answer.status == 304 else body
        service.traffic.count(
            "http", _ROUTE if answer.status in (200, 304) else None, answer.status
        )
        if (
            path == "/" or answer.status >= 400
        ):  # a visit is one line of the log, and not one for each file
            log_answer(service, environ, answer.status, started, len(sent))
        length = {} if answer.status == 304 else {"Content-Length": str(len(body))}
        headers = {**answer.headers, "Content-Type": answer.content_type, **length}
        start_response(status_line(answer.status), list(headers.items()))
        return [sent]

    return page


def _wants_html(environ: Environ) -> bool:
    """Return whether the client is a browser that shows the response."""
    return HTML in environ.get("HTTP_ACCEPT", "").lower()


def _file_answer(file: PageFile, path: str, environ: Environ) -> ApiResponse:
    """Return a file, or 304 if the browser has it."""
    headers = {
        **HEADERS,
        "ETag": file.etag,
        **({"Vary": "Accept"} if path == "/" else {}),
    }
    tags = (
        tag.strip().removeprefix("W/")
        for tag in environ.get("HTTP_IF_NONE_MATCH", "").split(",")
    )
    status = 304 if any(tag in (file.etag, "*") for tag in tags) else 200
    return ApiResponse(status, file.content_type, [file.content], headers=headers)


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
