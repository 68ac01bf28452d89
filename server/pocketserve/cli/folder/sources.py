"""Sources of models: files, folders, archives and addresses."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.cli.folder.models_folder import (
    GIVE_NAME,
    Stage,
    check_new_name,
    check_room,
)
from pocketserve.formats.gguf_parts import SUFFIX, first_part, part_of
from pocketserve.formats.gguf_split import is_split, parts_beside
from pocketserve.state.folder_lock import remove_tree
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve.formats.zip_archives import Member as ZipMember

ZIP = ".zip"
MAX_LICENSE_BYTES = 1 << 20
MAX_LICENSE = 100  # characters of the recorded line

MAX_RATIO = 200
FREE_BYTES = 64 << 20
"""An archive may unpack to ``MAX_RATIO`` times its size plus ``FREE_BYTES``.

Weights compress by far less.
"""

MAX_FILE_NAME_BYTES = 200  # file systems take 255; a suffix may be added
_JUNK = ("__MACOSX", "__pycache__")
_TYPE_BITS, _LINK = 0o170000, 0o120000  # of a member's mode


class SeveralModelsError(CommandError):
    """A source with several models, which ``lines`` lists."""

    def __init__(self, sentence: str, lines: Sequence[str]) -> None:
        super().__init__(sentence)
        self.lines = lines


class AddRequest(NamedTuple):
    """The options of a user who adds a model."""

    source: str
    folder: Path
    name: str | None = None
    sha256: str | None = None

    def choose_name(self, proposal: str) -> str:
        """Return the model's name; CommandError if it is invalid or taken."""
        return check_new_name(self.folder, self.name or proposal, GIVE_NAME)

    def check_sha256(self, file: Path, progress: Progress) -> str:
        """Return a file's SHA-256; CommandError if another one is expected."""
        from pocketserve.repository.files import sha256_of

        with progress.waiting(f"checking {file.name}"):
            value = sha256_of(file)
        if self.sha256 not in (None, value):
            raise CommandError(
                f"{self.source}: its SHA-256 is {value}, and not {self.sha256}; "
                "nothing was added"
            )
        return value


class FetchedModel(NamedTuple):
    """A model in a stage."""

    name: str
    provenance: dict[str, str]
    license: str = ""


FetchModel = Callable[[AddRequest, Stage, Progress], FetchedModel]


def take_path(request: AddRequest, stage: Stage, progress: Progress) -> FetchedModel:
    """Copy a file, folder or archive into a stage.

    Raises:
        CommandError: it is not a model, too large, or contains forbidden files.
    """
    path = Path(request.source)
    if path.is_dir():
        if request.sha256 is not None:
            raise CommandError(
                "--sha256 is that of a file or archive, and a folder has none"
            )
        source = path.resolve().name
        name = request.choose_name(source)
        home = stage.models / name
        _copy_folder(path, home, progress)
        return FetchedModel(name, {"source": source}, find_license(home))
    if not path.is_file():
        hint = ""
        if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", request.source):
            hint = f"; did you mean hf:{request.source}?"
        raise CommandError(
            f"{request.source!r} is not a file or folder, "
            f"no https:// address and no hf:ORG/REPO{hint}"
        )
    later = _later_parts(path)
    parts = [path, *later]
    check_room(request.folder, sum(part.stat().st_size for part in parts))
    file = _SourceFile(path, path.name, path.name, keep=True)
    model = _take_file(file, request, stage, progress)
    for part in later:
        with progress.waiting(f"copying {part.name}"):
            shutil.copyfile(part, stage.models / model.name / part.name)
    return model


def _later_parts(path: Path) -> list[Path]:
    """Return the later parts of a GGUF model beside its first part.

    Raises:
        CommandError: this is a later part, or one is missing.
    """
    first = first_part(path.name)
    if first is not None and is_split(path):
        raise CommandError(
            f"{path.name} is a later part of a model; add the first one, {first}, with"
            " the others beside it"
        )
    parts = [path.with_name(name) for name in parts_beside(path)]
    for part in parts:
        if not part.is_file():
            raise CommandError(
                f"{path.name} is the first part of a model, but {part.name} is not"
                " beside it; copy it there"
            )
    return parts


