"""gunicorn's settings: ``gunicorn -c python:pocketserve_scale.gunicorn --workers 2``.

gunicorn reads the names in lower case that are its own settings; options on its command line go before them. Ours come
from environment variables, such as ``POCKETSERVE_MODELS_DIR``.
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

KEPT_OPEN_S = 75  # an idle connection; the clients' own pools keep theirs for a minute
NO_SIGN_S = 300  # without which a worker counts as stuck; to import a framework may hold the interpreter for long
CANNOT_START = (
    3  # gunicorn's own exit code of a worker that cannot start: it ends the others, too
)


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
control_socket_disable = True  # whoever reaches it could change the number of workers


def on_starting(server: Any) -> None:
    """Refuse to go without the token where others can reach a port, which ``--bind`` may have changed."""
    for address in server.cfg.address:
        if not _CONFIG.auth and not _is_loopback(address):
            sys.exit(
                f"pocketserve: POCKETSERVE_AUTH=0 works on loopback only; {address} can be reached by others"
            )


def _is_loopback(address: Any) -> bool:
    return isinstance(address, tuple) and binds_loopback(address[0])


def when_ready(server: Any) -> None:
    """Show clients and ``pocketserve status`` whose the port is."""
    http = _http_address(server.LISTENERS)
    if http is not None:
        _locks.append(
            RunLock(
                _CONFIG.state_dir,
                (http.port,),
                str(http),
                str(_CONFIG.models_dir.absolute()),
            )
        )


def _http_address(listeners: Any) -> Address | None:
    names = [listener.sock.getsockname() for listener in listeners]
    return next((Address(*name[:2]) for name in names if isinstance(name, tuple)), None)


def post_worker_init(worker: Any) -> None:
    """Make the worker's service, and tell that requests are accepted."""
    try:
        wsgi.start(worker.cfg.workers)
    except (StartError, NoSlotError, StateFolderError, TokenFileError) as error:
        worker.log.error("pocketserve: %s", error)
        sys.exit(CANNOT_START)
    http = _http_address(worker.sockets)
    if _CONFIG.ready_file is not None and http is not None:
        write_ready_file(
            _CONFIG.ready_file, _CONFIG, Endpoints(http, None), os.getppid()
        )


def worker_exit(server: Any, worker: Any) -> None:
    """Unload the models of a worker that ends; requests under way were waited for."""
    wsgi.stop()


def on_exit(server: Any) -> None:
    """Give the port up, for clients to see."""
    while _locks:
        _locks.pop().close()
    if _CONFIG.ready_file is not None:
        _CONFIG.ready_file.unlink(missing_ok=True)
