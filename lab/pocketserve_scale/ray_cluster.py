"""A Ray cluster: a local one that ends with its command, or a running one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketserve.auth.guard import ensure_token
from pocketserve.config import Config
from pocketserve.engine.device.signals import uninterrupted
from pocketserve.state.json_store import replace_file
from pocketserve.system import is_loopback
from pocketserve.terminal.errors import EXIT_FAILED
from pocketserve_scale.ray_address import own_file

_TOKEN_FILE = "ray-token"
"""Ray's own token, in the state folder.

Its owner can run code on the cluster; clients never see it.
"""

CONNECT_LIMIT_S = 25.0
_FOLDERS = Path("/tmp")
"""Names of Ray's sockets are limited to 107 bytes."""


@contextlib.contextmanager
def local_cluster(config: Config, *, haproxy: bool) -> Iterator[str]:
    """Start Ray with its ports on loopback and yield its address.

    It is cleaned up at the end.

    Args:
        haproxy: whether HAProxy takes the requests. It has two more ports, for metrics,
            on all addresses.
    """
    # A private folder: the one that Ray makes is open to all users.
    with tempfile.TemporaryDirectory(prefix="ps-", dir=_FOLDERS) as folder:
        _use_token(config)
        _keep_to_loopback()
        if haproxy:
            _set_up_haproxy(Path(folder))
        work = f"{folder}/ray"
        with _connection("local", include_dashboard=False, _temp_dir=work) as address:
            replace_file(own_file(config.state_dir), address.encode())
            try:
                _start_serve(config)
                yield address
            finally:
                own_file(config.state_dir).unlink(missing_ok=True)
                _end_serve()


@contextlib.contextmanager
def running_cluster(config: Config, address: str) -> Iterator[None]:
    """Use a running cluster; deployed applications stay there."""
    if "RAY_AUTH_MODE" not in os.environ:
        _use_token(config)
    if is_loopback(address.rpartition(":")[0]):
        _keep_to_loopback()
    with contextlib.ExitStack() as stack:
        with _time_limit(address):
            stack.enter_context(_connection(address))
        _start_serve(config)
        yield


@contextlib.contextmanager
def _time_limit(address: str) -> Iterator[None]:
    """End this process if connecting takes too long.

    Ray itself tries for minutes, and cannot be interrupted.
    """
    timer = threading.Timer(CONNECT_LIMIT_S, _give_up, (address,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(address: str) -> None:
    text = (
        f"the Ray at {address} did not accept this command within "
        f"{CONNECT_LIMIT_S:g} s; check its token and its log"
    )
    print(f"pocketserve: {text}", file=sys.stderr, flush=True)
    os._exit(EXIT_FAILED)


def has_one_machine(address: str) -> bool:
    """Return whether the connected cluster consists of this machine alone."""
    import ray

    if not is_loopback(address.rpartition(":")[0]):
        return False
    alive = [node for node in ray.nodes() if node["Alive"]]
    return len(alive) == 1


@contextlib.contextmanager
def _connection(address: str, **options: Any) -> Iterator[str]:
    """Connect to Ray, or start it, and yield its address.

    The handler of SIGTERM stays ours.
    """
    # Late: Ray reads its environment variables when it is imported.
    import ray

    own = signal.getsignal(signal.SIGTERM)
    try:
        with uninterrupted():
            context = ray.init(
                address=address, configure_logging=False, log_to_driver=False, **options
            )
            signal.signal(signal.SIGTERM, own)
        yield str(context.address_info["gcs_address"])
    finally:
        ray.shutdown()


def _keep_to_loopback() -> None:
    """Configure Ray to bind its ports to 127.0.0.1, as it does on macOS."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def _use_token(config: Config) -> None:
    """Configure Ray to require a token that only this user can read."""
    ensure_token(config.state_dir / _TOKEN_FILE)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str((config.state_dir / _TOKEN_FILE).absolute())
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def _set_up_haproxy(folder: Path) -> None:
    os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] = str(folder / "haproxy.cfg")
    os.environ["RAY_SERVE_HAPROXY_SOCKET_PATH"] = str(folder / "admin.sock")
    os.environ["RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"] = str(folder / "metrics.sock")
    os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] = str(folder)
    os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_FILE"] = str(folder / "server-state")


def _start_serve(config: Config) -> None:
    from ray import serve

    # The command itself reports progress.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    options = {
        "host": config.host,
        "port": config.http_port,
        "request_timeout_s": config.request_timeout,
    }
    serve.start(proxy_location="EveryNode", http_options=options)


def _end_serve() -> None:
    from ray import serve

    serve.shutdown()
