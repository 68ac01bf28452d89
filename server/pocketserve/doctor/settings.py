"""The settings of a server here, as far as they can be read."""

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
    """The settings of a server here, or why there are none."""

    config: Config | None
    findings: tuple[Finding, ...]
    url: str | None = (
        None  # where the caller expects a server; None leaves it to the environment
    )


def read_settings(
    device: Device, models_dir: str | None = None, url: str | None = None
) -> Settings:
    """Return the settings that ``pocketserve serve`` would use; the defaults in place of wrong ones."""
    try:
        return Settings(*_read(device, models_dir), url)
    except Exception as error:  # the one library it needs was wiped by an upgrade of Python, or is broken
        fix = "pip install --force-reinstall platformdirs"
        return Settings(
            None, (problem(SUBJECT, f"the settings cannot be read: {error}", fix),), url
        )


def _read(device: Device, models_dir: str | None) -> tuple[Config, tuple[Finding, ...]]:
    from pocketserve.config import ConfigError, load_config

    unknown = _unknown(device)
    try:
        config = load_config({"models_dir": models_dir}, device.environ)
        if models_dir is None and (folder := _served_folder(config)):
            config = dataclasses.replace(config, models_dir=Path(folder))
        return config, (_state(config.state_dir), *unknown)
    except ConfigError as error:
        text = str(error)
        name = text.split(maxsplit=1)[0]
        variable = (
            name if name.startswith("POCKETSERVE_") else f"POCKETSERVE_{name.upper()}"
        )
        wrong = problem(SUBJECT, f"a setting is wrong: {text}", f"unset {variable}")
        return load_config({"models_dir": models_dir}, {}), (wrong, *unknown)


def _served_folder(config: Config) -> str:
    """Return the folder that a running server serves, the one at these ports first; empty where none runs."""
    folders = {
        config.http_port in run.ports: run.models_dir
        for run in running_servers(config.state_dir)
    }
    return folders.get(True) or folders.get(False) or ""


def _state(folder: Path) -> Finding:
    """Return whether the state folder can be made and written; the server does without it, and forgets."""
    existing = next(
        path
        for path in (folder.absolute(), *folder.absolute().parents)
        if os.path.exists(path)
    )
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return ok(SUBJECT, f"state is kept in {folder}")
    sentence = f"the state folder {folder} cannot be written: trials of model files and ends are not remembered"
    return warning(
        SUBJECT,
        sentence,
        f"chmod u+rwx {existing}, or export POCKETSERVE_STATE_DIR=FOLDER",
    )


def _unknown(device: Device) -> Iterator[Finding]:
    from pocketserve.config import unknown_variables

    for name, similar in unknown_variables(device.environ).items():
        fix = f"unset {name}" + (
            f"; perhaps {' or '.join(similar)} is meant" if similar else ""
        )
        yield warning(
            SUBJECT, f"the variable {name} is no setting and changes nothing", fix
        )
