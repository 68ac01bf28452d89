"""The models folder, and a hidden one for incomplete models."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.config import embedded_models_dir, load_config
from pocketserve.local.opening import ModelPathError, served_folder
from pocketserve.state.folder_lock import acquire_lock, remove_tree
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry, Models

NAME_FOLDER = "name the models folder: --models-dir FOLDER"
GIVE_NAME = "give it another one by --name NAME"
PREFIX = ".pocketserve-add-"  # hidden folders are no models
REMOVED = ".pocketserve-removed-"
KEPT_S = 7 * 86_400  # partial downloads are kept
LOCK_WAIT_S = 1.0
SPARE_BYTES = 256 << 20  # left free on the disk for apps and the system


def find_folder(models_dir: str | None) -> Path:
    """Return the models folder, see :func:`~pocketserve.local.opening.served_folder`.

    Raises:
        CommandError: several are served.
    """
    try:
        return served_folder(models_dir)
    except ModelPathError as error:
        raise CommandError(f"{error}; {NAME_FOLDER}") from None


def choose_folder(models_dir: str | None, *, make: bool = False) -> Path:
    """Return the models folder that a command changes, see :func:`find_folder`.

    Args:
        make: whether to create a missing folder.

    Raises:
        CommandError: none is named or served, or it has the embedded models or only
            one model.
    """
    from pocketserve.repository.scan import locate

    folder = find_folder(models_dir)
    if models_dir is None and folder == embedded_models_dir():
        raise CommandError(f"no folder of yours is served; {NAME_FOLDER}")
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise CommandError(
            f"the models folder {folder} is not a folder; "
            "name one with --models-dir FOLDER"
        )
    if locate(folder)[1] is not None:
        raise CommandError(
            f"{folder} is one model; "
            "name the folder that contains models: --models-dir FOLDER"
        )
    return folder


def is_served(folder: Path) -> bool:
    """Return whether a server of this user serves the folder."""
    from pocketserve.state.run_lock import running_servers

    runs = running_servers(load_config({}).state_dir)
    return any(run.models_dir == str(folder) for run in runs)


def read_models(folder: Path) -> Models:
    """Return the models of a folder; CommandError if it can't be read."""
    from pocketserve.repository.scan import Models

    try:
        return Models(folder)
    except OSError as error:
        raise CommandError(
            f"the models folder {folder} cannot be read: {error.strerror}"
        ) from None


def find_model(folder: Path, name: str) -> ModelEntry:
    """Return a model whose files may be moved or removed.

    Raises:
        CommandError: there is no such model, or a link leads out of the folder.
    """
    from pocketserve.messages import did_you_mean
    from pocketserve_wire.files.plain_file import lies_in

    models = read_models(folder)
    entry = models.get(name)
    if entry is None:
        hint = did_you_mean(name, models.names)
        if "/" in name:
            hint = "; name the model, not a path"
        raise CommandError(f"there is no model {name!r} in {folder}{hint}")
    for path in (entry.folder, *(version.path for version in entry.versions.values())):
        if not lies_in(path, folder):
            raise CommandError(
                f"{name} leads out of {folder} by a link, "
                "and files elsewhere are not touched; see ls -l"
            )
    return entry


def has_own_folder(entry: ModelEntry, folder: Path) -> bool:
    """Return whether a model has a folder of its own."""
    return entry.folder == folder / entry.name


def discard(folder: Path, paths: Sequence[Path]) -> None:
    """Delete files and folders of a model.

    They are renamed first, so that a server sees them disappear at once.
    """
    bin_folder = folder / f"{REMOVED}{os.urandom(8).hex()}"
    bin_folder.mkdir(mode=0o700)
    try:
        for number, path in enumerate(paths):
            os.rename(path, bin_folder / str(number))
            for parent in path.parents:
                if parent == folder or any(parent.iterdir()):
                    break
                parent.rmdir()
    finally:
        remove_tree(bin_folder)


def check_new_name(folder: Path, name: str, way_out: str = "take another name") -> str:
    """Check and return a new model's name.

    Args:
        way_out: how to choose another one.

    Raises:
        CommandError: it is taken or invalid.
    """
    from pocketserve.repository.manifest import is_valid_name

    if not is_valid_name(name):
        raise CommandError(
            f"a model cannot be called {name[:128]!r}: it has no spaces, "
            "no / : \\ % ? #, no dot in front, 128 characters at most, "
            f"and is not stats; {way_out}"
        )
    models = read_models(folder)
    if os.path.lexists(folder / name) or name in models.names:
        raise CommandError(
            f"{folder} has a model {name!r} already; {way_out}, "
            f"or `pocketserve remove {shlex.quote(name)}`"
        )
    return name


def check_room(folder: Path, size: int) -> None:
    """Check that the disk has room.

    Raises:
        CommandError: with both sizes.
    """
    available = room(folder)
    if size > available:
        raise CommandError(
            f"it takes {human_bytes(size)}, and there is room for "
            f"{human_bytes(available)} in {folder}; make room, "
            "or name another folder with --models-dir"
        )


def room(folder: Path) -> int:
    """Return the bytes available to models on a folder's disk."""
    return max(0, shutil.disk_usage(folder).free - SPARE_BYTES)


class Stage:
    """A hidden folder from which a model is published.

    It is on the same disk, so a rename publishes the complete model at once.

    Attributes:
        path: of the folder.
        models: a models folder in it, with the new model.
        keep: whether to keep it for the same command to resume.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = path / "models"
        self.keep = False

    def keep_parts(self) -> None:
        """Keep partial downloads, if there are any, for the same command."""
        for path in self.path.rglob("*"):
            is_part = path.suffix != ".json" and path.is_file()
            if is_part and path.stat().st_size:
                self.keep = True
                return
        self.keep = False

    def publish(self, name: str, folder: Path) -> None:
        """Move a complete model into the models folder.

        Raises:
            CommandError: the name has been taken meanwhile.
        """
        source = self.models / name
        for path in source.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        check_new_name(folder, name, GIVE_NAME)
        # This fails if a file or a non-empty folder has that name.
        os.rename(source, folder / name)


@contextlib.contextmanager
def staging(folder: Path, key: str) -> Iterator[Stage]:
    """Create or reuse a stage, and remove it unless kept.

    Args:
        key: hexadecimal digits, the same for the same source.

    Raises:
        CommandError: another command adds the same source.
    """
    _sweep(folder)
    stage = Stage(folder / f"{PREFIX}{key}")
    stage.path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(
        stage.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    )
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        is_locked = acquire_lock(descriptor, deadline)
        # Before the deadline, a failure means that the file system has no locks.
        if not is_locked and time.monotonic() >= deadline:
            raise CommandError(
                "another command is adding the same model; wait until it ends"
            )
        remove_tree(stage.models)
        try:
            stage.models.mkdir()
            yield stage
        finally:
            remove_tree(stage.models if stage.keep else stage.path)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove leftovers of killed commands, and old partial downloads."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{PREFIX}*"):
            if time.time() - path.stat().st_mtime > KEPT_S:
                remove_tree(path)
        for path in folder.glob(f"{REMOVED}*"):
            remove_tree(path)
