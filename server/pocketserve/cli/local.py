"""Using models without a server: the same service, in this process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.cli import CommandError
from pocketserve.config import Config, load_config

if TYPE_CHECKING:
    from pocketserve.service import Service

# Where no log is set up, Python prints warnings: a load that failed, which the command itself tells as its error.
logging.getLogger("pocketserve.engine.opening").addHandler(logging.NullHandler())


def is_model_path(text: str) -> bool:
    """Whether a command's argument names a model file or folder on disk rather than a model of a server."""
    path = Path(text)
    if not text or not path.exists():
        return False
    from pocketserve.runtimes.registry import kind_at  # late, as the service

    return path.is_dir() or kind_at(path) is not None


def names_path(text: str) -> bool:
    """Whether it can only be meant as a path: it is one of a model, or no model's name could look like it."""
    return "/" in text or is_model_path(text)


def open_local(model: str, models_dir: str | None, *, threads: int = 0) -> tuple[Service, str]:
    """A service for one model.

    Args:
        model: a path to a model file or folder, or the name of a model in ``models_dir``.
        models_dir: a models folder; by default the embedded one.
        threads: threads of one inference; 0 takes the fast cores.

    Returns:
        The service and the model's name in it.

    Raises:
        ConfigError, CommandError: the folder cannot be used, or the path is none of a model.
    """
    if not model or ("/" in model and not is_model_path(model)):
        what = "is no model file of a known kind" if Path(model).is_file() else "is no file or folder"
        raise CommandError(f"{model!r} {what}; name a model file, its folder, or a model of the models folder")

    if not is_model_path(model):
        return _service(models_dir, threads), model
    path = Path(model).absolute()
    service = _service(str(path.parent), threads)
    if path.is_dir() and path.name not in service.repository.models():
        raise CommandError(f"there is no model in the folder {model!r}; with --models-dir it is a folder of models")
    if path.is_dir():
        return service, path.name
    return service, next(
        (e.name for e in service.repository.models().values() if any(v.path == path for v in e.versions.values())),
        path.stem,
    )


def _service(models_dir: str | None, threads: int) -> Service:
    from pocketserve.service import Service  # late: most commands ask a server

    config = _config(models_dir, threads)
    try:
        return Service(config)
    except OSError as error:
        raise CommandError(f"the models folder {config.models_dir} cannot be read: {error.strerror}") from None


def _config(models_dir: str | None, threads: int) -> Config:
    # What a command computes or measures on demand does not depend on the battery.
    given = {"models_dir": models_dir, "keep_alive": 0.0, "threads": threads, "low_power": "off"}
    return load_config(given)
