"""A whole server: from settings to a clean shutdown."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pocketserve.auth.app_tokens import AppTokens, path_of
from pocketserve.auth.guard import Guard, ensure_token
from pocketserve.config import Config
from pocketserve.engine.replica import Replica
from pocketserve.messages import listed, plural
from pocketserve.repository.manifest import name_fault
from pocketserve.repository.scan import Models
from pocketserve.service import Service
from pocketserve.state.json_store import replace_json
from pocketserve.state.permissions import secure
from pocketserve.state.run_lock import RunLock, notice_killed, running_servers
from pocketserve.state.unloaded import UnloadedModels
from pocketserve.transports.http.data_plane import create_server_app
from pocketserve.transports.http.server import HttpServer
from pocketserve.transports.listener import PortTakenError
from pocketserve.transports.request_log import RequestLog
from pocketserve.transports.socket.server import SocketServer
from pocketserve_wire import ApiError
from pocketserve_wire.addresses import Address

log = logging.getLogger(__name__)

FLUSH_SHARE_S = 0.5  # share of the drain time for sending finished responses
MAX_LISTED = 8  # models that are named at start

SWITCH_S = 0.001
"""Seconds for which a thread keeps the interpreter while another one is waiting.

With Python's own 5 ms, a model that has finished waits longer than it ran for a thread that tokenizes a text
(benchmarks/measurements/decision-0023-limits-of-one-core.md).
"""


class StartError(Exception):
    """The server cannot start; the text says why and the way out."""


class Endpoints(NamedTuple):
    """A server's addresses; ``socket`` is None if it is off."""

    http: Address
    socket: Address | None


