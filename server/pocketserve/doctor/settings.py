"""Read the settings of a server on this device."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.state.run_lock import running_servers

if TYPE_CHECKING:
    from pocketserve.config import Config

SUBJECT = "settings"


class Settings(NamedTuple):
    """The settings of a server, or the reasons why they are missing.

    Attributes:
        url: the expected address of a server; None means the environment's.
    """

    config: Config | None
    findings: tuple[Finding, ...]
    url: str | None = None


def read_settings(
    device: Device, models_dir: str | None = None, url: str | None = None
) -> Settings:
    """Return the settings that ``pocketserve serve`` would use."""
    try:
        return Settings(*_read(device, models_dir), url)
    except Exception as error:  # platformdirs is missing or broken
        fix = "pip install --force-reinstall platformdirs"
        finding = problem(SUBJECT, f"the settings cannot be read: {error}", fix)
        return Settings(None, (finding,), url)


def _read(device: Device, models_dir: str | None) -> tuple[Config, tuple[Finding, ...]]:
    from pocketserve.config import ConfigError, load_config

    unknown = _unknown(device)
    overrides = {"models_dir": models_dir}
    try:
        config = load_config(overrides, device.environ)
        folder = ""
        if models_dir is None:
            folder = _served_folder(config)
        if folder:
            config = dataclasses.replace(config, models_dir=Path(folder))
        return config, (_state(config.state_dir), *unknown)
    except ConfigError as error:
        wrong = _wrong_setting(str(error))
        return load_config(overrides, {}), (wrong, *unknown)


def _wrong_setting(message: str) -> Finding:
    """Return the finding for a ConfigError, which begins with the setting's name."""
    name = message.split(maxsplit=1)[0]
    if not name.startswith("POCKETSERVE_"):
        name = f"POCKETSERVE_{name.upper()}"
    return problem(SUBJECT, f"a setting is wrong: {message}", f"unset {name}")


def _served_folder(config: Config) -> str:
    """Return the folder of a running server, or ""."""
    at_port = elsewhere = ""
    for run in running_servers(config.state_dir):
        if config.http_port in run.ports:
            at_port = run.models_dir
        else:
            elsewhere = run.models_dir
    return at_port or elsewhere


def _state(folder: Path) -> Finding:
    """Check that the state folder can be created and written.

    Without it the server runs, but stores nothing.
    """
    existing = folder.absolute()
    while not os.path.exists(existing):
        existing = existing.parent
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return ok(SUBJECT, f"state is kept in {folder}")
    sentence = (
        f"the state folder {folder} cannot be written: verdicts on model files and "
        "kills are not recorded"
    )
    return warning(
        SUBJECT,
        sentence,
        f"chmod u+rwx {existing}, or export POCKETSERVE_STATE_DIR=FOLDER",
    )


def _unknown(device: Device) -> Iterator[Finding]:
    from pocketserve.config import unknown_variables

    for name, similar in unknown_variables(device.environ).items():
        fix = f"unset {name}"
        if similar:
            fix += f"; perhaps {' or '.join(similar)} is meant"
        yield warning(
            SUBJECT, f"the variable {name} is not a setting and changes nothing", fix
        )
