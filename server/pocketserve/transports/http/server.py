"""waitress, set up for a phone: bodies stay in memory, errors are JSON, the loop does not poll."""

from __future__ import annotations

import logging
import socket
from typing import Any

from flask import Flask
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from pocketserve.config import Config
from pocketserve_wire import ApiError, ErrorCode, limits

LOOP_TIMEOUT_S = 30
"""How long the I/O loop sleeps when nothing happens. It is woken by any event; only dead connections wait for it."""

IDLE_CONNECTION_S = 120

_WAITRESS_CODES = {
    400: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.BODY_TOO_LARGE,
    431: ErrorCode.HEADERS_TOO_LARGE,
    501: ErrorCode.NOT_IMPLEMENTED,
}


class PortTakenError(Exception):
    """The port cannot be had; the text says which and what to do."""


class _JsonErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """Faults that waitress finds before the application runs get the same JSON shape as all others."""

    def execute(self) -> None:
        fault = self.request.error
        code = _WAITRESS_CODES.get(fault.code, ErrorCode.INVALID_REQUEST if fault.code < 500 else ErrorCode.INTERNAL)
        detail = str(fault.body).strip()
        if code is ErrorCode.BODY_TOO_LARGE:
            detail = f"the body exceeds {self.channel.adj.max_request_body_size - 1} bytes (max_body_bytes)"
        body = ApiError(code, f"{fault.reason}: {detail}").body()
        self.status = f"{fault.code} {fault.reason}"
        self.response_headers = [("Content-Type", "application/json"), ("Connection", "close")]
        self.content_length = len(body)
        self.set_close_on_finish()
        self.write(body)


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError:  # waitress lets those of urlsplit("http://[") and int("9" * 5000) through
            raise ParsingError("the request line or the Content-Length is invalid") from None


class _Channel(HTTPChannel):  # type: ignore[misc]
    error_task_class = _JsonErrorTask
    parser_class = _Parser


class _Server(TcpWSGIServer):  # type: ignore[misc]
    channel_class = _Channel


class _GrowingDispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """A thread pool that starts its threads when they are needed: an idle server holds the memory of few."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.set_thread_count(1)

    def add_task(self, task: Any) -> None:
        with self.lock:
            idle = len(self.threads) - self.active_count
            grow = len(self.queue) >= idle and len(self.threads) < self._most
        if grow:
            self.set_thread_count(len(self.threads) + 1)
        super().add_task(task)


class HttpServer:
    """A bound HTTP server; :meth:`run` serves until :meth:`stop` is called from any thread.

    Args:
        app: the WSGI application.
        config: address, threads and limits.

    Raises:
        PortTakenError: the address cannot be bound.
    """

    def __init__(self, app: Flask, config: Config) -> None:
        listener = _bind(config.host, config.http_port)
        self.port: int = listener.getsockname()[1]
        self.host = config.host
        self._stopping = False
        adjustments = Adjustments(
            sockets=[listener],
            connection_limit=config.max_connections,
            channel_timeout=IDLE_CONNECTION_S,
            cleanup_interval=LOOP_TIMEOUT_S,
            asyncore_loop_timeout=LOOP_TIMEOUT_S,
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
        self._server = _Server(
            app,
            map=self._map,
            _sock=listener,
            dispatcher=_GrowingDispatcher(config.worker_threads),
            adj=adjustments,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
        )

    def run(self) -> None:
        """Serve on this thread until stopped."""
        asyncore = self._server.asyncore
        while not self._stopping:
            asyncore.loop(timeout=LOOP_TIMEOUT_S, map=self._map, use_poll=True, count=1)
        self._server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        self._server.close()

    def stop(self) -> None:
        """Make :meth:`run` return soon; callable from any thread."""
        self._server.trigger.pull_trigger(self._mark_stopping)

    def pending_output(self) -> int:
        """Bytes of answers that the clients have not taken yet."""
        channels = list(self._server.active_channels.values())
        return sum(channel.total_outbufs_len for channel in channels)

    def _mark_stopping(self) -> None:
        self._stopping = True


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTakenError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or choose another with --http-port"
        ) from None
    listener.setblocking(False)
    return listener
