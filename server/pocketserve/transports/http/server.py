"""waitress, configured for a phone.

Bodies stay in memory, errors are JSON, and the loop sleeps until something happens.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections import deque
from operator import attrgetter
from typing import Any, Final

from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer

from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.engine.statistics import Traffic
from pocketserve.transports.http.connections import (
    DEFAULT_TIMEOUTS,
    Channel,
    HttpTimeouts,
)
from pocketserve.transports.http.task import IDENT, GrowingDispatcher
from pocketserve.transports.http.wsgi import WsgiApp
from pocketserve.transports.listener import affordable, listen
from pocketserve_wire import limits

SHARE: Final = 0.6  # of the files that may be open for connections, the part for HTTP; the rest is the socket's
MAX_BUFFER: Final = 2**31 - 1
RESCAN_S: Final = 1.0  # how often all connections are checked while there is traffic
MAX_UNAUTHENTICATED: Final = (
    128  # lasting connections without the token: each takes at most 36 KiB
)
# Connections between two reads: each is read before it may be evicted.
ACCEPTS: Final = MAX_UNAUTHENTICATED // 2
ACCEPT_AGAIN_S: Final = (
    1.0  # how long nobody is taken in after the system had no descriptor left
)

log = logging.getLogger(__name__)


class _Adjustments(Adjustments):  # type: ignore[misc]  # waitress has no types
    """Settings that skip waitress's host lookup.

    waitress looks up the host even if it gets a socket; ``*`` needs no lookup.
    """

    host = "*"


def _adjustments(listener: socket.socket, config: Config, guard: Guard) -> _Adjustments:
    adjustments = _Adjustments(
        sockets=[listener],
        max_request_header_size=limits.MAX_HEADER_BYTES,
        # The first size that waitress rejects.
        max_request_body_size=config.max_body_bytes + 1,
        # Bodies stay in memory instead of flash storage; responses have no limit.
        inbuf_overflow=config.max_body_bytes + 1,
        outbuf_overflow=MAX_BUFFER,
        # waitress would hold a thread above this; Channel.may_begin limits instead.
        outbuf_high_watermark=MAX_BUFFER,
        asyncore_use_poll=True,
        # Nothing reads these headers, and the check would cost each request a call.
        clear_untrusted_proxy_headers=False,
        ident=IDENT,
        expose_tracebacks=False,
    )
    adjustments.guard = guard  # waitress passes nothing else to its parsers
    return adjustments


def _next_silent(candidates: deque[Channel]) -> Channel | None:
    """Remove and return the next connection without unread input, if any."""
    while candidates:
        channel = candidates.popleft()
        if not channel.has_unread_input:
            return channel
    return None


class HttpServer(TcpWSGIServer):  # type: ignore[misc]
    """A bound HTTP server.

    :meth:`run` serves until :meth:`stop` is called from any thread.

    Args:
        guard: who may send large bodies and stay connected.
        timeouts: deadlines of connections.
        traffic: counts rejections and open connections.

    Attributes:
        lingering: rejected connections that still send, the oldest first.

    Raises:
        PortTakenError: the address cannot be bound.
    """

    channel_class = Channel
    _scanned = -math.inf
    _scan_at = -math.inf
    _accept_at = -math.inf
    _starved = _stopping = _closed = False

    def __init__(
        self,
        app: WsgiApp,
        config: Config,
        guard: Guard,
        timeouts: HttpTimeouts = DEFAULT_TIMEOUTS,
        traffic: Traffic | None = None,
    ) -> None:
        listener = listen(
            config.host, config.http_port, "--http-port", config.port_wait
        )
        self.port: int = listener.getsockname()[1]
        self.host = config.host
        self.timeouts, self.traffic = timeouts, traffic or Traffic()
        self.lingering: dict[Channel, None] = {}
        self._max_connections = affordable(
            config.max_connections, SHARE, "max_connections"
        )
        self._ending = threading.RLock()
        # Waiting is our queue's normal state, and no reason for a warning.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        address = listener.getsockname()
        super().__init__(
            app,
            _sock=listener,
            dispatcher=GrowingDispatcher(config.worker_threads),
            adj=_adjustments(listener, config, guard),
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, address),
        )
        self.traffic.connections["http"] = lambda: len(self.active_channels)

    def run(self) -> None:
        """Serve on this thread until stopped."""
        while not self._stopping:
            self.asyncore.loop(
                timeout=self.close_expired(), map=self._map, use_poll=True, count=1
            )
        self.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        for channel in list(self.active_channels.values()):
            channel.end()
        with self._ending:
            self._closed = True
            self.close()

    @property
    def wakeup_descriptor(self) -> int:
        """Return a non-blocking descriptor that wakes the I/O loop when written to."""
        descriptor: int = self.trigger.trigger
        os.set_blocking(descriptor, False)
        return descriptor

    def stop(self) -> None:
        """Make :meth:`run` return soon; callable from any thread."""
        # The trigger queues its message before it writes. The loop must not end between.
        with self._ending:
            if not self._closed:
                self.trigger.pull_trigger(self._mark_stopping)

    def _mark_stopping(self) -> None:
        self._stopping = True

    def pending_output(self) -> int:
        """Return the number of response bytes that clients have not read."""
        return sum(
            channel.total_outbufs_len for channel in list(self.active_channels.values())
        )

    def readable(self) -> bool:
        """Return whether a new connection can be accepted."""
        if not self.accepting or time.monotonic() < self._accept_at:
            return False
        if not self.full:
            return True
        return any(channel.evictable for channel in self.active_channels.values())

    @property
    def full(self) -> bool:
        """Return whether a new connection needs the place of another.

        Requests of closed connections that still wait for a thread count, too.
        """
        waiting: int = -self.task_dispatcher.spare
        return max(len(self.active_channels), waiting) >= self._max_connections

    def handle_accept(self) -> None:
        """Accept connections, evicting others where necessary.

        A legitimate program may open many connections before it sends on any of them.
        So unauthenticated connections may use all slots while they are new, and only
        their share later.
        """
        channels = list(self.active_channels.values())
        unauthenticated = [channel for channel in channels if not channel.authenticated]
        free = max(0, self._max_connections - len(channels))
        share = MAX_UNAUTHENTICATED - len(unauthenticated)
        # An authenticated one is evicted only if nothing else makes room.
        accepts = ACCEPTS if unauthenticated else min(ACCEPTS, free + 1)
        candidates = self._eviction_candidates(unauthenticated or channels)
        evicted: list[Channel] = []
        for count in range(accepts):
            candidate = None
            if count >= free:
                candidate = _next_silent(candidates)
                if candidate is None:
                    break
            elif (
                count >= share
                and candidates
                and not candidates[0].is_newcomer(self.timeouts)
            ):
                candidate = _next_silent(candidates)
            if not self._accept():
                break
            if candidate is not None:
                evicted.append(candidate)
        # Not earlier: a new one would get the descriptor, and an event of the old one.
        for channel in evicted:
            channel.reset()

    def _eviction_candidates(self, channels: list[Channel]) -> deque[Channel]:
        evictable = [channel for channel in channels if channel.evictable]
        evictable.sort(key=attrgetter("eviction_order"))
        return deque(evictable)

    def _evict_surplus(self) -> None:
        """Close unauthenticated connections above their limit, except new ones."""
        unauthenticated = [
            channel
            for channel in self.active_channels.values()
            if not channel.authenticated
        ]
        surplus = len(unauthenticated) - MAX_UNAUTHENTICATED
        candidates = self._eviction_candidates(unauthenticated) if surplus > 0 else ()
        for channel in candidates:
            if surplus > 0 and not (
                channel.is_newcomer(self.timeouts) or channel.has_unread_input
            ):
                channel.reset()
                surplus -= 1

    def _accept(self) -> bool:
        """Accept one connection; return whether there was one."""
        try:
            accepted = self.accept()
        except OSError as error:
            self._accept_at = time.monotonic() + ACCEPT_AGAIN_S
            if not self._starved:
                log.warning(
                    "no connection can be accepted, trying again: %s", error.strerror
                )
            self._starved = True
            return False
        if accepted is None:
            return False
        self._starved = False
        connection, address = accepted
        try:
            self.set_socket_options(connection)
            self.channel_class(self, connection, address, self.adj, map=self._map)
        except OSError:  # the client has closed it
            connection.close()
        return True

    def add_task(self, task: Any) -> None:
        # waitress would begin the next pipelined request for a client that never reads.
        if task.may_begin():
            super().add_task(task)

    def pull_trigger(self) -> None:
        # waitress calls this after each response; the channel wakes the loop if needed.
        pass

    def wake(self) -> None:
        """Have the I/O loop look at all connections; callable from any thread."""
        with self._ending:
            if self._closed:
                return
            # The trigger does not block, so that signals can wake the loop through it.
            with contextlib.suppress(BlockingIOError):  # it is being woken already
                self.trigger.pull_trigger()

    def close_expired(self) -> float | None:
        """Close connections whose deadline has passed.

        Return the seconds that the I/O loop may sleep, None for no limit.

        All connections are checked rarely: a deadline set since then is at least the
        shortest timeout away.
        """
        now = time.monotonic()
        if now >= min(self._scan_at, self._scanned + RESCAN_S):
            for channel in list(self.active_channels.values()):
                if channel.deadline(self.timeouts) <= now:
                    channel.reset()
            self._evict_surplus()
            self._scanned = now
            self._scan_at = self._next_deadline(now)
        else:
            self._scan_at = min(self._scan_at, self._scanned + min(self.timeouts))
        wake_at = self._scan_at
        if self._accept_at > now:
            wake_at = min(wake_at, self._accept_at)
        if wake_at == math.inf:
            return None
        # poll() rounds down to milliseconds; add one, or it would return early.
        return max(0.0, wake_at - now) + 0.001

    def _next_deadline(self, now: float) -> float:
        deadline = math.inf
        for channel in list(self.active_channels.values()):
            if channel.busy:
                # Its response doesn't wake the loop, and starts a timeout.
                deadline = min(deadline, now + min(self.timeouts))
            deadline = min(deadline, channel.deadline(self.timeouts))
        return deadline
