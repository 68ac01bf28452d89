"""Read settings from the environment and flags, with precedence and errors."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from pocketserve.cli.commands import serve
from pocketserve.config import (
    GROUPS,
    OTHER_VARIABLES,
    SETTINGS,
    Config,
    ConfigError,
    default_state_dir,
    default_token_file,
    embedded_models_dir,
    load_config,
    parse_bytes,
    unknown_variables,
)
from pocketserve_wire import limits

GOOD: dict[str, list[tuple[str, Any]]] = {
    "models_dir": [("/data/models", Path("/data/models")), ("~/m", Path.home() / "m")],
    "host": [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0.0.0.0", "0.0.0.0")],
    "http_port": [("0", 0), ("65535", 65535)],
    "socket": [("true", True), ("off", False)],
    "socket_port": [("0", 0), ("65535", 65535)],
    "port_wait": [("0", 0.0), ("86400", 86400.0)],
    "socket_connections": [("1", 1), ("1024", 1024)],
    "socket_inflight": [("1", 1), ("1024", 1024)],
    "socket_bytes_inflight": [("1024", 1024), ("1MiB", 2**20)],
    "socket_idle": [("3", 3.0), ("86400", 86400.0)],
    "token_file": [("~/t", Path.home() / "t")],
    "state_dir": [("/data/state", Path("/data/state")), ("~/s", Path.home() / "s")],
    "quarantine": [("true", True), ("off", False)],
    "trial_timeout": [("0.1", 0.1), ("86400", 86400.0)],
    "trial_memory": [("0", 0), ("1GiB", 2**30)],
    "auth": [
        ("true", True),
        ("0", False),
        ("Off", False),
        ("YES", True),
        ("no", False),
        ("1", True),
    ],
    "allowed_hosts": [
        ("a", ("a",)),
        ("a,b.example", ("a", "b.example")),
        (" a , ,b,", ("a", "b")),
        ("", ()),
    ],
    "allowed_origins": [
        ("capacitor://localhost", ("capacitor://localhost",)),
        (
            "http://localhost:5173, tauri://localhost",
            ("http://localhost:5173", "tauri://localhost"),
        ),
        (
            "chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb",
            ("chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb",),
        ),
        ("https://[::1]:8443", ("https://[::1]:8443",)),
    ],
    "ready_file": [("r.json", Path("r.json"))],
    "load": [("digits,petals", ("digits", "petals"))],
    "decode_budget": [("1MiB", 2**20), ("512M", 512 * 10**6)],
    "memory_budget": [("0", 0), ("512M", 512 * 10**6), ("1GiB", 2**30)],
    "keep_alive": [("0", 0.0), ("1.5", 1.5)],
    "threads": [("0", 0), ("256", 256)],
    "low_power": [("auto", "auto"), ("on", "on"), ("off", "off")],
    "low_battery": [("0", 0.0), ("20", 20.0), ("100", 100.0)],
    "hot_battery": [("0", 0.0), ("39.5", 39.5)],
    "queue_limit": [("1", 1), ("1024", 1024)],
    "batching": [("true", True), ("off", False)],
    "sequences": [("true", True), ("off", False)],
    "max_batch": [("1", 1), ("1024", 1024)],
    "request_timeout": [("0.001", 0.001), ("86400", 86400.0)],
    "drain_timeout": [("0", 0.0), ("60", 60.0)],
    "http_threads": [("0", 0), ("1100", 1100)],
    "max_connections": [("1", 1), ("4096", 4096)],
    "max_body_bytes": [("1024", 1024), ("1KiB", 1024)],
    "max_image_pixels": [("1", 1), ("2147483647", 2**31 - 1)],
    "server_name": [("phone", "phone"), ("", "")],
    "log_level": [("debug", "debug"), ("error", "error")],
    "log_format": [("text", "text"), ("json", "json")],
    "request_log": [("on", "on"), ("auto", "auto")],
}
BAD: dict[str, list[str]] = {
    "models_dir": ["~nobody-of-this-name/m"],
    "token_file": ["~nobody-of-this-name/t"],
    "ready_file": ["~nobody-of-this-name/r"],
    "state_dir": ["~nobody-of-this-name/s"],
    "quarantine": ["", "maybe"],
    "trial_timeout": ["", "2m"],
    "trial_memory": ["", "half"],
    "http_port": ["", "http", "80.5", "0x50", "9" * 5000],
    "socket": ["", "maybe"],
    "socket_port": ["", "http", "80.5"],
    "port_wait": ["", "1m"],
    "socket_connections": ["", "x"],
    "socket_inflight": ["", "x"],
    "socket_bytes_inflight": ["", "64 megabytes"],
    "socket_idle": ["", "5m"],
    "auth": ["", "maybe", "2", "y"],
    "decode_budget": ["", "lots", "1T"],
    "memory_budget": ["", "lots", "1T", "-1", "5i", "1e9", "9" * 400],
    "keep_alive": ["", "5m"],
    "threads": ["", "two", "1.0"],
    "low_battery": ["", "15%"],
    "hot_battery": ["", "warm"],
    "queue_limit": ["", "many"],
    "batching": ["", "maybe"],
    "sequences": ["", "maybe"],
    "max_batch": ["", "few"],
    "request_timeout": ["", "1s"],
    "drain_timeout": ["", "soon"],
    "http_threads": ["", "x"],
    "max_connections": ["", "x"],
    "max_body_bytes": ["", "64 megabytes"],
    "max_image_pixels": ["", "64M"],
}
OUT_OF_RANGE: dict[str, list[str]] = {
    "http_port": ["-1", "65536"],
    "socket_port": ["-1", "65536"],
    "port_wait": ["-1", "86401", "nan"],
    "socket_connections": ["0", "1025"],
    "socket_inflight": ["0", "1025"],
    "socket_bytes_inflight": ["1023", "2GiB"],
    "socket_idle": ["2.9", "86401", "nan"],
    "decode_budget": ["1023KiB", "2000000GiB"],
    "memory_budget": ["2000000GiB"],
    "trial_timeout": ["0", "86401", "nan"],
    "trial_memory": ["2000000GiB"],
    "keep_alive": ["-1", "nan", "inf", "1e10"],
    "threads": ["-1", "257"],
    "low_power": ["true", "AUTO", ""],
    "low_battery": ["-1", "101", "nan"],
    "hot_battery": ["-1", "101", "nan"],
    "queue_limit": ["0", "1025", "-5"],
    "allowed_origins": [
        "*",
        "null",
        "http://*.example",
        "http://a/",
        "http://a/b",
        "localhost:5173",
        "file://",
    ],
    "max_batch": ["0", "1025"],
    "request_timeout": ["0", "0.0001", "86401", "nan"],
    "drain_timeout": ["-0.1", "61"],
    "http_threads": ["-1", "1101"],
    "max_connections": ["0", "4097"],
    "max_body_bytes": ["1023", "2GiB", "0"],
    "max_image_pixels": ["0", "2147483648"],
    "log_level": ["INFO", "trace", ""],
    "log_format": ["JSON", "xml", ""],
    "request_log": ["true", "AUTO", ""],
}
UNCHECKED = {
    "low_power",
    "host",
    "allowed_hosts",
    "allowed_origins",
    "load",
    "server_name",
    "log_level",
    "log_format",
    "request_log",
}


def cases(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    """Return the rows of a table of settings."""
    return [(name, case) for name, listed in table.items() for case in listed]


def flag(name: str) -> str:
    """Return a setting's option."""
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """Return a setting's environment variable."""
    return f"POCKETSERVE_{name.upper()}"


