"""waitress, set up for a phone: bodies stay in memory, errors are JSON, the loop sleeps until something happens."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from waitress.adjustments import Adjustments
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from pocketserve.api.messages import error_response
from pocketserve.config import Config
from pocketserve.security import Guard
from pocketserve.transports.http.body import Body, Placed
from pocketserve.transports.http.connections import DEFAULT_PATIENCE, Channel, Patience, Server
from pocketserve.transports.http.front import WsgiApp
from pocketserve.transports.http.translation import status_line
from pocketserve.transports.listener import bind
from pocketserve_wire import ApiError, ErrorCode, limits

MAX_STRANGERS_BODY = 64 * 1024
"""Bytes of a body that are taken before it is known who sends them."""

_WAITRESS_CODES = {
    400: ErrorCode.INVALID_REQUEST,
    413: ErrorCode.BODY_TOO_LARGE,
    431: ErrorCode.HEADERS_TOO_LARGE,
    501: ErrorCode.NOT_IMPLEMENTED,
}


class _JsonErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """Faults that waitress finds before the application runs get the same JSON shape as all others."""

    def execute(self) -> None:
        fault = self.request.error
        if self.request.refusal is not None:
            refusal = self.request.refusal
            self._answer(refusal, status_line(refusal.status).partition(" ")[2])
            return
        code = _WAITRESS_CODES.get(fault.code, ErrorCode.INVALID_REQUEST if fault.code < 500 else ErrorCode.INTERNAL)
        detail = str(fault.body).strip()
        if code is ErrorCode.BODY_TOO_LARGE:
            detail = f"the body exceeds {self.channel.adj.max_request_body_size - 1} bytes (max_body_bytes)"
        self._answer(ApiError(code, f"{fault.reason}: {detail}"), fault.reason, fault.code)

    def _answer(self, error: ApiError, reason: str, status: int | None = None) -> None:
        answer = error_response(error)
        body = error.body()
        self.status = f"{status or error.status} {reason}"
        headers = {"Content-Type": answer.content_type, "Connection": "close", **answer.headers}
        self.response_headers = list(headers.items())
        self.content_length = len(body)
        self.set_close_on_finish()
        self.write(body)


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """Refuses strangers before it takes their bodies.

    Small bodies are taken first and refused by the application, which keeps the connection: a client that is still
    sending when the connection is closed may never see why.

    Attributes:
        guard: set for each server by a subclass.
        refusal: why the request was refused.
    """

    guard: Guard
    refusal: ApiError | None = None

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError:  # waitress lets those of urlsplit("http://[") and int("9" * 5000) through
            raise ParsingError("the request line or the Content-Length is invalid") from None
        if self.chunked or self.content_length > MAX_STRANGERS_BODY:
            self._refuse_strangers()
        if not self.chunked and 0 < self.content_length < self.adj.max_request_body_size:
            self.body_rcv = Body(self.content_length, self._json_length())

    def received(self, data: bytes | Placed) -> int:
        taken: int = super().received(data)
        if self.error is not None:
            self.expect_continue = False  # waitress would ask for the body of what it has refused
        return taken

    def _json_length(self) -> int:
        """As the header says. It is checked by the application: here it only decides where memory begins."""
        text = self.headers.get("INFERENCE_HEADER_CONTENT_LENGTH", "")
        return int(text) if text.isdecimal() and len(text) < 20 else 0

    def _refuse_strangers(self) -> None:
        headers = self.headers
        try:
            self.guard.check_source(headers.get("HOST"), headers.get("ORIGIN"))
            self.guard.check_token(headers.get("AUTHORIZATION"))
        except ApiError as error:
            self.refusal = error
            raise ParsingError("refused") from None


class _Adjustments(Adjustments):  # type: ignore[misc]
    """waitress looks up the host that it would listen on, even if it is given a socket; of ``*`` it knows all."""

    host = "*"


def _server_class(guard: Guard, patience: Patience, most: int) -> type[Server]:
    """waitress takes its parts from classes, so each server needs classes of its own."""
    parser = type("GuardedParser", (_Parser,), {"guard": guard})
    parts = {"error_task_class": _JsonErrorTask, "parser_class": parser, "guard": guard}
    channel = type("GuardedChannel", (Channel,), parts)
    return type("PatientServer", (Server,), {"channel_class": channel, "patience": patience, "most": most})


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
        guard: who may send large bodies, and stay for long.
        patience: when connections are closed.

    Raises:
        PortTakenError: the address cannot be bound.
    """

    def __init__(self, app: WsgiApp, config: Config, guard: Guard, patience: Patience = DEFAULT_PATIENCE) -> None:
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
        self._server = _server_class(guard, patience, config.max_connections)(
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
            asyncore.loop(timeout=self._server.rest(), map=self._map, use_poll=True, count=1)
        self._server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        for channel in list(self._server.active_channels.values()):
            channel.handle_close()
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
