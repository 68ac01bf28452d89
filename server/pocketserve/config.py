"""The one table of settings.

Each setting is a field of :class:`Config`: its name, type and default stand in the class, its unit, reason and limits
in the field's metadata. The command line (``--queue-limit``), the environment (``POCKETSERVE_QUEUE_LIMIT``) and
``docs/generated/settings.md`` are all derived from, or checked against, this table. Later sources win: default,
environment, command line.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pocketserve.auth.origins import is_origin
from pocketserve.messages import did_you_mean, near
from pocketserve.system import binds_loopback
from pocketserve_wire import limits
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK, SOCKET_PORT

APP_NAME: Final = "pocketserve"
PREFIX: Final = "POCKETSERVE_"
STATE_VARIABLE: Final = "POCKETSERVE_STATE_DIR"
OTHER_VARIABLES: Final = frozenset(
    PREFIX + name
    for name in (
        *("URL", "TOKEN"),  # the client's
        *(
            "SIMULATION",
            "IN_TRIAL",
            "TFJS_MODULES",
            "CONVERTERS",
        ),  # system.py, runtimes, convert
        *(
            "ALLOW_ROOT",
            "TEST_ASSETS",
            "TEST_STATE",
            "MATRIX",
        ),  # the installer and tests
        *("SOAK", "SOAK_TABLE", "SOAK_REQUESTS"),
        # tools, the package for Termux, and the recipe of the embedded model numbers
        *(
            "ARM64",
            "NEWEST_PYTHON",
            "DEBIAN_MIRROR",
            "ANDROID_DEBS",
            "ANDROID_TOOLCHAIN",
            "KEYSTORE_PASSWORD",
        ),
        *(
            "HOMEPAGE",
            "FONTS",
            "PHOTOS",
            "CONVERSION_LOG",
            "CHROMIUM",
            "FIREFOX",
            "BROWSERS_FOLDER",
        ),
    )
)
"""Variables of ours that are no settings, so that they are not taken for misspelt ones."""

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
}
DAY_S = 86400


class ConfigError(Exception):
    """An invalid setting; the text names it and the expected value."""


def _setting(
    default: Any,
    purpose: str,
    limits: tuple[float, float] | None = None,
    unit: str = "",
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a field; a function as ``default`` is called per instance.

    Limits are included.
    """
    metadata = {"why": purpose, "unit": unit, "limits": limits, "choices": choices}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def default_state_dir() -> Path:
    """Return the folder for state that survives restarts."""
    # Without a home folder, Android apps have folders of their own.
    shell = os.environ.get("SHELL") or os.environ.get("PREFIX")
    if (
        sys.platform in ("linux", "android")
        and shell
        and "XDG_STATE_HOME" not in os.environ
    ):
        # As platformdirs does; importing it takes a fortieth of the start time.
        return Path(os.path.expanduser("~/.local/state")) / APP_NAME
    import platformdirs

    return platformdirs.user_state_path(APP_NAME)


def default_token_file() -> Path:
    """Return where this installation keeps its token."""
    return default_state_dir() / "token"


def embedded_models_dir() -> Path:
    """Return the demo models' folder, in a wheel or checkout."""
    installed = Path(__file__).with_name("embedded_models")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "models"


