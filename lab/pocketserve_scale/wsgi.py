"""The WSGI application for servers of several processes.

Each process has one service, made after the fork. Settings come from the environment
variables of ``docs/configuration.md``. :mod:`pocketserve_scale.gunicorn` runs it.
"""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any

from pocketserve.auth.app_tokens import AppTokens, path_of
from pocketserve.auth.guard import Guard, ensure_token
from pocketserve.config import Config, load_config
from pocketserve.engine.device.cores import count_fast, usable_cores
from pocketserve.engine.replica import Replica
from pocketserve.server import SWITCH_S, StartError, open_service
from pocketserve.state.permissions import secure
from pocketserve.terminal.log_output import prepare_process
from pocketserve.transports.http.body import Body
from pocketserve.transports.http.data_plane import create_server_app
from pocketserve.transports.http.parser import MAX_UNAUTHENTICATED_BODY
from pocketserve.transports.http.wsgi import Environ, StartResponse, respond
from pocketserve_scale.read_deadline import ReadDeadline
from pocketserve_scale.request_body import read_body
from pocketserve_scale.worker_slot import WorkerSlot
from pocketserve_wire import ApiError


class ServingProcess:
    """A serving process, which may share its port with others.

    Args:
        processes: their number; they share the cores, unless the settings have threads.
        slots: for the folders of the processes; by default the state folder.
        name: in statistics; by default the number of its slot.

    Raises:
        StartError, NoSlotError, StateFolderError, TokenFileError, ConfigError: it
            cannot start.
    """

    def __init__(
        self,
        config: Config,
        processes: int = 1,
        slots: Path | None = None,
        name: str = "",
    ) -> None:
        sys.setswitchinterval(SWITCH_S)
        prepare_process(config)
        secure(config.state_dir)
        token = ensure_token(config.token_file) if config.auth else None
        slot = WorkerSlot(slots or config.state_dir)
        threads = config.threads or max(1, count_fast(usable_cores()) // processes)
        config = dataclasses.replace(config, threads=threads, socket=False)
        self._slot = slot
        self._config = config
        self._read_deadline = ReadDeadline(config.request_timeout)
        replica = Replica(name or slot.name, slot.folder, slot.is_alone)
        self._service = open_service(config, token, replica)
        self._guard = _guard(config, token)
        self._app = create_server_app(self._service, self._guard)
        self._service.follow_folder()
        self._load()

    def _load(self) -> None:
        for name in self._config.load:
            try:
                self._service.load(name, rescan=False)
            except ApiError as error:
                raise StartError(f"load {name}: {error.message}") from None

    def respond(
        self, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request, as a WSGI application."""
        try:
            body = self._read_body(environ)
        except ApiError as fault:
            environ["wsgi.input"] = Body()
            status, headers, chunks = respond(
                self._service, self._guard, environ, fault
            )
            length = str(sum(map(len, chunks)))
            start_response(status, [*headers.items(), ("Content-Length", length)])
            return _as_bytes(chunks)
        environ["wsgi.input"] = body
        return _as_bytes(self._app(environ, start_response))

    def receiving(self, connection: socket.socket) -> AbstractContextManager[None]:
        """Limit the time in which a request must arrive from a connection."""
        return self._read_deadline.limit(connection)

    def _read_body(self, environ: Environ) -> Body | BytesIO:
        limit = self.body_limit(environ)
        connection = environ.get("gunicorn.socket")
        if connection is None:
            return read_body(environ, limit)
        # It applies to each piece, also to sent ones.
        connection.settimeout(self._config.request_timeout)
        with self.receiving(connection):
            return read_body(environ, limit)

    def body_limit(self, environ: Environ) -> int:
        """Return the size limit of a request's body, which depends on its token."""
        try:
            self._guard.check_token(environ.get("HTTP_AUTHORIZATION"))
        except ApiError:
            return min(self._config.max_body_bytes, MAX_UNAUTHENTICATED_BODY)
        return self._config.max_body_bytes

    def check(self) -> None:
        """Raise ApiError if it no longer accepts requests."""
        with self._service.in_flight():
            pass

    def stateful_models(self) -> list[str]:
        """Return the models of ``load`` that keep state between requests."""
        names = []
        for name in self._config.load:
            with self._service.running(name, None) as (_, handle):
                if handle.sequences is not None:
                    names.append(name)
        return names

    def close(self) -> None:
        """Unload every model, and release the worker's number."""
        # The engine has waited for the requests in flight.
        self._service.drain(0)
        self._service.close()
        self._slot.close()


def _guard(config: Config, token: str | None) -> Guard:
    apps = AppTokens(path_of(config.token_file)) if config.auth else None
    return Guard(
        token, config.allowed_hosts, apps, allowed_origins=config.allowed_origins
    )


def _as_bytes(parts: Iterable[Any]) -> Iterator[bytes]:
    """Yield the parts as bytes, as WSGI requires.

    Large ones are a model's memory.
    """
    try:
        # This copies no bytes.
        yield from map(bytes, parts)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()


_processes: list[ServingProcess] = []
"""At most one."""
_changing = threading.Lock()


def start(processes: int = 1) -> ServingProcess:
    """Return this process's worker.

    The first call makes it, after the fork.
    """
    with _changing:
        if not _processes:
            _processes.append(ServingProcess(load_config({}), processes))
        return _processes[0]


def stop() -> None:
    """Close this process's worker, if any.

    It is not replaced, and rejects further requests.
    """
    with _changing:
        for process in _processes:
            process.close()


def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request: the WSGI application."""
    return start().respond(environ, start_response)
