"""waitress, set up for a phone: bodies stay in memory, errors are JSON, the loop sleeps until something happens."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from waitress.adjustments import Adjustments

from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.engine.statistics import Traffic
from pocketserve.transports.http.connections import DEFAULT_TIMEOUTS, HttpTimeouts, Server
from pocketserve.transports.http.data_plane import WsgiApp
from pocketserve.transports.http.task import GrowingDispatcher
from pocketserve.transports.listener import affordable, listen
from pocketserve_wire import limits

SHARE = 0.6
"""Of the files that may be open for connections, the part for HTTP; the rest is the socket's."""


class _Adjustments(Adjustments):  # type: ignore[misc]  # waitress has no types
    """waitress looks up the host that it would listen on, even if it is given a socket; ``*`` needs no look-up."""

    host = "*"


class HttpServer:
    """A bound HTTP server; :meth:`run` serves until :meth:`stop` is called from any thread.

    Args:
        guard: who may send large bodies, and stay for long.
        timeouts: when connections are closed.
        traffic: where refusals and open connections are counted.

    Raises:
        PortTakenError: the address cannot be bound.
    """

    def __init__(
        self,
        app: WsgiApp,
        config: Config,
        guard: Guard,
        timeouts: HttpTimeouts = DEFAULT_TIMEOUTS,
        traffic: Traffic | None = None,
    ) -> None:
        listener = listen(config.host, config.http_port, "--http-port", config.port_wait)
        self.port: int = listener.getsockname()[1]
        self.host = config.host
        self._stopping = self._closed = False
        self._ending = threading.Lock()
        adjustments = _Adjustments(
            sockets=[listener],
            max_request_header_size=limits.MAX_HEADER_BYTES,
            max_request_body_size=config.max_body_bytes + 1,  # the first size that waitress refuses
            # Nothing is spilled to flash storage below the limits; answers have no limit of their own.
            inbuf_overflow=config.max_body_bytes + 1,
            outbuf_overflow=2**31 - 1,
            asyncore_use_poll=True,
            ident="pocketserve",
            expose_tracebacks=False,
        )
        adjustments.guard = guard  # for the parsers, which waitress gives nothing else
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting is our queue's normal state
        self._map: dict[int, Any] = {}
        traffic = traffic or Traffic()
        self._server = Server(
            app,
            map=self._map,
            _sock=listener,
            dispatcher=GrowingDispatcher(config.worker_threads),
            adj=adjustments,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            timeouts=timeouts,
            max_connections=affordable(config.max_connections, SHARE, "max_connections"),
            traffic=traffic,
        )
        traffic.connections["http"] = lambda: len(self._server.active_channels)

    def run(self) -> None:
        """Serve on this thread until stopped."""
        asyncore = self._server.asyncore
        while not self._stopping:
            asyncore.loop(timeout=self._server.close_expired(), map=self._map, use_poll=True, count=1)
        self._server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        for channel in list(self._server.active_channels.values()):
            channel.end()
        with self._ending:
            self._closed = True
            self._server.close()

    @property
    def wakeup_descriptor(self) -> int:
        """Return a descriptor that wakes the I/O loop when a byte is written to it; not blocking."""
        descriptor: int = self._server.trigger.trigger
        os.set_blocking(descriptor, False)
        return descriptor

    def stop(self) -> None:
        """Make :meth:`run` return soon; callable from any thread."""
        with self._ending:  # waitress's trigger first leaves its message and then writes: the loop must not end between
            if not self._closed:
                self._server.trigger.pull_trigger(self._mark_stopping)

    def pending_output(self) -> int:
        """Return the bytes of answers that clients have not taken yet."""
        return sum(channel.total_outbufs_len for channel in list(self._server.active_channels.values()))

    def _mark_stopping(self) -> None:
        self._stopping = True
