"""``pocketserve scale``: serve the models folder on Ray Serve, in replicas."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketserve.auth.guard import ensure_token
from pocketserve.config import Config, load_config
from pocketserve.messages import listed, plural
from pocketserve.terminal.errors import EXIT_DONE, CommandError
from pocketserve.terminal.output import print_text
from pocketserve_wire.addresses import Address

_MAX_REPLICAS = 1000
_MAX_NAMED = 8
"""Models that the command lists at the start."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "scale",
        help="serve a models folder from several machines, by Ray Serve",
        description="Serves a models folder from replicas on Ray Serve: on a Ray of "
        "this machine, which ends with this command, or on a running cluster. A second "
        "run replaces the replicas, one after another. The settings of `serve` are "
        "environment variables here, such as POCKETSERVE_HTTP_PORT.",
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="the models folder; at the same place on each machine",
    )
    parser.add_argument(
        "--replicas",
        type=_bounds,
        default=(1, 1),
        metavar="1..4",
        help="a number, or minimum..maximum [1]",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="a running Ray cluster, or auto, instead of a new one",
    )
    parser.add_argument(
        "--haproxy",
        action="store_true",
        help="receive requests with HAProxy, which is many times faster",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Deploy the folder; without a cluster's address, serve until stopped."""
    if importlib.util.find_spec("ray") is None:
        raise CommandError(
            "Ray is not installed; run: pip install 'pocketserve-lab[ray]'"
        )
    if options.address and options.haproxy:
        raise CommandError(
            "--haproxy is for a new Ray; start a cluster with "
            "RAY_SERVE_ENABLE_HA_PROXY=1"
        )
    config = _settings(options.folder.absolute())
    from pocketserve_scale.ray_address import find_address
    from pocketserve_scale.ray_cluster import local_cluster, running_cluster

    if options.address:
        address = find_address(options.address, config.state_dir)
        with running_cluster(config, address):
            _deploy(config, options.replicas, address)
        return EXIT_DONE
    with local_cluster(config, haproxy=options.haproxy) as address:
        _deploy(config, options.replicas, address)
        command = f"pocketserve scale FOLDER --address {address}"
        print_text(f"to change what is served: {command}")
        _until_stopped(config)
    return EXIT_DONE


def _bounds(text: str) -> tuple[int, int]:
    """Parse a number, or bounds such as ``1..4``."""
    match = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", text)
    if match is not None:
        least, most = int(match[1]), int(match[2] or match[1])
        if 1 <= least <= most <= _MAX_REPLICAS:
            return least, most
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of replicas such as 2 or 1..4, up to {_MAX_REPLICAS}"
    )


def _settings(folder: Path) -> Config:
    """Return the settings of a replica.

    It loads all models at the start, unless ``load`` names some.
    """
    config = load_config({"models_dir": folder})
    models = _models(folder)
    if not config.http_port:
        raise CommandError("Ray needs a port; name one with POCKETSERVE_HTTP_PORT")
    return dataclasses.replace(
        config,
        load=config.load or tuple(models),
        threads=config.threads or 1,
        token_file=config.token_file.absolute(),
        state_dir=config.state_dir.absolute(),
    )


def _models(folder: Path) -> Sequence[str]:
    """Return the names of the models; CommandError if there are none."""
    # Late: --help needs no models.
    from pocketserve.repository.repository import Repository

    try:
        models = Repository(folder).models()
    except OSError as error:
        raise CommandError(
            f"the models folder {folder} cannot be read ({error.strerror})"
        ) from None
    if not models:
        raise CommandError(f"{folder} has no models; add one with `pocketserve add`")
    return list(models)


def _deploy(config: Config, replicas: tuple[int, int], address: str) -> None:
    # Late: it imports Ray, once its variables are set.
    from pocketserve_scale.ray_applications import Replicas, deploy_folder
    from pocketserve_scale.ray_cluster import has_one_machine

    if config.auth:
        ensure_token(config.token_file)
    # On a single machine nothing is reserved: there is no other one to choose.
    cpus = 0 if has_one_machine(address) else config.threads
    stateful = deploy_folder(config, Replicas(*replicas, cpus))
    least, most = replicas
    count = f"{least} to {most} replicas"
    if least == most:
        count = plural(most, "replica")
    url = f"http://{config.host}:{config.http_port}"
    print_text(f"serving {config.models_dir} at {url} from {count}")
    if stateful:
        print_text(
            f"sequences of {listed(stateful, _MAX_NAMED)} are answered below "
            "/v2/models/, from one replica each"
        )


def _until_stopped(config: Config) -> None:
    """Wait for the signal that ends a command."""
    from pocketserve.server import Endpoints, write_ready_file
    from pocketserve.state.run_lock import RunLock

    http = Address(config.host, config.http_port)
    lock = RunLock(config.state_dir, (http.port,), str(http), str(config.models_dir))
    try:
        if config.ready_file is not None:
            write_ready_file(config.ready_file, config, Endpoints(http, None))
        # Ctrl-C is the usual end.
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    finally:
        lock.close()
        if config.ready_file is not None:
            config.ready_file.unlink(missing_ok=True)
