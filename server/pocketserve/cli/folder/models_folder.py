"""The models folder of a command, and the hidden folder in it where a model waits until it is whole."""

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
PREFIX = ".pocketserve-add-"  # names with a dot in front are no models
REMOVED = ".pocketserve-removed-"
KEPT_S = 7 * 86_400  # a download that was cut is gone on with within a week
LOCK_WAIT_S = 1.0
SPARE_BYTES = 256 << 20  # left free on the disk: apps and the system write to it, too


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
        make: whether a folder that an option or setting names, and that is missing, is made.

    Raises:
        CommandError: none is named and none is served, or it holds the embedded models, or one model alone.
    """
    from pocketserve.repository.scan import locate

    folder = find_folder(models_dir)
    if models_dir is None and folder == embedded_models_dir():
        raise CommandError(f"no folder of yours is served; {NAME_FOLDER}")
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise CommandError(
            f"the models folder {folder} is no folder; name one with --models-dir FOLDER"
        )
    if locate(folder)[1] is not None:
        raise CommandError(
            f"{folder} is one model; name the folder that models lie in: --models-dir FOLDER"
        )
    return folder


def is_served(folder: Path) -> bool:
    """Return whether a server of this user serves the folder."""
    from pocketserve.state.run_lock import running_servers

    return any(
        run.models_dir == str(folder)
        for run in running_servers(load_config({}).state_dir)
    )


def read_models(folder: Path) -> Models:
    """Return the models of a folder; CommandError where it cannot be read."""
    from pocketserve.repository.scan import Models

    try:
        return Models(folder)
    except OSError as error:
        raise CommandError(
            f"the models folder {folder} cannot be read: {error.strerror}"
        ) from None


def find_model(folder: Path, name: str) -> ModelEntry:
    """Return a model whose files a command may move or remove.

    Raises:
        CommandError: there is none of this name, or a link leads out of the folder to it.
    """
    from pocketserve.messages import did_you_mean
    from pocketserve_wire.files.plain_file import lies_in

    models = read_models(folder)
    entry = models.get(name)
    if entry is None:
        path = (
            "; name the model, not a path"
            if "/" in name
            else did_you_mean(name, models.names)
        )
        raise CommandError(f"there is no model {name!r} in {folder}{path}")
    outside = [v.path for v in entry.versions.values() if not lies_in(v.path, folder)]
    if outside or not lies_in(entry.folder, folder):
        raise CommandError(
            f"{name} leads out of {folder} by a link, and what lies elsewhere is not touched; see ls -l"
        )
    return entry


def has_own_folder(entry: ModelEntry, folder: Path) -> bool:
    """Return whether a model lies in a folder of its own, and not as files in the models folder itself."""
    return entry.folder == folder / entry.name


def discard(folder: Path, paths: Sequence[Path]) -> None:
    """Delete files and folders of a model: first they leave it at once, by renames, for those who look meanwhile."""
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
    """Return a name that a new model of the folder may have.

    Args:
        way_out: how the command that asks gives another one.

    Raises:
        CommandError: it is taken, or cannot be a model's.
    """
    from pocketserve.repository.manifest import is_valid_name

    if not is_valid_name(name):
        rule = "it has no spaces, no / : \\ % ? #, no dot in front, 128 characters at most, and is not stats"
        raise CommandError(
            f"a model cannot be called {name[:128]!r}: {rule}; {way_out}"
        )
    models = read_models(folder)
    if os.path.lexists(folder / name) or name in models.names:
        raise CommandError(
            f"{folder} has a model {name!r} already; {way_out}, or `pocketserve remove {shlex.quote(name)}`"
        )
    return name


def check_room(folder: Path, size: int) -> None:
    """Refuse what the disk has no room for.

    Raises:
        CommandError: with both sizes.
    """
    if size > room(folder):
        raise CommandError(
            f"it takes {human_bytes(size)}, and there is room for {human_bytes(room(folder))} in {folder}; make room, "
            "or name another folder with --models-dir"
        )


def room(folder: Path) -> int:
    """Return how many bytes a folder's disk has room for."""
    return max(0, shutil.disk_usage(folder).free - SPARE_BYTES)


class Stage:
    """A hidden folder inside the models folder, on the same disk: a rename makes what is in it appear at once.

    Attributes:
        path: of the folder.
        models: a models folder in it, with the model that is to be.
        keep: whether it stays, since the same command may go on with it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = path / "models"
        self.keep = False

    def keep_parts(self) -> None:
        """Keep what was fetched, if anything was, for the same command to go on with."""
        self.keep = any(
            path.stat().st_size
            for path in self.path.rglob("*")
            if path.suffix != ".json" and path.is_file()
        )

    def publish(self, name: str, folder: Path) -> None:
        """Move a model into the models folder, where a running server finds it whole.

        Raises:
            CommandError: the name was taken meanwhile.
        """
        for path in [
            path for path in (self.models / name).rglob("*") if path.is_file()
        ]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        check_new_name(folder, name, GIVE_NAME)
        os.rename(
            self.models / name, folder / name
        )  # never onto a file, or a folder that holds anything


@contextlib.contextmanager
def staging(folder: Path, key: str) -> Iterator[Stage]:
    """Make a stage, or find the one of an earlier command again; it goes with the block unless it is to be kept.

    Args:
        key: hexadecimal digits, the same for the same source.

    Raises:
        CommandError: another command works on the same, or the folder cannot be written.
    """
    _sweep(folder)
    stage = Stage(folder / f"{PREFIX}{key}")
    stage.path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(
        stage.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    )
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        if (
            not acquire_lock(descriptor, deadline) and time.monotonic() >= deadline
        ):  # else there are no locks here
            raise CommandError("another command is adding the same; wait for its end")
        remove_tree(stage.models)
        try:
            stage.models.mkdir()
            yield stage
        finally:
            remove_tree(stage.models if stage.keep else stage.path)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what commands left that were killed, and downloads that nobody went on with."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{PREFIX}*"):
            if time.time() - path.stat().st_mtime > KEPT_S:
                remove_tree(path)
        for path in folder.glob(f"{REMOVED}*"):
            remove_tree(path)