def short(value: object) -> str:
    """Return a readable test id."""
    return str(value)[:24]


def test_the_tables_are_complete() -> None:
    """Each new setting must be added to the tables of this file."""
    assert set(GOOD) == set(SETTINGS)
    assert set(BAD) | UNCHECKED == set(SETTINGS)
    assert sorted(
        ("models_dir", *(name for names in GROUPS.values() for name in names))
    ) == sorted(SETTINGS)
    assert all(setting.metadata["why"].endswith(".") for setting in SETTINGS.values())


@pytest.mark.parametrize(("name", "case"), cases(GOOD), ids=short)
def test_every_setting_converts(name: str, case: tuple[str, Any]) -> None:
    """A text means the same from the environment and from a flag."""
    text, expected = case
    from_environment = getattr(load_config({}, {variable(name): text}), name)
    from_flag = getattr(load_config({name: text}, {}), name)
    assert from_environment == from_flag == expected
    assert type(from_environment) is type(expected) or isinstance(expected, Path)


@pytest.mark.parametrize(("name", "text"), cases(BAD), ids=short)
def test_invalid_texts_are_refused(name: str, text: str) -> None:
    """The error names the source of the value and the expected form."""
    for given, environ, source in (
        ({}, {variable(name): text}, variable(name)),
        ({name: text}, {}, flag(name)),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(given, environ)
        assert str(caught.value).startswith(f"{source} must be a") or str(
            caught.value
        ).startswith(f"{source} must be t")


@pytest.mark.parametrize(("name", "text"), cases(OUT_OF_RANGE), ids=short)
def test_values_out_of_range_are_refused(name: str, text: str) -> None:
    """The error names the setting and its range."""
    for given, environ in (({}, {variable(name): text}), ({name: text}, {})):
        with pytest.raises(ConfigError, match=f"^{name} must "):
            load_config(given, environ)


def test_defaults_apply_and_are_in_range() -> None:
    config = load_config({}, {})
    assert config == Config()
    assert config.host == "127.0.0.1"
    assert config.http_port == 8470
    assert config.auth is True
    assert config.models_dir == embedded_models_dir()
    assert config.token_file == default_token_file()
    assert config.max_body_bytes == limits.MAX_BODY_BYTES
    assert (config.models_dir / "digits" / "model.toml").is_file()


def test_a_flag_precedes_a_variable_and_a_variable_a_default() -> None:
    environ = {
        "POCKETSERVE_HTTP_PORT": "1",
        "POCKETSERVE_THREADS": "2",
        "POCKETSERVE_OTHER": "x",
        "HTTP_PORT": "9",
    }
    config = load_config({"http_port": "3", "threads": None}, environ)
    assert config.http_port == 3
    assert config.threads == 2
    assert config.queue_limit == 64


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POCKETSERVE_QUEUE_LIMT", ["POCKETSERVE_QUEUE_LIMIT"]),
        ("POCKETSERVE_PORT", ["POCKETSERVE_HTTP_PORT", "POCKETSERVE_SOCKET_PORT"]),
        ("POCKETSERVE_MODELS", ["POCKETSERVE_MODELS_DIR"]),
        ("POCKETSERVE_TOKENFILE", ["POCKETSERVE_TOKEN_FILE"]),
        ("pocketserve_host", ["POCKETSERVE_HOST"]),
        ("POCKETSERVE_", []),
        ("POCKETSERVE_FROBNICATE", []),
    ],
)
def test_an_unknown_variable_is_reported(name: str, meant: list[str]) -> None:
    """A similar setting is suggested; variables of others are ignored."""
    assert unknown_variables(
        {
            name: "x",
            "PATH": "x",
            "POCKET_SERVE": "x",
            "POCKETSERVE_HOST": "x",
        }
    ) == {name: meant}


