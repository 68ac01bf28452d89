"""Using models without a server: the same service, in this process."""

from __future__ import annotations

import logging
from pathlib import Path

from pocketserve.config import Config, load_config
from pocketserve.runtimes.registry import kind_at
from pocketserve.service import Service

# Where no log is set up, Python prints warnings: a load that failed, which the command itself tells as its error.
logging.getLogger("pocketserve.engine.opening").addHandler(logging.NullHandler())


def is_model_path(text: str) -> bool:
    """Whether a command's argument names a model file or folder on disk rather than a model of a server."""
    path = Path(text)
    return path.exists() and (path.is_dir() or kind_at(path) is not None)


def open_local(model: str, models_dir: str | None, *, threads: int = 0) -> tuple[Service, str]:
    """A service for one model.

    Args:
        model: a path to a model file or folder, or the name of a model in ``models_dir``.
        models_dir: a models folder; by default the embedded one.
        threads: threads of one inference; 0 takes the fast cores.

    Returns:
        The service and the model's name in it.

    Raises:
        ConfigError, OSError: the folder cannot be used.
    """
    if not is_model_path(model):
        return Service(_config(models_dir, threads)), model
    path = Path(model).absolute()
    service = Service(_config(str(path.parent), threads))
    if path.is_dir():
        return service, path.name
    return service, next(
        (e.name for e in service.repository.models().values() if any(v.path == path for v in e.versions.values())),
        path.stem,
    )


def _config(models_dir: str | None, threads: int) -> Config:
    # What a command computes or measures on demand does not depend on the battery.
    given = {"models_dir": models_dir, "keep_alive": 0.0, "threads": threads, "low_power": "off"}
    return load_config(given)
