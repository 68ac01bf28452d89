"""The settings of gunicorn.

Run ``gunicorn -c python:pocketserve_scale.gunicorn --workers 2``. gunicorn reads its
own settings by their lower-case names; options on its command line take precedence. Our
settings come from environment variables, such as ``POCKETSERVE_MODELS_DIR``.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

from pocketserve.auth.guard import TokenFileError
from pocketserve.config import Config, ConfigError, load_config
from pocketserve.server import Endpoints, StartError, write_ready_file
from pocketserve.state.permissions import StateFolderError
from pocketserve.state.run_lock import RunLock
from pocketserve.system import binds_loopback
from pocketserve_scale import wsgi
from pocketserve_scale.worker_slot import NoSlotError
from pocketserve_wire.addresses import Address

KEPT_OPEN_S = 75
"""Keep-alive of an idle connection; the clients' own pools use a minute."""

NO_SIGN_S = 300
"""Timeout of a stuck worker; the import of a framework may block it for long."""

CANNOT_START = 3
"""gunicorn's exit code of a worker that cannot start; it ends the others, too."""


def _settings() -> Config:
    try:
        return load_config({})
    except ConfigError as error:
        sys.exit(f"pocketserve: {error}")


_CONFIG = _settings()
_locks: list[RunLock] = []

wsgi_app = "pocketserve_scale.wsgi:app"
bind = str(Address(_CONFIG.host, _CONFIG.http_port))
worker_class = "pocketserve_scale.gunicorn_worker.DeadlineWorker"
threads = _CONFIG.worker_threads
worker_connections = max(_CONFIG.max_connections, threads + 1)
keepalive = KEPT_OPEN_S
timeout = NO_SIGN_S
graceful_timeout = math.ceil(_CONFIG.drain_timeout)
# Anyone with access to the socket could change the number of workers.
control_socket_disable = True


def on_starting(server: Any) -> None:
    """Exit if a port without a token is reachable from outside.

    ``--bind`` may have changed the address.
    """
    for address in server.cfg.address:
        if not _CONFIG.auth and not _is_loopback(address):
            sys.exit(
                "pocketserve: POCKETSERVE_AUTH=0 works on loopback only; "
                f"{address} can be reached by others"
            )


def _is_loopback(address: Any) -> bool:
    return isinstance(address, tuple) and binds_loopback(address[0])


def when_ready(server: Any) -> None:
    """Record the port's owner for clients and ``pocketserve status``."""
    http = _http_address(server.LISTENERS)
    if http is not None:
        models_dir = str(_CONFIG.models_dir.absolute())
        lock = RunLock(_CONFIG.state_dir, (http.port,), str(http), models_dir)
        _locks.append(lock)


def _http_address(listeners: Any) -> Address | None:
    for listener in listeners:
        name = listener.sock.getsockname()
        if isinstance(name, tuple):
            return Address(*name[:2])
    return None


def post_worker_init(worker: Any) -> None:
    """Make the worker's service, and write the ready file."""
    try:
        wsgi.start(worker.cfg.workers)
    except (StartError, NoSlotError, StateFolderError, TokenFileError) as error:
        worker.log.error("pocketserve: %s", error)
        sys.exit(CANNOT_START)
    http = _http_address(worker.sockets)
    if _CONFIG.ready_file is not None and http is not None:
        endpoints = Endpoints(http, None)
        write_ready_file(_CONFIG.ready_file, _CONFIG, endpoints, os.getppid())


def worker_exit(server: Any, worker: Any) -> None:
    """Unload the models of a worker that ends.

    Its requests have finished.
    """
    wsgi.stop()


def on_exit(server: Any) -> None:
    """Release the port, for clients to see."""
    while _locks:
        _locks.pop().close()
    if _CONFIG.ready_file is not None:
        _CONFIG.ready_file.unlink(missing_ok=True)
