"""``pocketserve scale``: the models folder on Ray Serve, in replicas that come and go."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import re
import threading
from pathlib import Path
from typing import Any

from pocketserve.auth.guard import ensure_token
from pocketserve.config import Config, load_config
from pocketserve.messages import listed, plural
from pocketserve.terminal.errors import EXIT_DONE, CommandError
from pocketserve.terminal.output import print_text
from pocketserve_wire.addresses import Address

_MAX_REPLICAS = 1000
_MAX_NAMED = 8  # models that are named at start


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "scale",
        help="serve a models folder from several machines, by Ray Serve",
        description="Serves a models folder from replicas on Ray Serve: on a Ray of this machine, which ends with this "
        "command, or on a cluster that runs. A second time it replaces the replicas, one after another. The settings "
        "of `serve` are environment variables here, such as POCKETSERVE_HTTP_PORT.",
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
        help="a number, or least and most [1]",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="a Ray cluster that runs, or auto, instead of one's own",
    )
    parser.add_argument(
        "--haproxy",
        action="store_true",
        help="HAProxy takes the requests, many times faster",
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
            "--haproxy is for a Ray of one's own; a cluster is started with RAY_SERVE_ENABLE_HA_PROXY=1"
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
        print_text(
            f"to change what is served: pocketserve scale FOLDER --address {address}"
        )
        _until_stopped(config)
    return EXIT_DONE


def _bounds(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", text)
    if (
        match is None
        or not 1 <= int(match[1]) <= int(match[2] or match[1]) <= _MAX_REPLICAS
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of replicas such as 2 or 1..4, up to {_MAX_REPLICAS}"
        )
    return int(match[1]), int(match[2] or match[1])


def _settings(folder: Path) -> Config:
    """Return the settings of a replica: all models are loaded before it is asked, unless some are named."""
    from pocketserve.repository.repository import (
        Repository,
    )  # late: --help needs no models

    config = load_config({"models_dir": folder})
    try:
        models = Repository(folder).models()
    except OSError as error:
        raise CommandError(
            f"the models folder {folder} cannot be read ({error.strerror})"
        ) from None
    if not models:
        raise CommandError(
            f"{folder} has no models; `pocketserve add` brings one there"
        )
    if not config.http_port:
        raise CommandError("Ray needs a port; name one with POCKETSERVE_HTTP_PORT")
    places = {
        name: getattr(config, name).absolute() for name in ("token_file", "state_dir")
    }
    return dataclasses.replace(
        config, load=config.load or tuple(models), threads=config.threads or 1, **places
    )


def _deploy(config: Config, replicas: tuple[int, int], address: str) -> None:
    from pocketserve_scale.ray_applications import (
        Replicas,
        deploy_folder,
    )  # late: imports Ray, once its variables are set
    from pocketserve_scale.ray_cluster import has_one_machine

    if config.auth:
        ensure_token(config.token_file)
    # Of a machine by itself nothing is reserved: no other one could be chosen.
    cpus = 0 if has_one_machine(address) else config.threads
    stateful = deploy_folder(config, Replicas(*replicas, cpus))
    count = (
        plural(replicas[1], "replica")
        if replicas[0] == replicas[1]
        else f"{replicas[0]} to {replicas[1]} replicas"
    )
    print_text(
        f"serving {config.models_dir} at http://{config.host}:{config.http_port} from {count}"
    )
    if stateful:
        print_text(
            f"sequences of {listed(stateful, _MAX_NAMED)} are answered below /v2/models/, from one replica each"
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
        threading.Event().wait()
    except KeyboardInterrupt:  # the ordinary end
        pass
    finally:
        lock.close()
        if config.ready_file is not None:
            config.ready_file.unlink(missing_ok=True)