def take_address(request: AddRequest, stage: Stage, progress: Progress) -> FetchedModel:
    """Fetch a file or zip archive into a stage.

    Raises:
        CommandError: it can't be fetched, or is not a model.
    """
    from pocketserve.cli.folder.download import (
        Download,
        DownloadCut,
        Remote,
        check_address,
        download,
        shown_address,
    )

    def check(remote: Remote) -> None:
        if part_of(remote.name) is not None:
            raise CommandError(
                f"{remote.name} is a part of a model: download all parts into one"
                " folder, and add the first one; from the Hugging Face hub, hf:ORG/REPO"
                " fetches all"
            )
        check_room(request.folder, remote.size or 0)
        request.choose_name(_stem(plain_file_name(remote.name)))

    check_address(request.source)
    target = stage.path / "download"
    try:
        remote = download(Download(request.source, target, check), progress)
    except (DownloadCut, KeyboardInterrupt):
        stage.keep_parts()
        raise
    file = _SourceFile(target, remote.name, shown_address(request.source))
    return _take_file(file, request, stage, progress)


@dataclass(frozen=True)
class _SourceFile:
    """A file or archive that becomes a model.

    Attributes:
        name: the name from its source; ``path`` may be temporary.
        source: as it is recorded.
        keep: whether the file is the user's, so that it must be copied.
    """

    path: Path
    name: str
    source: str
    keep: bool = False


def _take_file(
    file: _SourceFile, request: AddRequest, stage: Stage, progress: Progress
) -> FetchedModel:
    """Make a model in a stage from a file or archive."""
    sha256 = request.check_sha256(file.path, progress)
    provenance = {"source": file.source, "sha256": sha256}
    file_name = plain_file_name(file.name)
    stem = _stem(file_name)
    if part_of(file_name) is not None and not is_split(file.path):
        stem = file_name.removesuffix(SUFFIX)  # a whole model with the name of a part
    name = request.choose_name(stem)
    home = stage.models / name
    if file_name.lower().endswith(ZIP):
        with progress.waiting(f"unpacking {file_name}"):
            _unpack(file.path, stage.path / "unpacked", request.folder)
        os.rename(_model_in(stage.path / "unpacked"), home)
        return FetchedModel(name, provenance, find_license(home))
    home.mkdir()
    target = home / _with_suffix(file.path, file_name)
    if file.keep:
        with progress.waiting(f"copying {file_name}"):
            shutil.copyfile(file.path, target)
    else:
        os.replace(file.path, target)
    return FetchedModel(name, provenance)


def find_license(folder: Path) -> str:
    """Return the first line of a licence file, if any."""
    from pocketserve_wire.files.plain_file import read_plain

    for path in sorted(folder.glob("LICEN[SC]E*")):
        try:
            content = read_plain(path, MAX_LICENSE_BYTES)
        except OSError:
            continue
        for line in content.decode(errors="replace").split("\n"):
            if line.strip():
                return " ".join(line.split())[:MAX_LICENSE]
    return ""


def plain_file_name(name: str) -> str:
    """Return a short name without control characters.

    The suffix stays.
    """
    from pocketserve.repository.files import has_control_characters

    characters = []
    for character in name.encode(errors="replace").decode():
        characters.append("_" if has_control_characters(character) else character)
    name = "".join(characters)
    stem = _stem(name)
    ending = name.removeprefix(stem)
    while stem and len(f"{stem}{ending}".encode()) > MAX_FILE_NAME_BYTES:
        stem = stem[:-1]
    return f"{stem}{ending}"


def _stem(file_name: str) -> str:
    """Return a file's name without the suffix of its format."""
    from pocketserve.runtimes.registry import SUFFIXES

    part = part_of(file_name)
    if part is not None:
        return part.stem
    for suffix in sorted((ZIP, *SUFFIXES), key=len, reverse=True):
        if file_name.lower().endswith(suffix):
            return file_name[: -len(suffix)] or file_name
    return file_name


