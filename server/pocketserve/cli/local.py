"""Models without a server: the same service, in this process."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pocketserve.cli import CommandError
from pocketserve.cli.folder.models_folder import find_folder
from pocketserve.cli.output import error_stream, printable
from pocketserve.config import load_config

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry
    from pocketserve.service import Service

# Where no log is set up, Python prints warnings: a load that failed, which the command itself tells as its error.
logging.getLogger("pocketserve.engine.lifecycle.loader").addHandler(logging.NullHandler())


@contextlib.contextmanager
def quiet_frameworks(options: argparse.Namespace) -> Iterator[None]:
    """Keep what frameworks themselves write to standard error away from it, unless ``--debug`` is given.

    TensorFlow Lite tells of its delegate with each model. They write to the descriptor; what Python writes arrives.
    """
    if options.debug or sys.stderr is None:
        yield
        return
    with ExitStack() as stack:
        descriptor = os.dup(2)
        own = stack.enter_context(open(descriptor, "w", buffering=1, errors="backslashreplace"))
        nowhere = stack.enter_context(open(os.devnull, "w"))
        if _writes_to_descriptor(sys.stderr):
            sys.stderr.flush()
            stack.enter_context(contextlib.redirect_stderr(error_stream(own)))
        stack.callback(os.dup2, descriptor, 2)
        os.dup2(nowhere.fileno(), 2)
        yield


def _writes_to_descriptor(stream: TextIO) -> bool:
    """Return whether a stream is the process's standard error itself, and not a text that is collected."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def is_model_path(text: str) -> bool:
    """Return whether a command's argument names a model file or folder on disk rather than a model of a server."""
    path = Path(text)
    if not text or not path.exists():
        return False
    from pocketserve.runtimes.registry import format_at  # late, as the service

    return path.is_dir() or format_at(path) is not None


def names_path(text: str) -> bool:
    """Return whether it can only be a path: it is one of a model, or no model's name could look like it."""
    return "/" in text or is_model_path(text)


def open_local(model: str, models_dir: str | None, *, threads: int = 0) -> tuple[Service, str, str | None]:
    """Return a service for one model, the model's name in it, and the version that a path names, None if not certain.

    ConfigError or CommandError: the folder cannot be used, or the path is none of a model.

    Args:
        model: a path to a model file or folder, or a model's name in ``models_dir``, which comes first if it is named.
        models_dir: a models folder; by default the embedded one.
        threads: threads of one inference; 0 takes the fast cores.
    """
    if not model or ("/" in model and not is_model_path(model)):
        fault = "is no model file of a known kind" if Path(model).is_file() else "is no file or folder"
        raise CommandError(f"{model!r} {fault}; name a model file, its folder, or a model of the models folder")
    by_name = not is_model_path(model)
    if by_name or (models_dir is not None and "/" not in model):  # whatever of that name lies in the working directory
        service = _service(str(find_folder(models_dir)), threads)
        if model in service.repository.models():
            return service, model, None
        service.close()
        if by_name:
            fault = f"there is no model {model!r} in {service.config.models_dir}"
            raise CommandError(f"{fault}; {service.repository.way_out(model)}")
    from pocketserve.runtimes.registry import format_at  # late, as the service

    path = Path(os.path.abspath(model))
    beside = _of_manifest(path, threads) if format_at(path) is not None else None  # a SavedModel is a folder, too
    if beside is not None:
        return beside
    is_beside_manifest = (path.parent / "model.toml").is_file()  # the folder is that model's, not one of models
    service = _service(str(path if is_beside_manifest else path.parent), threads)
    models = service.repository.models()
    if path.is_dir():
        if path.name in models:
            return service, path.name, _version_at(models[path.name], path)
    elif (names := _find(service, path, models.names)) is not None:
        return service, *names
    elif path.name not in models.misnamed and ((other := models.get(path.stem)) is None or not other.versions):
        return service, path.stem, None  # a request says why it is no model
    service.close()
    raise CommandError(_no_model(path, model))


def _of_manifest(path: Path, threads: int) -> tuple[Service, str, str | None] | None:
    """Open a file beside a manifest, which holds for the file; None where there is no manifest that lists it."""
    from pocketserve.repository.manifest import FILE_NAME  # late: --help needs no NumPy

    folder = path.parent
    if not (folder / FILE_NAME).is_file():
        return None
    try:
        service = _service(str(folder.parent), threads)
    except CommandError as error:  # as above Android's shared storage
        fault = str(error)
    else:
        if (names := _find(service, path, (folder.name,))) is not None:
            return service, *names
        entry = service.repository.models().get(folder.name)
        if entry is not None and entry.problem is not None:
            return service, folder.name, None  # a request says what is wrong with the manifest
        service.close()
        fault = f"{FILE_NAME} beside it does not list it" if entry else f"no model can be called {folder.name!r}"
    print(f"pocketserve: {printable(f'{path.name} is opened by itself: {fault}')}", file=sys.stderr)
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
    config = load_config({"models_dir": models_dir, "keep_alive": 0.0, "threads": threads, "low_power": "off"})
    try:
        return Service(config)
    except OSError as error:
        raise CommandError(f"the models folder {config.models_dir} cannot be read: {error.strerror}") from None
