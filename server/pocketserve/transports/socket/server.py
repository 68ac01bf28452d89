"""The socket transport: listener, connection limits and shutdown."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from pocketserve import __version__
from pocketserve.config import Config
from pocketserve.engine.scheduling.semaphore import Semaphore
from pocketserve.service import Service
from pocketserve.transports.listener import affordable, listen
from pocketserve.transports.socket.event_loop import EventLoop
from pocketserve.transports.socket.threads import FrameBudget, Workers
from pocketserve.transports.socket.timeouts import Timeouts

if TYPE_CHECKING:
    from pocketserve.auth.app_tokens import AppTokens
    from pocketserve.transports.socket.connection import Connection
    from pocketserve.transports.socket.handshake import HandshakeConnection
    from pocketserve.transports.socket.lingering_close import LingeringClose
    from pocketserve_wire.handshake import ConnectionLimits

log = logging.getLogger(__name__)

MAX_HANDSHAKES: Final = 64
"""Connections in the handshake. For one more, the oldest is rejected with a retry hint."""

ACCEPT_AGAIN_S: Final = 1.0
"""Seconds until connections are accepted again after descriptors ran out."""

SHARE: Final = 0.4
"""The socket's share of the open files for connections; HTTP has the rest."""

INCOMING: Final = 4
"""Connections that may send bodies of maximum size at the same time; see ``incoming``."""

STOP_S: Final = 1.0


class SocketServer:
    """A bound socket server, which serves on its own threads.

    Args:
        service: runs the requests.
        token: the clients' token; None if none is required.
        timeouts: timeouts for clients.
        event_loop: a new one, which has not run.
        apps: tokens of apps, which are accepted, too.

    Attributes:
        host, port: the address.
        key: the token's bytes.
        handshakes, lingering: connections in the handshake, and closed ones that are
            drained; only for the event loop's thread.
        request_slots: for running and waiting requests of all connections.
        incoming: bytes for incoming bodies of all connections.
        stopped: clients are no longer waited for.

    Raises:
        PortTakenError: the address cannot be bound.
    """

    def __init__(
        self,
        service: Service,
        token: str | None,
        timeouts: Timeouts | None = None,
        event_loop: EventLoop | None = None,
        apps: AppTokens | None = None,
    ) -> None:
        config = service.config
        self.service = service
        self.timeouts = timeouts or Timeouts()
        self.key = token.encode("ascii") if token is not None else None
        self.apps = apps
        self._listener = listen(
            config.host, config.socket_port, "--socket-port", config.port_wait
        )
        self.host = config.host
        self.port: int = self._listener.getsockname()[1]
        self.event_loop = event_loop or EventLoop()
        self.request_slots = Semaphore(config.worker_threads)
        self.incoming = FrameBudget(INCOMING * _bytes_inflight(config))
        # A thread reads, writes or runs a request. There are enough: reading never waits
        # for a thread.
        self.workers = Workers(2 * config.socket_connections + config.worker_threads)
        self.handshakes: dict[HandshakeConnection, None] = {}
        self.lingering: dict[LingeringClose, None] = {}
        self._maximum = affordable(
            config.socket_connections, SHARE, "socket_connections"
        )
        self._connections: set[Connection] = set()
        service.traffic.connections["socket"] = self._count_connections
        self._changed = threading.Condition()
        self._draining = self.stopped = self._starved = False
        self._thread = threading.Thread(
            target=self.event_loop.run, name="pocketserve-socket-watcher", daemon=True
        )

    def _count_connections(self) -> int:
        return len(self._connections) + len(self.handshakes)

    @functools.cached_property
    def limits(self) -> ConnectionLimits:
        """Return the limits that clients get in READY."""
        return connection_limits(self.service.config)

    def start(self) -> None:
        """Accept connections from now on."""
        self.event_loop.add(self._listener.fileno(), self)
        self.event_loop.arm(self._listener.fileno())
        self._thread.start()

    # Event handlers

    def on_ready(self, events: int) -> None:
        """Accept a connection."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            pass
        except OSError as error:
            if self._draining:
                return
            if not self._starved:
                log.warning(
                    "no connection can be accepted, trying again: %s", error.strerror
                )
            self._starved = True
            self.event_loop.set_timer(self, time.monotonic() + ACCEPT_AGAIN_S)
            return
        else:
            self._starved = False
            self._begin_handshake(connection)
        self.event_loop.arm(self._listener.fileno())

    def _begin_handshake(self, connection: socket.socket) -> None:
        # Imported late, for the first client: HTTP starts sooner.
        from pocketserve.transports.socket.handshake import HandshakeConnection

        if len(self.handshakes) >= MAX_HANDSHAKES:
            next(iter(self.handshakes)).evict()
        try:
            self.handshakes[HandshakeConnection(self, connection)] = None
        except OSError:  # it is gone already
            connection.close()

    def on_time(self) -> None:
        """Try again to accept."""
        self.event_loop.arm(self._listener.fileno())

    def on_fault(self) -> None:
        """Try again later: the loop failed while accepting."""
        self.event_loop.set_timer(self, time.monotonic() + ACCEPT_AGAIN_S)

    # Connections

    @property
    def connections(self) -> int:
        """Authenticated connections now."""
        return len(self._connections)

    @property
    def full(self) -> bool:
        """Return whether no further connection is taken."""
        return len(self._connections) >= self._maximum

    def register(self, connection: Connection) -> None:
        """Start serving an authenticated connection."""
        with self._changed:
            self._connections.add(connection)
            draining = self._draining
        self.event_loop.add(connection.descriptor, connection)
        self.workers.execute(connection.read)
        if draining:
            connection.go_away()

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is over."""
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()

    # The end

    def drain(self) -> None:
        """Reject new connections and requests, and tell the clients."""
        with self._changed:
            self._draining = True
            connections = list(self._connections)
        self.event_loop.call(self._stop_listening)
        for connection in connections:
            connection.go_away()

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.event_loop.remove(self._listener.fileno(), self)
        self._listener.close()
        for handshake_connection in list(self.handshakes):
            handshake_connection.close()

    def wait(self, timeout: float) -> bool:
        """Wait for all responses; return whether they were sent in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._connections, timeout)

    def stop(self) -> None:
        """Close everything, at once."""
        self.stopped = True
        self.drain()
        for connection in list(self._connections):
            connection.abort()
        self.event_loop.call(self._stop_lingering)
        self.event_loop.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._listener.close()  # also where it was never started

    def _stop_lingering(self) -> None:
        for connection in list(self.lingering):
            connection.close()


def connection_limits(config: Config) -> ConnectionLimits:
    """Return the limits in READY, from the settings."""
    from pocketserve_wire.handshake import ConnectionLimits

    return ConnectionLimits(
        max_frame=config.max_body_bytes,
        max_inflight=config.socket_inflight,
        max_bytes_inflight=_bytes_inflight(config),
        idle_ms=round(1000 * config.socket_idle),
        server=f"pocketserve/{__version__}",
    )


def _bytes_inflight(config: Config) -> int:
    return max(config.socket_bytes_inflight, config.max_body_bytes)
