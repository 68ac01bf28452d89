"""waitress, set up for a phone: bodies stay in memory, errors are JSON, the loop sleeps until something happens."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from waitress.adjustments import Adjustments
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from pocketserve.api.messages import error_response
from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.engine.statistics import Traffic
from pocketserve.transports.http import translation
from pocketserve.transports.http.connections import DEFAULT_PATIENCE, Channel, Server, Timeouts
from pocketserve.transports.http.front import WsgiApp
from pocketserve.transports.http.parser import Parser
from pocketserve.transports.listener import affordable, bind
from pocketserve_wire import ApiError, ErrorCode, limits

SHARE = 0.6
"""Of the files that may be open for connections, the part for HTTP; the rest is the socket's."""

_WAITRESS_CODES = {
    400: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.BODY_TOO_LARGE,
    431: ErrorCode.HEADERS_TOO_LARGE,
    501: ErrorCode.NOT_IMPLEMENTED,
    505: ErrorCode.NOT_IMPLEMENTED,
}


class _JsonErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """Faults that waitress finds before the application runs get the same JSON shape as all others."""

    def execute(self) -> None:
        fault = self.request.error
        if self.request.refusal is not None:
            refusal = self.request.refusal
            self._answer(refusal, translation.status_line(refusal.status).partition(" ")[2])
            return
        code = _WAITRESS_CODES.get(fault.code, ErrorCode.INVALID_REQUEST if fault.code < 500 else ErrorCode.INTERNAL)
        detail = str(fault.body).strip()
        if code is ErrorCode.BODY_TOO_LARGE:
            detail = f"the body exceeds {self.channel.adj.max_request_body_size - 1} bytes (max_body_bytes)"
        self._answer(ApiError(code, f"{fault.reason}: {detail}"), fault.reason, fault.code)

    def _answer(self, error: ApiError, reason: str, status: int | None = None) -> None:
        answer = error_response(error)
        body = error.body()
        status = status or error.status
        translation.count(self.channel.server.traffic, None, status)
        self.status = f"{status} {reason}"
        headers = {"Content-Type": answer.content_type, "Connection": "close", **answer.headers}
        self.response_headers = list(headers.items())
        self.content_length = len(body)
        self.set_close_on_finish()
        self.write(body)


class _Adjustments(Adjustments):  # type: ignore[misc]
    """waitress looks up the host that it would listen on, even if it is given a socket; of ``*`` it knows all."""

    host = "*"


def _server_class(guard: Guard, timeouts: Timeouts, maximum: int, traffic: Traffic) -> type[Server]:
    """waitress takes its parts from classes, so each server needs classes of its own."""
    parser = type("GuardedParser", (Parser,), {"guard": guard})
    parts = {"error_task_class": _JsonErrorTask, "parser_class": parser}
    channel = type("GuardedChannel", (Channel,), parts)
    own = {"channel_class": channel, "timeouts": timeouts, "maximum": maximum, "traffic": traffic}
    return type("PatientServer", (Server,), own)


class _GrowingDispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """A thread pool that starts its threads when they are needed: an idle server holds the memory of few."""

    def __init__(self, maximum: int) -> None:
        super().__init__()
        self._most = maximum
        self.set_thread_count(1)

    def add_task(self, task: Any) -> None:
        with self.lock:
            idle = len(self.threads) - self.active_count
            grow = len(self.queue) >= idle and len(self.threads) < self._most
        if grow:
            with contextlib.suppress(RuntimeError):  # no thread to be had: those that are there will come to it
                self.set_thread_count(len(self.threads) + 1)
        super().add_task(task)

    def start_new_thread(self, target: Callable[..., None], thread_no: int) -> None:
        try:
            super().start_new_thread(target, thread_no)
        except RuntimeError:
            self.threads.discard(thread_no)  # waitress counts it before it is there
            raise


class HttpServer:
    """A bound HTTP server; :meth:`run` serves until :meth:`stop` is called from any thread.

    Args:
        app: the WSGI application.
        config: address, threads and limits.
        guard: who may send large bodies, and stay for long.
        timeouts: when connections are closed.
        traffic: where what waitress refuses is counted, and open connections are told.

    Raises:
        PortTakenError: the address cannot be bound.
    """

    def __init__(
        self,
        app: WsgiApp,
        config: Config,
        guard: Guard,
        timeouts: Timeouts = DEFAULT_PATIENCE,
        traffic: Traffic | None = None,
    ) -> None:
        listener = bind(config.host, config.http_port, "--http-port", config.port_wait)
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
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting is our queue's normal state
        self._map: dict[int, Any] = {}
        maximum = affordable(config.max_connections, SHARE, "max_connections")
        traffic = traffic or Traffic()
        self._server = _server_class(guard, timeouts, maximum, traffic)(
            app,
            map=self._map,
            _sock=listener,
            dispatcher=_GrowingDispatcher(config.worker_threads),
            adj=adjustments,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
        )
        traffic.connections["http"] = lambda: len(self._server.active_channels)

    def run(self) -> None:
        """Serve on this thread until stopped."""
        asyncore = self._server.asyncore
        while not self._stopping:
            asyncore.loop(timeout=self._server.rest(), map=self._map, use_poll=True, count=1)
        self._server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        for channel in list(self._server.active_channels.values()):
            channel.end()
        with self._ending:
            self._closed = True
            self._server.close()

    @property
    def wakeup_descriptor(self) -> int:
        """A descriptor that wakes the I/O loop when a byte is written to it; not blocking."""
        descriptor: int = self._server.trigger.trigger
        os.set_blocking(descriptor, False)
        return descriptor

    def stop(self) -> None:
        """Make :meth:`run` return soon; callable from any thread."""
        with self._ending:  # waitress's trigger first leaves its message and then writes: the loop must not end between
            if not self._closed:
                self._server.trigger.pull_trigger(self._mark_stopping)

    def pending_output(self) -> int:
        """Bytes of answers that the clients have not taken yet."""
        channels = list(self._server.active_channels.values())
        return sum(channel.total_outbufs_len for channel in channels)

    def _mark_stopping(self) -> None:
        self._stopping = True
