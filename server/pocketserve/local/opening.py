"""Open a service in this process for a model, by path or name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.config import load_config, variable_of

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.service import Service

log = logging.getLogger(__name__)


class ModelPathError(Exception):
    """No model has this path or name."""


class OpenedModel(NamedTuple):
    """A service for one model.

    Attributes:
        version: the version at the opened path; None for the default one.
    """

    service: Service
    name: str
    version: str | None


def served_folder(models_dir: str | None) -> Path:
    """Return the models folder for a command.

    It is the option's, else the setting's, else the one that a running server of this
    user serves, else the folder of the embedded models.

    Raises:
        ModelPathError: running servers serve several other folders.
    """
    from pocketserve.state.run_lock import running_servers

    config = load_config({"models_dir": models_dir})
    folder = config.models_dir.absolute()
    if models_dir is not None or variable_of("models_dir") in os.environ:
        return folder
    served = {run.models_dir for run in running_servers(config.state_dir)}
    served -= {"", str(folder)}
    if len(served) > 1:
        raise ModelPathError("several folders are served")
    return Path(*served) if served else folder


def is_model_path(text: str) -> bool:
    """Return whether a text is a model's or folder's path."""
    path = Path(text)
    if not text or not path.exists():
        return False
    from pocketserve.runtimes.registry import format_at  # late, as the service

    return path.is_dir() or format_at(path) is not None


def open_model(
    model: str,
    models_dir: str | None,
    *,
    threads: int = 0,
    note: Callable[[str], None] = log.warning,
) -> OpenedModel:
    """Open a service for one model.

    Args:
        model: a path to a model file or folder, or the name of a model in ``models_dir``.
            With ``models_dir``, a name takes precedence over a path.
        models_dir: a models folder; see :func:`served_folder` for the default.
        threads: threads of one inference; 0 uses the fast cores.
        note: called with a sentence if a file is opened without the manifest beside it.

    Raises:
        ConfigError, ModelPathError: the folder cannot be used, or there is no model.
    """
    is_path = is_model_path(model)
    if not model or ("/" in model and not is_path):
        fault = "is not a file or folder"
        if Path(model).is_file():
            fault = "is not a model file of a known kind"
        raise ModelPathError(
            f"{model!r} {fault}; name a model file, its folder, or a model of the models "
            "folder"
        )
    if not is_path or (models_dir is not None and "/" not in model):
        opened = _open_name(model, models_dir, threads, is_required=not is_path)
        if opened is not None:
            return opened
    return _open_path(model, threads, note)


def _open_name(
    name: str, models_dir: str | None, threads: int, *, is_required: bool
) -> OpenedModel | None:
    """Open a model of the models folder; return None if there is none."""
    service = _service(str(served_folder(models_dir)), threads)
    if name in service.repository.models():
        return OpenedModel(service, name, None)
    service.close()
    if is_required:
        fault = f"there is no model {name!r} in {service.config.models_dir}"
        raise ModelPathError(f"{fault}; {service.repository.way_out(name)}")
    return None


def _open_path(model: str, threads: int, note: Callable[[str], None]) -> OpenedModel:
    from pocketserve.runtimes.registry import format_at  # late, like the service

    path = Path(os.path.abspath(model))
    if format_at(path) is not None:  # a file, or a folder such as a SavedModel
        opened = _open_listed(path, threads, note)
        if opened is not None:
            return opened
    # A folder with a manifest is a model, not a folder of models.
    is_beside_manifest = (path.parent / "model.toml").is_file()
    service = _service(str(path if is_beside_manifest else path.parent), threads)
    opened = _open_folder(service, path) if path.is_dir() else _open_file(service, path)
    if opened is None:
        service.close()
        raise ModelPathError(_no_model(path, model))
    return opened


def _open_folder(service: Service, path: Path) -> OpenedModel | None:
    entry = service.repository.models().get(path.name)
    if entry is None:
        return None
    return OpenedModel(service, path.name, _version_at(entry, path))


def _open_file(service: Service, path: Path) -> OpenedModel | None:
    models = service.repository.models()
    opened = _find(service, path, models.names)
    if opened is not None:
        return opened
    same_name = models.get(path.stem)
    is_free = same_name is None or not same_name.versions
    if path.name in models.misnamed or not is_free:
        return None
    return OpenedModel(service, path.stem, None)  # a request reports the fault


def _open_listed(
    path: Path, threads: int, note: Callable[[str], None]
) -> OpenedModel | None:
    """Open a file by the manifest beside it, if that lists the file."""
    from pocketserve.repository.manifest import FILE_NAME  # late: --help needs no NumPy

    folder = path.parent
    if not (folder / FILE_NAME).is_file():
        return None
    try:
        service = _service(str(folder.parent), threads)
    except ModelPathError as error:  # an unreadable parent, as on Android
        note(f"{path.name} is opened by itself: {error}")
        return None
    opened = _find(service, path, (folder.name,))
    if opened is not None:
        return opened
    entry = service.repository.models().get(folder.name)
    if entry is not None and entry.problem is not None:
        # A request reports the manifest's fault.
        return OpenedModel(service, folder.name, None)
    service.close()
    fault = f"no model can be called {folder.name!r}"
    if entry:
        fault = f"{FILE_NAME} beside it does not list it"
    note(f"{path.name} is opened by itself: {fault}")
    return None


def _find(service: Service, path: Path, names: Sequence[str]) -> OpenedModel | None:
    """Return the model and version of a file, among the named models."""
    models = service.repository.models()
    for name in names:
        entry = models.get(name)
        if entry is None:
            continue
        version = _version_at(entry, path)
        if version is not None:
            return OpenedModel(service, name, version)
    return None


def _version_at(entry: ModelEntry, path: Path) -> str | None:
    """Return the version whose file or folder this is, or None."""
    for version in entry.versions.values():
        if version.path == path:
            return version.name
    return None


def _no_model(path: Path, model: str) -> str:
    from pocketserve.repository.manifest import is_valid_name

    if path.is_dir() and is_valid_name(path.name):
        return (
            f"there is no model in the folder {model!r}; with --models-dir it is a folder "
            "of models"
        )
    name = path.name if path.is_dir() else path.stem
    if is_valid_name(path.name) and is_valid_name(name):
        return (
            f"{model!r} is beside a folder {name!r}, which is the model of that name; "
            "rename the file"
        )
    return (
        f"a model cannot be called {name!r}: its name has no spaces, no / : \\ % ? # and "
        "no dot in front; rename it"
    )


def _service(models_dir: str, threads: int) -> Service:
    from pocketserve.service import Service  # late: most commands ask a server

    # Commands run at full speed, whatever the battery's state.
    config = load_config(
        {
            "models_dir": models_dir,
            "keep_alive": 0.0,
            "threads": threads,
            "low_power": "off",
        }
    )
    try:
        return Service(config)
    except OSError as error:
        raise ModelPathError(
            f"the models folder {config.models_dir} cannot be read: {error.strerror}"
        ) from None