def serve(config: Config, on_ready: Callable[[Endpoints], None] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain.

    Runs on the main thread.

    A second signal ends the process at once.

    Args:
        on_ready: called once the models of ``load`` are there, perhaps on another thread.

    Raises:
        StartError, StateFolderError, TokenFileError, PortTakenError: the server cannot start.
    """
    sys.setswitchinterval(SWITCH_S)
    secure(config.state_dir)
    server = _Server(config, on_ready)
    server.run()
    if server.unfinished:
        # A thread still runs native code; ending the interpreter under it would abort the process.
        logging.shutdown()
        os._exit(0)


class _Server:
    """The parts of a listening server.

    Attributes:
        unfinished: whether requests or loads were still running after the drain time.
    """

    def __init__(
        self, config: Config, on_ready: Callable[[Endpoints], None] | None
    ) -> None:
        self.unfinished = False
        self._config, self._on_ready = config, on_ready
        token = ensure_token(config.token_file) if config.auth else None
        self._service = open_service(config, token)
        apps = AppTokens(path_of(config.token_file)) if config.auth else None
        try:
            self._listen(token, apps)
        except PortTakenError as error:
            raise _by_another_server(error, config.state_dir) from None
        http = Address(self._http.host, self._http.port)
        socket_address = None
        if self._sockets is not None:
            socket_address = Address(self._sockets.host, self._sockets.port)
        self._endpoints = Endpoints(http, socket_address)
        self._service.page_url = f"http://{http.on_this_device()}/"
        _warn_of_killed(config.state_dir)
        ports = tuple(address.port for address in self._endpoints if address)
        self._run_lock = RunLock(
            config.state_dir, ports, str(http), str(config.models_dir.absolute())
        )
        self._unloaded_models = UnloadedModels(
            config.state_dir, config.models_dir, config.http_port
        )
        self._service.remember(self._unloaded_models)
        self._service.follow_folder()
        self._fault: Exception | None = None
        self._announcing = threading.Lock()  # guards both:
        self._closed = self._announced = False

    def _listen(self, token: str | None, apps: AppTokens | None) -> None:
        """Bind the ports.

        Raises:
            PortTakenError: an address cannot be bound.
        """
        config, service = self._config, self._service
        guard = Guard(
            token, config.allowed_hosts, apps, service.pages, config.allowed_origins
        )
        app = create_server_app(service, guard)
        self._http = HttpServer(app, config, guard, traffic=service.traffic)
        self._sockets: SocketServer | None = None
        if config.socket:
            self._sockets = SocketServer(service, token, apps=apps)

    def run(self) -> None:
        """Serve until drained; raise StartError for ``load`` failures."""
        restore = _install_signals(self._end, self._http.wakeup_descriptor)
        names = [
            name
            for name in self._config.load
            if name not in self._unloaded_models.names
        ]
        try:
            if self._sockets is not None:
                self._sockets.start()
            if names:
                self._service.starting = True
                threading.Thread(
                    target=self._load,
                    args=(names,),
                    name="pocketserve-preload",
                    daemon=True,
                ).start()
            else:
                self._announce()
            self._http.run()
            if self._fault is not None:
                raise self._fault
        finally:
            self._run_lock.close()
            with self._announcing:
                self._closed = True
                if self._announced and self._config.ready_file is not None:
                    self._config.ready_file.unlink(missing_ok=True)
            restore()
            if self._sockets is not None:
                self._sockets.stop()
            gc.freeze()  # the process ends: looking for garbage among all that frameworks made would take seconds
            self.unfinished |= not self._service.close()

    def _load(self, names: Sequence[str]) -> None:
        """Load models while the server answers, alive but not ready."""
        try:
            for name in names:
                try:
                    self._service.load(name, rescan=False)
                except ApiError as error:
                    raise StartError(f"--load {name}: {error.message}") from None
            self._service.starting = False
            self._announce()
        except Exception as error:
            if not self._service.draining:  # else it ends anyway
                self._fault = error
                self._drain()

    def _announce(self) -> None:
        _log_models(self._config.models_dir, self._service.repository.models())
        with self._announcing:
            if self._closed:
                return
            if self._config.ready_file is not None:
                write_ready_file(self._config.ready_file, self._config, self._endpoints)
            self._announced = True
            if self._on_ready is not None:
                self._on_ready(self._endpoints)

    def _end(self) -> None:
        self._unloaded_models.close()
        log.info(
            "stopping: pending requests get up to %g s", self._config.drain_timeout
        )
        self._drain()

    def _drain(self) -> None:
        self._run_lock.close()  # from now on, its end is intended
        timeout = self._config.drain_timeout
        deadline = time.monotonic() + timeout
        if self._sockets is not None:
            self._sockets.drain()
        if not self._service.drain(max(0.0, timeout - FLUSH_SHARE_S)):
            self.unfinished = True
            log.warning("requests were still running after the drain time")
        # Never set; it only paces the wait for slow readers.
        flushed = threading.Event()
        while self._http.pending_output() and time.monotonic() < deadline:
            flushed.wait(0.01)
        if self._sockets is not None:
            self._sockets.wait(max(0.0, deadline - time.monotonic()))
        self._http.stop()


def open_service(
    config: Config, token: str | None, replica: Replica | None = None
) -> Service:
    """Return the service of a process, with its log of requests.

    Raises:
        StartError: the models folder cannot be read.
    """
    try:
        service = Service(config, token, replica)
    except OSError as error:
        text = (
            f"the models folder {config.models_dir} cannot be read ({error.strerror})"
        )
        if isinstance(error, NotADirectoryError):
            text = f"{config.models_dir} is not a model file of a known kind"
        raise StartError(
            f"{text}; name a folder of models, or a model: pocketserve serve PATH"
        ) from None
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    if config.request_log == "on" or (config.request_log == "auto" and is_watched):
        service.traffic.log_request = RequestLog().write
    if any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        from pocketserve.transports import tracing  # late: few servers send traces

        tracing.trace_requests(service.traffic, os.environ)
    return service


def write_ready_file(
    path: Path, config: Config, endpoints: Endpoints, pid: int = 0
) -> None:
    """Write the server's addresses to a file, atomically."""
    content = {
        "pid": pid or os.getpid(),
        "http": endpoints.http._asdict(),
        "socket": endpoints.socket._asdict() if endpoints.socket is not None else None,
        "token_file": str(config.token_file.absolute()) if config.auth else None,
        "models_dir": str(config.models_dir.absolute()),
    }
    replace_json(path, content)


def _by_another_server(error: PortTakenError, state_dir: Path) -> PortTakenError:
    """Return the error, reworded if another server has the port."""
    owner = next(
        (run.pid for run in running_servers(state_dir) if error.busy_port in run.ports),
        None,
    )
    if owner is None:
        return error
    return PortTakenError(
        f"cannot listen on port {error.busy_port}: a running pocketserve (process {owner}) has it; stop that one "
        f"(kill {owner}), or choose both ports anew with --http-port and --socket-port",
        error.busy_port,
    )


def _warn_of_killed(state_dir: Path) -> None:
    """Warn if the last server was killed: Android gives no reason."""
    run = notice_killed(state_dir)
    if run is not None:
        # Imported late: most starts have nothing to say.
        from pocketserve.doctor.android import tell
        from pocketserve.doctor.device import Device

        log.warning(
            "%s; what helps: %s (`pocketserve doctor` has more)", *tell(Device(), run)
        )


def _log_models(folder: Path, models: Models) -> None:
    """Log the models, and hints at likely other folders."""
    names = models.present()
    if names:
        log.info("found %s: %s", plural(len(names), "model"), listed(names, MAX_LISTED))
    for name in models.misnamed[:MAX_LISTED]:
        log.warning("%s", name_fault(name))
    if not names:
        log.warning(
            "%s holds no model; put a model file into it and run `pocketserve models`",
            folder,
        )


def _install_signals(
    end: Callable[[], None], wakeup_descriptor: int
) -> Callable[[], None]:
    """Drain at the first signal, exit at the second.

    Return a function that restores the handlers.

    The thread starts now: when a signal comes, the system may have no threads left.
    """
    count = 0
    requested = threading.Event()

    def end_when_requested() -> None:
        requested.wait()
        if count:
            end()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        # A closing terminal sends SIGHUP, and so does its shell.
        if count > 1 and number != signal.SIGHUP:
            sys.stderr.write("ended at once\n")
            os._exit(1)
        requested.set()

    thread = threading.Thread(
        target=end_when_requested, name="pocketserve-drain", daemon=True
    )
    thread.start()
    # A signal just before the I/O loop falls asleep must wake it.
    signal.set_wakeup_fd(wakeup_descriptor, warn_on_full_buffer=False)
    numbers = [signal.SIGTERM, signal.SIGINT]
    # A closing terminal ends the server, unless nohup ignores the signal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handle) for number in numbers}

    def restore() -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in previous.items():
            signal.signal(number, handler)
        requested.set()  # after that: a handler that came in between would wait for this call

    return restore
