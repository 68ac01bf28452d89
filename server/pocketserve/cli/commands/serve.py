"""``pocketserve serve``: answer requests until stopped."""

from __future__ import annotations

import argparse
import gc
import logging
from itertools import chain
from typing import TYPE_CHECKING, Any

from pocketserve.config import GROUPS, SETTINGS, Config, load_config
from pocketserve.terminal.log_output import prepare_process

if TYPE_CHECKING:
    from pocketserve.server import Endpoints

UNITS = {
    "seconds": "SECONDS",
    "bytes": "BYTES",
    "%": "PERCENT",
    "°C": "CELSIUS",
    "rows": "ROWS",
    "pixels": "PIXELS",
}
TYPES = {
    "int": "N",
    "str": "TEXT",
    "Path": "PATH",
    "Path | None": "PATH",
    "tuple[str, ...]": "NAMES",
}

SWITCHES = {
    "auth": "ask nobody for the token",
    "quarantine": "load unseen files without a trial",
    "socket": "answer HTTP only",
    "batching": "run every request on its own",
    "sequences": "refuse every sequence_id of a model with state",
}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options: one per setting, and the folder as a plain argument."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve", help="serve a folder of models"
    )
    parser.add_argument(
        "models_dir", nargs="?", metavar="MODELS_DIR", help=_help("models_dir")
    )
    parser.add_argument(
        "--open",
        action="store_true",
        dest="open_page",
        help="show the server's page in the browser",
    )
    grouped = {"models_dir", *chain.from_iterable(GROUPS.values())}
    for title, names in {
        **GROUPS,
        "more": tuple(name for name in SETTINGS if name not in grouped),
    }.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_option(group, name)
    return parser


def run(options: argparse.Namespace) -> int:
    """Serve, and return after a clean end."""
    values = {name: getattr(options, name) for name in SETTINGS}
    if options.load is not None:
        values["load"] = tuple(
            name for item in options.load for name in item.split(",") if name
        )
    config = load_config(values)
    prepare_process(config)
    gc.disable()  # nothing that is made at start is garbage: looking for it costs a twentieth of the time
    try:
        from pocketserve.server import serve

        serve(
            config,
            on_ready=lambda endpoints: _ready(
                config, endpoints, open_page=options.open_page
            ),
        )
    finally:
        gc.enable()
    return 0


def _ready(config: Config, endpoints: Endpoints, *, open_page: bool) -> None:
    gc.freeze()  # what lives as long as the process need not be looked through again and again
    gc.enable()
    logging.info("serving %s at http://%s", config.models_dir, endpoints.http)
    if endpoints.socket is not None:
        logging.info("the socket protocol is spoken at %s", endpoints.socket)
    if config.auth:
        logging.info(
            "the token is in %s; `pocketserve token` prints it", config.token_file
        )
    if open_page:
        from pocketserve.cli.running.open import (
            open_own_page,
        )  # late: most servers open no page

        open_own_page(config, endpoints)


def _add_option(group: Any, name: str) -> None:
    option = name.replace("_", "-")
    if name in SWITCHES:
        group.add_argument(
            f"--no-{option}",
            dest=name,
            action="store_const",
            const=False,
            help=SWITCHES[name],
        )
    elif name == "load":
        group.add_argument("--load", nargs="+", metavar="NAME", help=_help(name))
    else:
        group.add_argument(f"--{option}", metavar=_metavar(name), help=_help(name))


def _metavar(name: str) -> str:
    setting = SETTINGS[name]
    choices: tuple[str, ...] = setting.metadata["choices"]
    return (
        "|".join(choices)
        or UNITS.get(setting.metadata["unit"])
        or TYPES[str(setting.type)]
    )


def _help(name: str) -> str:
    setting = SETTINGS[name]
    default: Any = setting.default
    text: str = setting.metadata["why"]
    if default and setting.metadata["unit"] == "bytes":
        text += f" [{default >> 20}M]"
    elif isinstance(
        default, int | float | str
    ):  # no file, which lies elsewhere for each user
        text += f" [{default}]".replace(".0]", "]")
    return text.replace("%", "%%")
