"""gunicorn's worker with threads, and a deadline for requests, which gunicorn lacks."""

from __future__ import annotations

from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from pocketserve_scale import wsgi


class DeadlineWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """Frees a thread if a header or a body takes longer than ``request_timeout``."""

    def handle(self, conn: Any) -> Any:
        """Read a request from a connection, and answer it."""
        with wsgi.start().receiving(conn.sock):
            return super().handle(conn)