def test_every_variable_of_ours_is_known() -> None:
    """Variables of the client, tools and tests aren't mistaken for misspelt settings."""
    root = Path(__file__).resolve().parents[1]
    places = (
        "server",
        "client",
        "lab",
        "tools",
        "tests",
        "benchmarks",
        "android_bridge",
        "models",
        "termux",
    )
    files = [
        path
        for place in places
        for path in (root / place).rglob("*")
        if path.suffix in (".py", ".sh")
    ]
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*files, root / "install-termux.sh")
        if path != Path(__file__)
    ]
    found = {
        name
        for text in texts
        for name in re.findall(r"\bPOCKETSERVE_[A-Z_0-9]+\b", text)
    }
    assert found >= OTHER_VARIABLES
    assert unknown_variables(dict.fromkeys(found, "x")) == {}


def test_an_unknown_setting_is_refused() -> None:
    """This protects embedding programs: the command line makes options from the table."""
    with pytest.raises(
        ConfigError, match="'http_prot' is not a setting; did you mean 'http_port'"
    ):
        load_config({"http_prot": 3}, {})


def test_a_flag_replaces_an_invalid_variable() -> None:
    """The variable isn't even read."""
    assert (
        load_config({"http_port": "3"}, {"POCKETSERVE_HTTP_PORT": "x"}).http_port == 3
    )


