"""Floors on waitress, a WSGI server.

Usage: ``flask WORK``, a bare Flask handler, or ``plain WORK``, a WSGI function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from waitress import create_server

from benchmarks.servers.bodies import Work, answer, work

LENGTH = "Inference-Header-Content-Length"
BINARY = "application/octet-stream"
SPILL_BYTES = 64 * 1024 * 1024
"""No body is written to a temporary file, like in our server."""


def main(mode: str, what: str) -> None:
    """Listen, print the port, serve."""
    app = flask_app(work(what)) if mode == "flask" else plain_app(work(what))
    server = create_server(
        app, host="127.0.0.1", port=0, threads=4, inbuf_overflow=SPILL_BYTES
    )
    print(server.effective_port, flush=True)
    server.run()


def flask_app(compute: Work) -> Any:
    """One route, one handler."""
    from flask import Flask, Response, request

    app = Flask("floor")

    @app.post("/v2/models/<name>/infer")
    def infer(name: str) -> Any:
        text, scores = answer(
            request.get_data(cache=False), int(request.headers[LENGTH]), compute
        )
        return Response(
            text + scores.tobytes(),
            headers={LENGTH: str(len(text))},
            content_type=BINARY,
        )

    return app


def plain_app(compute: Work) -> Callable[..., Iterable[bytes]]:
    """No route: whatever is posted is the request."""

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        text, scores = answer(
            body, int(environ["HTTP_INFERENCE_HEADER_CONTENT_LENGTH"]), compute
        )
        content = text + scores.tobytes()
        start(
            "200 OK",
            [
                ("Content-Type", BINARY),
                ("Content-Length", str(len(content))),
                (LENGTH, str(len(text))),
            ],
        )
        return [content]

    return app


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
