"""Finds the model that a path or a name means, and opens a service for it in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.config import load_config, variable_of

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.service import Service

log = logging.getLogger(__name__)


class ModelPathError(Exception):
    """No model is meant by a path or a name; the text is one sentence with the way out."""


def served_folder(models_dir: str | None) -> Path:
    """Return the models folder: the option's, else the setting's, else the one that a server of this user serves.

    Where none is named and none is served, it is the folder of the embedded models. They give way to another one.

    Raises:
        ModelPathError: several are served.
    """
    from pocketserve.state.run_lock import running_servers

    config = load_config({"models_dir": models_dir})
    folder = config.models_dir.absolute()
    if models_dir is not None or variable_of("models_dir") in os.environ:
        return folder
    served = {run.models_dir for run in running_servers(config.state_dir)} - {
        "",
        str(folder),
    }
    if len(served) > 1:
        raise ModelPathError("several folders are served")
    return Path(*served) if served else folder


def is_model_path(text: str) -> bool:
    """Return whether a command's argument names a model file or folder on disk rather than a model of a server."""
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
) -> tuple[Service, str, str | None]:
    """Return a service for one model, the model's name in it, and the version that a path names, None if not certain.

    Args:
        model: a path to a model file or folder, or a model's name in ``models_dir``, which comes first if it is named.
        models_dir: a models folder; by default the embedded one.
        threads: threads of one inference; 0 takes the fast cores.
        note: takes a sentence on a file that is opened without the manifest beside it.

    Raises:
        ConfigError, ModelPathError: the folder cannot be used, or the path is none of a model.
    """
    if not model or ("/" in model and not is_model_path(model)):
        fault = (
            "is no model file of a known kind"
            if Path(model).is_file()
            else "is no file or folder"
        )
        raise ModelPathError(
            f"{model!r} {fault}; name a model file, its folder, or a model of the models folder"
        )
    by_name = not is_model_path(model)
    if by_name or (
        models_dir is not None and "/" not in model
    ):  # whatever of that name lies in the working directory
        service = _service(str(served_folder(models_dir)), threads)
        if model in service.repository.models():
            return service, model, None
        service.close()
        if by_name:
            fault = f"there is no model {model!r} in {service.config.models_dir}"
            raise ModelPathError(f"{fault}; {service.repository.way_out(model)}")
    from pocketserve.runtimes.registry import format_at  # late, as the service

    path = Path(os.path.abspath(model))
    beside = (
        _of_manifest(path, threads, note) if format_at(path) is not None else None
    )  # a SavedModel is a folder, too
    if beside is not None:
        return beside
    is_beside_manifest = (
        path.parent / "model.toml"
    ).is_file()  # the folder is that model's, not one of models
    service = _service(str(path if is_beside_manifest else path.parent), threads)
    models = service.repository.models()
    if path.is_dir():
        if path.name in models:
            return service, path.name, _version_at(models[path.name], path)
    elif (names := _find(service, path, models.names)) is not None:
        return service, *names
    elif path.name not in models.misnamed and (
        (other := models.get(path.stem)) is None or not other.versions
    ):
        return service, path.stem, None  # a request says why it is no model
    service.close()
    raise ModelPathError(_no_model(path, model))


def _of_manifest(
    path: Path, threads: int, note: Callable[[str], None]
) -> tuple[Service, str, str | None] | None:
    """Open a file beside a manifest, which holds for the file; None where there is no manifest that lists it."""
    from pocketserve.repository.manifest import FILE_NAME  # late: --help needs no NumPy

    folder = path.parent
    if not (folder / FILE_NAME).is_file():
        return None
    try:
        service = _service(str(folder.parent), threads)
    except ModelPathError as error:  # as above Android's shared storage
        fault = str(error)
    else:
        if (names := _find(service, path, (folder.name,))) is not None:
            return service, *names
        entry = service.repository.models().get(folder.name)
        if entry is not None and entry.problem is not None:
            return (
                service,
                folder.name,
                None,
            )  # a request says what is wrong with the manifest
        service.close()
        fault = (
            f"{FILE_NAME} beside it does not list it"
            if entry
            else f"no model can be called {folder.name!r}"
        )
    note(f"{path.name} is opened by itself: {fault}")
    return None


def _find(service: Service, path: Path, names: Sequence[str]) -> tuple[str, str] | None:
    """Return the model, of those of these names, and the version that a file is."""
    for name in names:
        entry = service.repository.models().get(name)
        for version in entry.versions.values() if entry is not None else ():
            if version.path == path:
                return name, version.name
    return None


def _version_at(entry: ModelEntry, path: Path) -> str | None:
    """Return the version that a folder is, such as a SavedModel; None for a folder that versions lie in."""
    for version in entry.versions.values():
        if version.path == path:
            return version.name
    return None


def _no_model(path: Path, model: str) -> str:
    from pocketserve.repository.manifest import is_valid_name

    if path.is_dir() and is_valid_name(path.name):
        return f"there is no model in the folder {model!r}; with --models-dir it is a folder of models"
    name = path.name if path.is_dir() else path.stem
    if is_valid_name(path.name) and is_valid_name(name):
        return f"{model!r} lies beside a folder {name!r}, which is the model of that name; rename the file"
    return f"a model cannot be called {name!r}: its name has no spaces, no / : \\ % ? # and no dot in front; rename it"


def _service(models_dir: str, threads: int) -> Service:
    from pocketserve.service import Service  # late: most commands ask a server

    # What a command computes or measures on demand does not depend on the battery.
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