def test_converted_values_are_accepted() -> None:
    """An embedding program passes Python values; False is a value, None is not."""
    config = load_config(
        {
            "auth": False,
            "load": ("a",),
            "models_dir": Path("m"),
        },
        {"POCKETSERVE_AUTH": "true"},
    )
    assert (config.auth, config.load, config.models_dir) == (
        False,
        ("a",),
        Path("m"),
    )


def test_every_setting_has_a_flag() -> None:
    """The command line is derived from the table."""
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    switches = {name for name, setting in SETTINGS.items() if setting.type == "bool"}
    texts = SETTINGS.keys() - switches - {"models_dir"}
    arguments = [f"--no-{flag(name)[2:]}" for name in switches] + [
        part for name in texts for part in (flag(name), "1")
    ]
    options = vars(parser.parse_args(["serve", "FOLDER", *arguments]))
    assert options.pop("models_dir") == "FOLDER"
    assert options.pop("load") == ["1"]
    assert options.pop("open_page") is False  # not a setting, but a single action
    assert options == dict.fromkeys(switches, False) | dict.fromkeys(
        texts - {"load"}, "1"
    )


SIZES = {
    "0": 0,
    "65536": 65536,
    "512M": 512 * 10**6,
    "512m": 512 * 10**6,
    "512MB": 512 * 10**6,
    "512MiB": 512 * 2**20,
    "512Mi": 512 * 2**20,
    "1.5GiB": 3 * 2**29,
    "1.5k": 1500,
    "2KB": 2000,
    " 2 KiB ": 2048,
    "7b": 7,
    "1.9": 1,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes_have_units(text: str) -> None:
    """Units are bytes, decimal or binary, in any case, with or without the B."""
    assert parse_bytes(text) == SIZES[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "M",
        "-1",
        "+1",
        "1.",
        ".5",
        "1e3",
        "1,5G",
        "1i",
        "1ib",
        "1T",
        "1 G B",
        "0x1",
        "inf",
    ],
)
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.1.0.20", True),
        ("::1", True),
        ("localhost", True),
        ("127.0.0.256", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.5", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_no_auth_needs_loopback(host: str, allowed: bool) -> None:
    """Only a server with a token may listen on other addresses."""
    assert load_config({"host": host}, {}).host == host
    if allowed:
        assert load_config({"host": host, "auth": False}, {}).auth is False
        return
    with pytest.raises(ConfigError, match="--no-auth works on loopback only"):
        load_config({"host": host}, {"POCKETSERVE_AUTH": "off"})


def test_settings_are_immutable() -> None:
    """Many threads read them."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().host = "0.0.0.0"  # type: ignore[misc]


def test_worker_threads_suffice_for_a_full_queue() -> None:
    """Health checks must still be answered, unless a number is given."""
    assert load_config({"queue_limit": "10"}, {}).worker_threads == 18
    assert (
        load_config({"queue_limit": "10", "http_threads": "3"}, {}).worker_threads == 3
    )


@pytest.mark.parametrize("shell", ["SHELL", "PREFIX", None])
@pytest.mark.parametrize("state_home", [None, "", " ", "/var/state", "relative"])
@pytest.mark.parametrize("android", [False, True])
def test_the_state_folder_is_that_of_platformdirs(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shell: str | None,
    state_home: str | None,
    android: bool,
) -> None:
    """On known systems it is computed without importing platformdirs."""
    for name in ("SHELL", "PREFIX", "XDG_STATE_HOME", "ANDROID_DATA", "ANDROID_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if shell is not None:
        monkeypatch.setenv(shell, "/some/where")
    if state_home is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state_home)
    if android:
        monkeypatch.setenv("ANDROID_DATA", "/data")
        monkeypatch.setenv("ANDROID_ROOT", "/system")
    assert default_state_dir() == platformdirs.user_state_path("pocketserve")
