"""Imitate the Hugging Face hub and a web server on loopback, faults included."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  # bytes from which a file is stored elsewhere, as with Git LFS


@dataclass
class StandIn:
    """The server, whose attributes a test may change.

    Attributes:
        repos: files by repository; their content by name.
        plain: files by path, for plain addresses.
        requests: every request with its headers, in order.
        cuts: bytes after which each of the next answers ends.
        headers: more headers of the next answers, by path.
        redirects: targets of paths.
        statuses: answers other than 200, by path.
        private, gated: repositories that need the token; that need consent.
    """

    port: int = 0
    storage_port: int = 0
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"
    wrong: bytes | None = None  # sent by storage in place of a large file
    stall: threading.Event | None = (
        None  # an answer that is cut waits here until this is set
    )

    @property
    def url(self) -> str:
        """Return the hub's address."""
        return f"http://127.0.0.1:{self.port}"

    def paths(self, method: str = "GET") -> list[str]:
        """Return the requested paths, without queries."""
        return [
            path.partition("?")[0] for verb, path, _ in self.requests if verb == method
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn
    is_storage = False

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *words: object) -> None:
        pass

    def _answer(self) -> None:
        self.hub.requests.append((self.command, self.path, dict(self.headers)))
        path = unquote(urlsplit(self.path).path)
        if self.is_storage:
            content = self.hub.wrong or self._large()[path.removeprefix("/blob/")]
            return self._send(content)
        if path in self.hub.statuses:
            return self._refuse(self.hub.statuses[path], "", "")
        if path in self.hub.redirects:
            return self._redirect(self.hub.redirects[path], {})
        if path in self.hub.plain:
            return self._send(self.hub.plain[path])
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            return self._list(api[1], api[2])
        if file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(*file.groups())
        return self._refuse(404, "", "")

    def _large(self) -> dict[str, bytes]:
        files = [
            content for repo in self.hub.repos.values() for content in repo.values()
        ]
        return {hashlib.sha256(content).hexdigest(): content for content in files}

    def _may_see(self, repo: str) -> bool:
        is_known = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if repo not in self.hub.repos or (repo in self.hub.private and not is_known):
            self._refuse(
                404 if is_known else 401, "RepoNotFound", "Repository not found"
            )
            return False
        return True

    def _list(self, repo: str, revision: str) -> None:
        if not self._may_see(repo):
            return None
        if revision not in ("main", "refs/pr/1", COMMIT):
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        with_blobs = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [
            {"rfilename": name} | (_blob(content) if with_blobs else {})
            for name, content in self.hub.repos[repo].items()
        ]
        document = {
            "id": repo,
            "sha": COMMIT,
            "siblings": siblings,
            "cardData": self.hub.card,
            "private": False,
        }
        return self._send(json.dumps(document).encode())

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if not self._may_see(repo):
            return None
        if repo in self.hub.gated:
            return self._refuse(403, "GatedRepo", "Access to this model is restricted")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        content = self.hub.repos[repo].get(name)
        if content is None:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        blob = _blob(content)
        if "lfs" not in blob:
            return self._send(
                content, {"X-Repo-Commit": COMMIT, "ETag": f'"{blob["blobId"]}"'}
            )
        sha256 = blob["lfs"]["sha256"]
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{sha256}"',
        }
        return self._redirect(
            f"http://localhost:{self.hub.storage_port}/blob/{sha256}?signature=abc",
            headers,
        )

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        for name, value in (
            ("X-Error-Code", code),
            ("X-Error-Message", message),
            ("Content-Length", "0"),
        ):
            if value:
                self.send_header(name, value)
        self.end_headers()

    def _redirect(self, target: str, headers: dict[str, str]) -> None:
        self.send_response(302)
        for name, value in {
            **headers,
            "Location": target,
            "Content-Length": "0",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def _first_byte(self, etag: str) -> int:
        """Return the first byte of the requested range; 0 for a whole answer."""
        requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if requested is None:
            return 0
        if self.headers.get("If-Range", etag) != etag:
            return 0
        return int(requested[1])

    def _send(self, content: bytes, headers: dict[str, str] | None = None) -> None:
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        path = unquote(urlsplit(self.path).path)
        fields = {
            "ETag": etag,
            **(headers or {}),
            **self.hub.headers.get(path, {}),
        }
        start = self._first_byte(fields["ETag"])
        if start and start >= len(content):
            self._refuse(416, "", "")
            return
        if start:
            self.send_response(206)
            last = len(content) - 1
            fields["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
        else:
            self.send_response(200)
        fields = {"Content-Length": str(len(content) - start), **fields}
        self.close_connection = not fields["Content-Length"]
        for name, value in fields.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(content[start:])

    def _send_body(self, body: bytes) -> None:
        if not self.hub.cuts:
            self.wfile.write(body)
            return
        cut = self.hub.cuts.pop(0)
        if cut is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[:cut])
        self.wfile.flush()
        if self.hub.stall is not None:
            self.hub.stall.wait(60)
        self.close_connection = True


def _blob(content: bytes) -> dict[str, Any]:
    sha1 = hashlib.sha1(
        b"blob %d\0" % len(content) + content, usedforsecurity=False
    ).hexdigest()
    blob: dict[str, Any] = {"size": len(content), "blobId": sha1}
    if len(content) >= LARGE:
        blob["lfs"] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 130,
        }
    return blob


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Run the hub and its storage, a second host, until the block ends."""
    hub = StandIn()
    handler = type("Hub", (_Handler,), {"hub": hub})
    storage = type("Storage", (_Handler,), {"hub": hub, "is_storage": True})
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (handler, storage)
    ]
    hub.port, hub.storage_port = (server.server_address[1] for server in servers)
    threads = [
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join(120)
