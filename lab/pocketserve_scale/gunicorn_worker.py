"""gunicorn's worker with threads; a request has to arrive in time, which gunicorn itself does not ask for."""

from __future__ import annotations

from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from pocketserve_scale import wsgi


class DeadlineWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """Gives a thread back when a header, as well as a body, takes longer than ``request_timeout``."""

    def handle(self, conn: Any) -> Any:
        """Read a request of a connection, and answer it."""
        with wsgi.start().receiving(conn.sock):
            return super().handle(conn)
