"""A Ray cluster of this machine alone, which ends with the command that started it; or one that runs already."""

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

_TOKEN_FILE = "ray-token"  # in the state folder: Ray's own, which lets its holder run code; clients never see it
CONNECT_LIMIT_S = 25.0
_FOLDERS = Path("/tmp")  # Ray's socket names may have 107 bytes


@contextlib.contextmanager
def local_cluster(config: Config, *, haproxy: bool) -> Iterator[str]:
    """Start Ray with its ports on loopback; yields its address. Nothing of it is left at the end.

    Args:
        haproxy: whether HAProxy takes the requests. It has two more ports, for figures, on all addresses.
    """
    with tempfile.TemporaryDirectory(
        prefix="ps-", dir=_FOLDERS
    ) as folder:  # only ours: Ray opens its own to everybody
        _use_token(config)
        _keep_to_loopback()
        if haproxy:
            _set_up_haproxy(Path(folder))
        with _connection(
            "local", include_dashboard=False, _temp_dir=f"{folder}/ray"
        ) as address:
            replace_file(own_file(config.state_dir), address.encode())
            try:
                _start_serve(config)
                yield address
            finally:
                own_file(config.state_dir).unlink(missing_ok=True)
                _end_serve()


@contextlib.contextmanager
def running_cluster(config: Config, address: str) -> Iterator[None]:
    """Use a cluster that runs; what is deployed stays there."""
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
    """End this process if connecting takes too long: Ray itself tries for minutes, and cannot be interrupted."""
    timer = threading.Timer(CONNECT_LIMIT_S, _give_up, (address,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(address: str) -> None:
    text = f"the Ray at {address} did not accept this command within {CONNECT_LIMIT_S:g} s; check its token and its log"
    print(f"pocketserve: {text}", file=sys.stderr, flush=True)
    os._exit(EXIT_FAILED)


def has_one_machine(address: str) -> bool:
    """Return whether the cluster that is connected consists of this machine alone."""
    import ray  # late, as below

    return (
        is_loopback(address.rpartition(":")[0])
        and sum(node["Alive"] for node in ray.nodes()) == 1
    )


@contextlib.contextmanager
def _connection(address: str, **options: Any) -> Iterator[str]:
    """Connect to Ray, or start it; yields its address. A signal ends the command as before, not as Ray has it."""
    import ray  # late: it reads its variables when it is imported

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
    """Have Ray take 127.0.0.1 for this machine's address, as it does on macOS: its ports are bound there."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def _use_token(config: Config) -> None:
    """Have Ray ask everybody for a token that only this user can read."""
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
    from ray import serve  # late, as above

    logging.getLogger("ray.serve").setLevel(
        logging.ERROR
    )  # the command says what is done
    options = {
        "host": config.host,
        "port": config.http_port,
        "request_timeout_s": config.request_timeout,
    }
    serve.start(proxy_location="EveryNode", http_options=options)


def _end_serve() -> None:
    from ray import serve  # late, as above

    serve.shutdown()