@dataclasses.dataclass(frozen=True, repr=False)
class Config:
    """All settings of a server."""

    models_dir: Path = _setting(
        embedded_models_dir, "Folder of models, or one model's file or folder."
    )
    host: str = _setting(
        LOOPBACK,
        "Address to listen on; anything but loopback exposes the port to the network.",
    )
    http_port: int = _setting(
        HTTP_PORT,
        "TCP port for HTTP; 0 uses any free one. A taken port is an error.",
        (0, 65535),
    )
    socket: bool = _setting(True, "Also serve the socket protocol, on its own port.")
    socket_port: int = _setting(
        SOCKET_PORT,
        "TCP port for the socket protocol; 0 uses any free one.",
        (0, 65535),
    )
    port_wait: float = _setting(
        0.0,
        "Time to wait at start for a taken port; lets a supervised server restart sooner.",
        (0, DAY_S),
        "seconds",
    )
    token_file: Path = _setting(
        default_token_file, "File with the access token; created with mode 0600."
    )
    state_dir: Path = _setting(
        default_state_dir,
        "Folder for persisted state, such as verdicts; not the token.",
    )
    auth: bool = _setting(
        True,
        "Require the token. Without it every app on the device may use the server.",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "Additional Host header names to accept, for a reverse proxy."
    )
    allowed_origins: tuple[str, ...] = _setting(
        (),
        "Origins of web pages that may send requests with the token, such as capacitor://localhost; never all.",
    )
    ready_file: Path | None = _setting(
        None, "JSON file written once requests are accepted, removed on shutdown."
    )
    load: tuple[str, ...] = _setting(
        (), "Models to load at start instead of on first use."
    )
    quarantine: bool = _setting(
        True, "Try unseen model files in a separate process before they are loaded."
    )
    trial_timeout: float = _setting(
        120.0,
        "Time limit for the trial of a file.",
        (0.1, DAY_S),
        "seconds",
    )
    trial_memory: int = _setting(
        0,
        "Memory limit for the trial of a file, framework included; 0 means half of the available memory.",
        (0, 2**50),
        "bytes",
    )
    memory_budget: int = _setting(
        0,
        "Memory limit for all loaded models; 0 means half of the available memory.",
        (0, 2**50),
        "bytes",
    )
    decode_budget: int = _setting(
        256 * 2**20,
        "Memory limit for decoding pictures and JSON; further requests wait, "
        "and raw input of a stream is rejected.",
        (2**20, 2**50),
        "bytes",
    )
    keep_alive: float = _setting(
        300.0,
        "Idle time after which a model is unloaded; 0 keeps it loaded.",
        (0, 10**9),
        "seconds",
    )
    threads: int = _setting(
        0,
        "Threads of one inference; 0 means the fast cores that this process may use.",
        (0, 256),
    )
    low_power: str = _setting(
        "auto",
        "Half the threads, no background requests (priority 6 and above): auto (battery low or hot), on, off.",
        choices=("auto", "on", "off"),
    )
    low_battery: float = _setting(
        15.0,
        "Charge below which an uncharging battery counts as low; 0 disables this.",
        (0, 100),
        "%",
    )
    hot_battery: float = _setting(
        42.0,
        "Temperature from which the battery counts as hot; 0 disables this.",
        (0, 100),
        "°C",
    )
    queue_limit: int = _setting(
        64,
        "Requests that may wait for one busy model; the next one gets 429.",
        (1, 1024),
    )
    batching: bool = _setting(
        True, "Run waiting requests together if the model allows it and it pays."
    )
    sequences: bool = _setting(
        True,
        "Accept requests with a sequence_id; turn off if several servers share an address.",
    )
    max_batch: int = _setting(8, "Maximum rows in a batch.", (1, 1024), "rows")
    request_timeout: float = _setting(
        60.0,
        "Longest wait of a request without its own timeout.",
        (0.001, DAY_S),
        "seconds",
    )
    drain_timeout: float = _setting(
        4.0,
        "Time for running requests to finish after SIGTERM.",
        (0, 60),
        "seconds",
    )
    http_threads: int = _setting(
        0, "Threads for HTTP; 0 means 8 more than the queue limit.", (0, 1100)
    )
    max_connections: int = _setting(
        512,
        "Open HTTP connections; a new one beyond that closes the one that has been idle longest.",
        (1, 4096),
    )
    socket_connections: int = _setting(
        64, "Connections of the socket protocol; one more is rejected.", (1, 1024)
    )
    socket_inflight: int = _setting(
        32,
        "Requests in progress on one socket connection; the next one gets 429.",
        (1, 1024),
    )
    socket_bytes_inflight: int = _setting(
        limits.MAX_BODY_BYTES,
        "Total size of bodies in progress and unread answers on one socket connection; at least one body.",
        (1024, 2**31 - 1),
        "bytes",
    )
    socket_idle: float = _setting(
        300.0,
        "Time after which a silent socket connection is closed.",
        (3, DAY_S),
        "seconds",
    )
    max_body_bytes: int = _setting(
        limits.MAX_BODY_BYTES,
        "Size of a request body, before and after decompression.",
        (1024, 2**31 - 1),
        "bytes",
    )
    max_image_pixels: int = _setting(
        64_000_000,
        "Pixels of a decoded picture; larger ones are rejected.",
        (1, 2**31 - 1),
        "pixels",
    )
    server_name: str = _setting(APP_NAME, "Name in the server metadata.")
    log_level: str = _setting(
        "info",
        "Lowest level to log: debug, info, warning or error.",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _setting(
        "text",
        "Format of the log: readable lines, or one JSON document a line.",
        choices=("text", "json"),
    )
    request_log: str = _setting(
        "auto",
        "Log a line for each request, never its contents: auto (if the log is a terminal), on, off.",
        choices=("auto", "on", "off"),
    )

    @property
    def worker_threads(self) -> int:
        """Return the number of HTTP threads.

        Enough for a full queue and health checks.
        """
        return self.http_threads or self.queue_limit + 8


SETTINGS: Final = {field.name: field for field in dataclasses.fields(Config)}
"""Name -> dataclass field, whose metadata holds ``why``, ``unit``, ``limits`` and ``choices``."""

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "models": (
        "load",
        "quarantine",
        "trial_timeout",
        "trial_memory",
        "memory_budget",
        "keep_alive",
    ),
    "addresses": (
        "host",
        "http_port",
        "socket",
        "socket_port",
        "port_wait",
        "server_name",
    ),
    "access and files": (
        "auth",
        "allowed_hosts",
        "allowed_origins",
        "token_file",
        "state_dir",
        "ready_file",
    ),
    "log": ("log_level", "log_format", "request_log"),
    "processor and battery": ("threads", "low_power", "low_battery", "hot_battery"),
    "waiting requests": (
        "queue_limit",
        "batching",
        "max_batch",
        "request_timeout",
        "drain_timeout",
        "sequences",
    ),
    "limits": (
        *(
            "max_body_bytes",
            "max_image_pixels",
            "decode_budget",
            "http_threads",
            "max_connections",
        ),
        *(
            "socket_connections",
            "socket_inflight",
            "socket_bytes_inflight",
            "socket_idle",
        ),
    ),
}
"""The settings by subject, as help lists them; all but ``models_dir``."""


