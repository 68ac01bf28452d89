"""Sources of models on this device or at an address: a file, a folder, a zip archive."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pocketserve.cli.folder.models_folder import (
    GIVE_NAME,
    Stage,
    check_new_name,
    check_room,
)
from pocketserve.state.folder_lock import remove_tree
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes
from pocketserve.terminal.progress import Progress

ZIP = ".zip"
MAX_LICENSE_BYTES, MAX_LICENSE = (
    1 << 20,
    100,
)  # of a file, and characters of the line that is noted
MAX_RATIO, FREE_BYTES = 200, 64 << 20
"""An archive unpacks to so many times its own size, and so many bytes more, at most. Weights pack by far less."""

MAX_FILE_NAME_BYTES = 200  # file systems take 255; an ending may be added
_JUNK = ("__MACOSX", "__pycache__")


class SeveralModels(CommandError):
    """A source in which one of several models may be meant; ``lines`` lists them."""

    def __init__(self, sentence: str, lines: Sequence[str]) -> None:
        super().__init__(sentence)
        self.lines = lines


class Wish(NamedTuple):
    """The wishes of a user for a model that is to be added."""

    source: str
    folder: Path
    name: str | None = None
    sha256: str | None = None

    def choose_name(self, proposal: str) -> str:
        """Return the model's name; CommandError where it cannot be had."""
        return check_new_name(self.folder, self.name or proposal, GIVE_NAME)

    def check_sha256(self, file: Path, progress: Progress) -> str:
        """Return a file's SHA-256; CommandError where it is not the one that is expected."""
        from pocketserve.repository.files import sha256_of

        with progress.waiting(f"checking {file.name}"):
            value = sha256_of(file)
        if self.sha256 not in (None, value):
            raise CommandError(
                f"{self.source}: its SHA-256 is {value}, and not {self.sha256}; nothing was added"
            )
        return value


class Obtained(NamedTuple):
    """A model in a stage."""

    name: str
    provenance: dict[str, str]
    license: str = ""


def take_path(wish: Wish, stage: Stage, progress: Progress) -> Obtained:
    """Put a copy of a file or folder, or what is in a zip archive, into a stage.

    Raises:
        CommandError: it is no model, too large, or has what must not be in one.
    """
    path = Path(wish.source)
    if path.is_dir():
        if wish.sha256 is not None:
            raise CommandError(
                "--sha256 is that of a file or archive, and a folder has none"
            )
        name = wish.choose_name(path.resolve().name)
        _copy_folder(path, stage.models / name, progress)
        return Obtained(
            name, {"source": path.resolve().name}, find_license(stage.models / name)
        )
    if not path.is_file():
        hint = (
            f"; did you mean hf:{wish.source}?"
            if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", wish.source)
            else ""
        )
        raise CommandError(
            f"{wish.source!r} is no file or folder, no https:// address and no hf:ORG/REPO{hint}"
        )
    check_room(wish.folder, path.stat().st_size)
    return take_file(path, path.name, path.name, wish, stage, progress, keep=True)


def take_address(wish: Wish, stage: Stage, progress: Progress) -> Obtained:
    """Fetch a file or zip archive into a stage.

    Raises:
        CommandError: it cannot be had, or is no model.
    """
    from pocketserve.cli.folder.download import (
        DownloadCut,
        Remote,
        check_address,
        download,
        shown_address,
    )

    def check(remote: Remote) -> None:
        check_room(wish.folder, remote.size or 0)
        wish.choose_name(_stem(plain_file_name(remote.name)))

    check_address(wish.source)
    target = stage.path / "download"
    try:
        remote = download(wish.source, target, progress, check)
    except (DownloadCut, KeyboardInterrupt):
        stage.keep_parts()
        raise
    return take_file(
        target, remote.name, shown_address(wish.source), wish, stage, progress
    )


def take_file(
    path: Path,
    file_name: str,
    source: str,
    wish: Wish,
    stage: Stage,
    progress: Progress,
    *,
    keep: bool = False,
) -> Obtained:
    """Make a model in a stage of a file or archive, which is called so, from a source.

    Args:
        keep: whether the file is the user's, and copied.
    """
    provenance = {"source": source, "sha256": wish.check_sha256(path, progress)}
    file_name = plain_file_name(file_name)
    name = wish.choose_name(_stem(file_name))
    home = stage.models / name
    if file_name.lower().endswith(ZIP):
        with progress.waiting(f"unpacking {file_name}"):
            _unpack(path, stage.path / "unpacked", wish.folder)
        os.rename(_model_in(stage.path / "unpacked"), home)
        return Obtained(name, provenance, find_license(home))
    home.mkdir()
    target = home / _with_suffix(path, file_name)
    if keep:
        with progress.waiting(f"copying {file_name}"):
            shutil.copyfile(path, target)
    else:
        os.replace(path, target)
    return Obtained(name, provenance)


def find_license(folder: Path) -> str:
    """Return the first line of a licence beside a model; empty where there is none."""
    from pocketserve_wire.files.plain_file import read_plain

    for path in sorted(folder.glob("LICEN[SC]E*")):
        try:
            lines = (
                read_plain(path, MAX_LICENSE_BYTES).decode(errors="replace").split("\n")
            )
        except OSError:
            continue
        if line := next((" ".join(line.split()) for line in lines if line.strip()), ""):
            return line[:MAX_LICENSE]
    return ""


