"""``pocketserve serve``: answers requests until stopped."""

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
    "auth": "require no token",
    "quarantine": "load unseen files without a trial",
    "socket": "answer HTTP only",
    "batching": "run each request alone",
    "sequences": "reject sequences of models with state",
}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command, with one option per setting."""
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
    ungrouped = tuple(name for name in SETTINGS if name not in grouped)
    for title, names in {**GROUPS, "more": ungrouped}.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_option(group, name)
    return parser


def run(options: argparse.Namespace) -> int:
    """Serve, and return after a clean end."""
    values = {name: getattr(options, name) for name in SETTINGS}
    if options.load is not None:
        names: list[str] = []
        for item in options.load:
            names += filter(None, item.split(","))
        values["load"] = tuple(names)
    config = load_config(values)
    prepare_process(config)
    # A start creates no garbage; the collector would take 5 % of its time.
    gc.disable()
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
    gc.freeze()  # the collector skips objects that live as long as the process
    gc.enable()
    logging.info("serving %s at http://%s", config.models_dir, endpoints.http)
    if endpoints.socket is not None:
        logging.info("the socket protocol is served at %s", endpoints.socket)
    if config.auth:
        logging.info(
            "the token is in %s; `pocketserve token` prints it", config.token_file
        )
    if open_page:
        # Late: most servers open no page.
        from pocketserve.cli.running.open import open_own_page

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
    if choices:
        return "|".join(choices)
    unit = UNITS.get(setting.metadata["unit"])
    return unit or TYPES[str(setting.type)]


def _help(name: str) -> str:
    setting = SETTINGS[name]
    default: Any = setting.default
    text: str = setting.metadata["why"]
    if default and setting.metadata["unit"] == "bytes":
        text += f" [{default >> 20}M]"
    elif isinstance(default, int | float | str):
        # Paths are left out: they differ between users.
        text += f" [{default}]".replace(".0]", "]")
    return text.replace("%", "%%")