def _with_suffix(path: Path, file_name: str) -> str:
    """Return a model file's name with a suffix of its format.

    Raises:
        CommandError: neither name nor content is that of a model.
    """
    from pocketserve.repository.unsupported_files import advice
    from pocketserve.runtimes.model_files import failed_download
    from pocketserve.runtimes.registry import (
        SUFFIXES,
        content_of,
        format_named,
        format_of_name,
    )

    fault = failed_download(path)
    if fault is not None:
        raise CommandError(f"{file_name}: {fault.partition(' ')[2]}")
    if format_of_name(file_name) is not None:
        return file_name
    model_format = format_named(content_of(path) or "")
    if model_format is not None and model_format.suffixes:
        return f"{file_name}{model_format.suffixes[0]}"
    reason = advice(file_name)
    if reason is not None:
        raise CommandError(reason[1])
    raise CommandError(
        f"{file_name} is not a model file of a known kind ({', '.join(SUFFIXES)})"
    )


def _copy_folder(source: Path, target: Path, progress: Progress) -> None:
    """Copy a folder's visible files.

    Raises:
        CommandError: there are links, too many files, or no room.
    """
    from pocketserve.repository.files import files_below
    from pocketserve.runtimes.base import ModelLoadError

    files = []
    try:
        for path in files_below(source):
            if not _is_junk(path.relative_to(source).parts):
                files.append(path)
    except ModelLoadError as error:
        raise CommandError(str(error)) from None
    sizes = [path.stat().st_size for path in files]
    total = sum(sizes)
    check_room(target.parent, total)
    target.mkdir()
    title = f"copying {source.name} ({human_bytes(total)})"
    copied = 0
    for path, size in zip(files, sizes, strict=True):
        progress.show(title, copied / max(1, total))
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copied += size


def _is_junk(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") or part in _JUNK for part in parts)


def _unpack(archive: Path, folder: Path, models_dir: Path) -> None:
    """Unpack the regular files of a zip archive.

    Raises:
        CommandError: it is damaged, too large, or would write elsewhere.
    """
    from pocketserve.formats.zip_archives import BadZipError, member_pieces

    try:
        members = _files_to_unpack(archive)
        _check_unpacked_size(archive, members, models_dir)
        remove_tree(folder)
        for member in members:
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


def _files_to_unpack(archive: Path) -> list[ZipMember]:
    """Check an archive's members and return its files."""
    from pocketserve.formats.zip_archives import BadZipError, check_overlaps, members
    from pocketserve.repository.files import MAX_FILES

    directory = list(members(archive, appended=True))
    check_overlaps(directory)
    files = []
    for member in directory:
        _check_member_name(member.name)
        if member.name.endswith("/") or _is_junk(member.name.split("/")):
            continue
        if member.mode & _TYPE_BITS == _LINK:
            raise BadZipError(f"{member.name[:80]!r} is a link; pack the file itself")
        files.append(member)
        if len(files) > MAX_FILES:
            raise BadZipError(f"it holds more than {MAX_FILES} files")
    return files


def _check_member_name(name: str) -> None:
    from pocketserve.formats.zip_archives import BadZipError
    from pocketserve.repository.files import has_control_characters
    from pocketserve.repository.toml_table import is_contained_name

    if not is_contained_name(name):
        raise BadZipError(f"{name[:80]!r} would be written outside of its folder")
    if has_control_characters(name):
        raise BadZipError(f"the name {ascii(name)[:80]} has control characters")


def _check_unpacked_size(
    archive: Path, members: Sequence[ZipMember], models_dir: Path
) -> None:
    from pocketserve.formats.zip_archives import BadZipError

    size = sum(member.size for member in members)
    check_room(models_dir, size)
    packed_size = archive.stat().st_size
    if size > MAX_RATIO * packed_size + FREE_BYTES:
        raise BadZipError(
            f"{human_bytes(packed_size)} would unpack to {human_bytes(size)}, "
            "which no model does"
        )


def _model_in(folder: Path) -> Path:
    """Return an unpacked model's folder, skipping folders that only hold another."""
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.runtimes.registry import MARKERS

    while folder.is_dir():
        inner = sorted(folder.iterdir())
        is_wrapper = len(inner) == 1 and inner[0].is_dir()
        if not is_wrapper or inner[0].name in (FILE_NAME, *MARKERS):
            return folder
        folder = inner[0]
    raise CommandError("the archive holds no files")


def hash_key(text: str) -> str:
    """Return the key of a source's stage."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