def plain_file_name(name: str) -> str:
    """Return a name that every file system takes: no control characters, and not too long; its ending stays."""
    from pocketserve.repository.files import has_control_characters

    characters = []
    for character in name.encode(errors="replace").decode():
        characters.append("_" if has_control_characters(character) else character)
    name = "".join(characters)
    stem = _stem(name)
    ending = name[len(stem) :]
    while stem and len(f"{stem}{ending}".encode()) > MAX_FILE_NAME_BYTES:
        stem = stem[:-1]
    return f"{stem}{ending}"


def _stem(file_name: str) -> str:
    """Return a file's name without the ending that says what it is."""
    from pocketserve.runtimes.registry import SUFFIXES

    suffixes = sorted((ZIP, *SUFFIXES), key=len, reverse=True)
    end = next(
        (suffix for suffix in suffixes if file_name.lower().endswith(suffix)), ""
    )
    return file_name[: len(file_name) - len(end)] or file_name


def _with_suffix(path: Path, file_name: str) -> str:
    """Return a model file's name, with an ending of its kind.

    Raises:
        CommandError: neither the name nor the content is that of a model.
    """
    from pocketserve.repository.unsupported_files import advice
    from pocketserve.runtimes.model_files import failed_download
    from pocketserve.runtimes.registry import (
        SUFFIXES,
        content_of,
        format_named,
        format_of_name,
    )

    if (fault := failed_download(path)) is not None:
        raise CommandError(f"{file_name}: {fault.partition(' ')[2]}")
    if format_of_name(file_name) is not None:
        return file_name
    if (kind := format_named(content_of(path) or "")) is not None and kind.suffixes:
        return f"{file_name}{kind.suffixes[0]}"
    if (reason := advice(file_name)) is not None:
        raise CommandError(reason[1])
    raise CommandError(
        f"{file_name} is no model file of a known kind ({', '.join(SUFFIXES)})"
    )


def _copy_folder(source: Path, target: Path, progress: Progress) -> None:
    """Copy the files of a folder but hidden ones; CommandError for links, too many files, or no room."""
    from pocketserve.repository.files import files_below
    from pocketserve.runtimes.base import ModelLoadError

    try:
        files = [
            path
            for path in files_below(source)
            if not _is_junk(path.relative_to(source).parts)
        ]
    except ModelLoadError as error:
        raise CommandError(str(error)) from None
    sizes = [path.stat().st_size for path in files]
    check_room(target.parent, sum(sizes))
    target.mkdir()
    copied = 0
    for path, size in zip(files, sizes, strict=True):
        progress.show(
            f"copying {source.name} ({human_bytes(sum(sizes))})",
            copied / max(1, sum(sizes)),
        )
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copied += size


def _is_junk(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") or part in _JUNK for part in parts)


def _unpack(archive: Path, folder: Path, models_dir: Path) -> None:
    """Unpack a zip archive: regular files below the folder, of the sizes that its directory claims.

    Raises:
        CommandError: it is damaged, too large, or would write elsewhere.
    """
    from pocketserve.formats.zip_archives import (
        BadZipError,
        check_overlaps,
        member_pieces,
        members,
    )
    from pocketserve.repository.files import MAX_FILES, has_control_characters
    from pocketserve.repository.toml_table import is_contained_name

    try:
        entries, size = [], 0
        directory = list(members(archive, appended=True))
        check_overlaps(directory)
        for member in directory:
            if not is_contained_name(member.name):
                raise BadZipError(
                    f"{member.name[:80]!r} would be written outside of its folder"
                )
            if has_control_characters(member.name):
                raise BadZipError(
                    f"the name {ascii(member.name)[:80]} has control characters"
                )
            if member.name.endswith("/") or _is_junk(member.name.split("/")):
                continue
            if member.mode & 0o170000 == 0o120000:
                raise BadZipError(
                    f"{member.name[:80]!r} is a link; pack the file itself"
                )
            entries.append(member)
            size += member.size
            if len(entries) > MAX_FILES:
                raise BadZipError(f"it holds more than {MAX_FILES} files")
        check_room(models_dir, size)
        packed_size = archive.stat().st_size
        if size > MAX_RATIO * packed_size + FREE_BYTES:
            raise BadZipError(
                f"{human_bytes(packed_size)} would unpack to {human_bytes(size)}, which no model does"
            )
        remove_tree(folder)
        for member in entries:
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                for piece in member_pieces(archive, member):
                    file.write(piece)
    except BadZipError as error:
        raise CommandError(f"the archive cannot be unpacked: {error}") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise CommandError(
            "the archive cannot be unpacked: two of its files have one name"
        ) from None


def _model_in(folder: Path) -> Path:
    """Return the folder of the model in what was unpacked: archives often have a folder around everything."""
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.runtimes.registry import MARKERS

    while folder.is_dir():
        inner = sorted(folder.iterdir())
        if (
            len(inner) != 1
            or not inner[0].is_dir()
            or any((folder / name).exists() for name in (FILE_NAME, *MARKERS))
        ):
            return folder
        folder = inner[0]
    raise CommandError("the archive holds no files")


def hash_key(text: str) -> str:
    """Return what names the stage of a source."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