def load_config(
    options: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> Config:
    """Put the settings together.

    Args:
        options: values from the command line, as text or already converted; None leaves it to other sources.
        environ: the environment variables.

    Raises:
        ConfigError: for a value of the wrong type or out of range, or a name in ``options`` that is not a setting's.
    """
    values: dict[str, Any] = {}
    for name in options.keys() - SETTINGS.keys():
        raise ConfigError(f"{name!r} is not a setting{did_you_mean(name, SETTINGS)}")
    for name in SETTINGS:
        variable = variable_of(name)
        if options.get(name) is not None:
            values[name] = _convert(name, options[name], f"--{name.replace('_', '-')}")
        elif variable in environ:
            values[name] = _convert(name, environ[variable], variable)
    config = Config(**values)
    _check(config)
    return config


def variable_of(setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{setting.upper()}"


def unknown_variables(environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """Return unknown setting variables, with likely intended names."""
    names = OTHER_VARIABLES | {variable_of(name) for name in SETTINGS}
    short = sorted(name.removeprefix(PREFIX) for name in names)
    unknown: dict[str, list[str]] = {}
    for name in sorted(environ):
        if name.upper().startswith(PREFIX) and name not in names:
            similar = near(name[len(PREFIX) :].upper(), short)
            unknown[name] = [PREFIX + each for each in similar]
    return unknown


def parse_bytes(text: str) -> int:
    """Parse a size such as ``512M``, ``1.5GiB`` or ``65536``, in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", text.strip().lower())
    if not match or match[2] == "i":
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2]])


def _convert(name: str, value: Any, source: str) -> Any:
    if not isinstance(value, str):
        return value
    field = SETTINGS[name]
    expected, convert = _CONVERTERS[
        "bytes" if field.metadata["unit"] == "bytes" else str(field.type)
    ]
    try:
        return convert(value)
    except (
        KeyError,
        ValueError,
        OverflowError,
        RuntimeError,
    ):
        # Too large for a float, or the home of an unknown user.
        raise ConfigError(f"{source} must be {expected}, not {value!r}") from None


def _path(text: str) -> Path:
    if not text:  # Path("") would be the current folder
        raise ValueError(text)
    return Path(text).expanduser()


_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_CONVERTERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "bytes": ("a size such as 512M or 1GiB", parse_bytes),
    "int": ("a whole number", int),
    "float": ("a number", float),
    "bool": ("true or false", lambda text: _BOOLEANS[text.lower()]),
    "str": ("text", str),
    "Path": ("a path", _path),
    "Path | None": ("a path", _path),
    "tuple[str, ...]": (
        "names separated by commas",
        lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
    ),
}


def _check(config: Config) -> None:
    for name, field in SETTINGS.items():
        value, choices = getattr(config, name), field.metadata["choices"]
        if field.metadata["limits"] is not None:
            low, high = field.metadata["limits"]
            if not low <= value <= high:
                raise ConfigError(
                    f"{name} must be between {low} and {high}, not {value}"
                )
        if choices and value not in choices:
            raise ConfigError(
                f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}"
            )
    for origin in config.allowed_origins:
        if not is_origin(origin):
            example = "http://localhost:5173, exactly as a browser sends it, without a path; never * or null"
            raise ConfigError(
                f"allowed_origins must list origins such as {example}; not "
                f"{origin!r:.80}"
            )
    if not config.auth and not binds_loopback(config.host):
        raise ConfigError(
            f"--no-auth works on loopback only; {config.host} can be reached from the network"
        )
