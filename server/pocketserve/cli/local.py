"""Using models without a server: the same service, in this process."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.cli import CommandError
from pocketserve.cli.output import printable
from pocketserve.config import Config, load_config

if TYPE_CHECKING:
    from pocketserve.service import Service

# Where no log is set up, Python prints warnings: a load that failed, which the command itself tells as its error.
logging.getLogger("pocketserve.engine.lifecycle.loader").addHandler(logging.NullHandler())


def is_model_path(text: str) -> bool:
    """Return whether a command's argument names a model file or folder on disk rather than a model of a server."""
    path = Path(text)
    if not text or not path.exists():
        return False
    from pocketserve.runtimes.registry import format_at  # late, as the service

    return path.is_dir() or format_at(path) is not None


def names_path(text: str) -> bool:
    """Return whether it can only be meant as a path: it is one of a model, or no model's name could look like it."""
    return "/" in text or is_model_path(text)


def open_local(model: str, models_dir: str | None, *, threads: int = 0) -> tuple[Service, str, str | None]:
    """A service for one model.

    Args:
        model: a path to a model file or folder, or the name of a model in ``models_dir``, which comes first where that
            folder is named.
        models_dir: a models folder; by default the embedded one.
        threads: threads of one inference; 0 takes the fast cores.

    Returns:
        The service, the model's name in it, and the version that the path names; None where it names no certain one.

    Raises:
        ConfigError, CommandError: the folder cannot be used, or the path is none of a model.
    """
    if not model or ("/" in model and not is_model_path(model)):
        what = "is no model file of a known kind" if Path(model).is_file() else "is no file or folder"
        raise CommandError(f"{model!r} {what}; name a model file, its folder, or a model of the models folder")

    if models_dir is not None and "/" not in model:  # whatever of that name lies in the working directory
        service = _service(models_dir, threads)
        if model in service.repository.models():
            return service, model, None
        service.close()
    if not is_model_path(model):
        return _service(models_dir, threads), model, None
    from pocketserve.runtimes.registry import format_at  # late, as the service

    path = Path(os.path.abspath(model))
    beside = _of_manifest(path, threads) if format_at(path) is not None else None  # a SavedModel is a folder, too
    if beside is not None:
        return beside
    if path.is_dir():
        service = _service(str(path.parent), threads)
        if path.name in service.repository.models():
            return service, path.name, None
        service.close()
        raise CommandError(_no_model(path, model))
    service = _service(str(path.parent), threads)
    found = _find(service, path)
    if found is None and path.name in service.repository.models().misnamed:
        service.close()
        raise CommandError(_misnamed(path.stem))
    return service, *(found or (path.stem, None))


def _of_manifest(path: Path, threads: int) -> tuple[Service, str, str | None] | None:
    """A file beside a manifest: what that says holds for the file. None where there is no manifest that knows it."""
    from pocketserve.repository.manifest import FILE_NAME  # late: --help needs no NumPy

    folder = path.parent
    if not (folder / FILE_NAME).is_file():
        return None
    try:
        service = _service(str(folder.parent), threads)
    except CommandError as error:  # as above Android's shared storage
        print(f"pocketserve: {printable(f'{path.name} is opened by itself: {error}')}", file=sys.stderr)
        return None
    found = _find(service, path, folder.name)
    entry = service.repository.models().get(folder.name)
    if found is not None:
        return service, *found
    if entry is not None and entry.problem is not None:
        return service, folder.name, None  # asking says what is wrong with the manifest
    service.close()
    why = f"{FILE_NAME} beside it does not list it" if entry is not None else f"no model can be called {folder.name!r}"
    print(f"pocketserve: {printable(f'{path.name} is opened by itself: {why}')}", file=sys.stderr)
    return None


def _find(service: Service, path: Path, model: str | None = None) -> tuple[str, str] | None:
    """The model and version that a file is; one model is looked at, or all."""
    models = service.repository.models()
    for name in models.names if model is None else (model,):
        entry = models.get(name)
        for version in entry.versions.values() if entry is not None else ():
            if version.path == path:
                return name, version.name
    return None


def _no_model(folder: Path, named: str) -> str:
    from pocketserve.repository.manifest import is_valid_name

    if not is_valid_name(folder.name):
        return _misnamed(folder.name)
    return f"there is no model in the folder {named!r}; with --models-dir it is a folder of models"


def _misnamed(name: str) -> str:
    return f"a model cannot be called {name!r}: its name has no spaces, no / : \\ % ? # and no dot in front; rename it"


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
